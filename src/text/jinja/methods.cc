// Methods of strings, lists and dicts. Beyond what transformers' sandbox allows, lists and dicts
// that the template holds may be changed (append, pop, update, ...): each render has its own copy
// of all.
#include <algorithm>
#include <unordered_map>

#include "text/jinja/interpreter.h"
#include "text/jinja/text_ops.h"

namespace attune::text::jinja {

namespace {

using Method = Value (*)(Interpreter&, const Value&, CallArgs&);
using MethodTable = std::unordered_map<std::string_view, Method>;

Value texts(Interpreter& in, std::vector<Text> parts, ListKind kind = ListKind::kList) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (Text& part : parts) items.push_back(in.str(std::move(part)));
  in.meter.step(items.size());
  return in.list(std::move(items), kind);
}

void no_arguments(const char* what, const CallArgs& args) {
  if (!args.positional.empty() || !args.named.empty())
    fail(std::string(what) + "() takes no arguments");
}

// --- str

template <Side side>
Value str_strip(Interpreter& in, const Value& self, CallArgs& args) {
  const Bound a("strip", {"chars"}, 0, args);
  in.meter.step(self.text().size() / 64);
  if (!a.given(0) || a[0].is_none()) return in.str(strip(self.text(), nullptr, side));
  const Text chars = a.text(0);
  const std::string_view view = chars.view();
  in.meter.step(self.text().size() / 64 * view.size());
  return in.str(strip(self.text(), &view, side));
}

template <bool from_right>
Value str_split(Interpreter& in, const Value& self, CallArgs& args) {
  const Bound a("split", {"sep", "maxsplit"}, 0, args);
  const int64_t max = a.integer(1, -1);
  in.meter.step(self.text().size() / 64);
  const auto cut = from_right ? rsplit : split;
  if (!a.given(0) || a[0].is_none()) return texts(in, cut(self.text(), nullptr, max));
  const Text separator = a.text(0);
  if (separator.empty()) fail("empty separator");
  const std::string_view view = separator.view();
  return texts(in, cut(self.text(), &view, max));
}

Value str_splitlines(Interpreter& in, const Value& self, CallArgs& args) {
  const Bound a("splitlines", {"keepends"}, 0, args);
  return texts(in, split_lines(self.text(), a.flag(0, false)));
}

template <bool from_right>
Value str_partition(Interpreter& in, const Value& self, CallArgs& args) {
  const Bound a("partition", {"sep"}, 1, args);
  const Text separator = a.text(0);
  if (separator.empty()) fail("empty separator");
  const Text& text = self.text();
  const size_t at =
      from_right ? text.view().rfind(separator.view()) : text.view().find(separator.view());
  if (at == std::string_view::npos) {
    std::vector<Text> parts = {text, Text(), Text()};
    if (from_right) std::swap(parts[0], parts[2]);
    return texts(in, std::move(parts), ListKind::kTuple);
  }
  const size_t end = at + separator.size();
  return texts(in, {text.slice(0, at), text.slice(at, end), text.slice(end, text.size())},
               ListKind::kTuple);
}

template <bool at_end>
Value str_affix(Interpreter& in, const Value& self, CallArgs& args) {
  const Bound a(at_end ? "endswith" : "startswith", {"prefix", "start", "end"}, 1, args);
  std::string_view view = self.view();
  if (a.given(1) || a.given(2)) {
    const auto bounds = slice_bounds(a[1], a[2], Value(), length_of(self));
    if (!bounds) fail("slice indices must be integers or None");
    if (bounds->begin > bounds->end) return Value::boolean(false);
    const size_t begin = byte_of_char(view, static_cast<size_t>(bounds->begin));
    view = view.substr(begin, byte_of_char(view, static_cast<size_t>(bounds->end)) - begin);
  }
  const auto matches = [&view](const Value& v) {
    if (!v.is_string())
      fail(std::string("startswith/endswith need a string or a tuple of strings, not ") +
           type_name(v));
    return at_end ? view.ends_with(v.view()) : view.starts_with(v.view());
  };
  if (!a[0].is(Type::kList) || a[0].list()->kind != ListKind::kTuple)
    return Value::boolean(matches(a[0]));
  const auto& options = a[0].list()->items;
  in.meter.step(options.size());
  return Value::boolean(std::any_of(options.begin(), options.end(), matches));
}

template <bool from_right, bool must>
Value str_find(Interpreter& in, const Value& self, CallArgs& args) {
  const Bound a("find", {"sub", "start", "end"}, 1, args);
  const Text sub = a.text(0);
  in.meter.step(self.text().size() / 64);
  const auto bounds = slice_bounds(a[1], a[2], Value(), length_of(self));
  if (!bounds) fail("slice indices must be integers or None");
  int64_t found = -1;
  if (bounds->begin <= bounds->end) {
    const std::string_view all = self.view();
    const size_t begin = byte_of_char(all, static_cast<size_t>(bounds->begin));
    const std::string_view view =
        all.substr(0, byte_of_char(all, static_cast<size_t>(bounds->end)));
    const size_t at =
        from_right ? view.substr(begin).rfind(sub.view()) : view.substr(begin).find(sub.view());
    if (at != std::string_view::npos)
      found = static_cast<int64_t>(count_chars(view.substr(0, begin + at)));
  }
  if (must && found < 0) fail("substring not found");
  return Value::integer(found);
}

Value str_count(Interpreter& in, const Value& self, CallArgs& args) {
  const Bound a("count", {"sub"}, 1, args);
  const Text sub = a.text(0);
  in.meter.step(self.text().size() / 64);
  if (sub.empty()) return Value::integer(length_of(self) + 1);
  int64_t n = 0;
  for (size_t at = 0; (at = self.view().find(sub.view(), at)) != std::string_view::npos;
       at += sub.size())
    ++n;
  return Value::integer(n);
}

Value str_replace(Interpreter& in, const Value& self, CallArgs& args) {
  const Bound a("replace", {"old", "new", "count"}, 2, args);
  const Text from = a.text(0);
  return in.str(replace(self.text(), from.view(), a.text(1), a.integer(2, -1), in.meter));
}

Value str_join(Interpreter& in, const Value& self, CallArgs& args) {
  const Bound a("join", {"iterable"}, 1, args);
  std::vector<Text> parts;
  for (const Value& v : iterate(in.heap, a[0])) {
    if (!v.is_string()) {
      fail("sequence item " + std::to_string(parts.size()) + ": expected str instance, " +
           type_name(v) + " found");
    }
    parts.push_back(v.text());
  }
  return in.str(join(self.text(), parts, in.meter));
}

template <Text (*convert)(const Text&)>
Value str_convert(Interpreter& in, const Value& self, CallArgs& args) {
  no_arguments("a string method", args);
  in.meter.step(self.text().size() / 64);
  return in.str(convert(self.text()));
}

Value str_format(Interpreter& in, const Value& self, CallArgs& args) {
  return in.str(format_braces(in, self.text(), args));
}

template <bool at_end>
Value str_remove_affix(Interpreter& in, const Value& self, CallArgs& args) {
  const Bound a("removeprefix", {"affix"}, 1, args);
  const Text affix = a.text(0);
  const Text& text = self.text();
  if (at_end ? !text.view().ends_with(affix.view()) : !text.view().starts_with(affix.view()))
    return self;
  return in.str(at_end ? text.slice(0, text.size() - affix.size())
                       : text.slice(affix.size(), text.size()));
}

template <Side side>
Value str_pad(Interpreter& in, const Value& self, CallArgs& args) {
  const Bound a("ljust", {"width", "fillchar"}, 1, args);
  const Text fill = a.given(1) ? a.text(1) : Text(" ", true);
  if (count_chars(fill.view()) != 1) fail("the fill character must be exactly one character long");
  return in.str(pad(self.text(), a.integer(0, 0), fill.view(), side, in.meter));
}

Value str_zfill(Interpreter& in, const Value& self, CallArgs& args) {
  const Bound a("zfill", {"width"}, 1, args);
  return in.str(zero_fill(self.text(), a.integer(0, 0), in.meter));
}

bool is_decimal(char32_t c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char32_t c) {
  return is_word(c) && !is_decimal(c) && c != '_' && !(c >= 0xB2 && c <= 0xB3) && c != 0xB9 &&
         !(c >= 0xBC && c <= 0xBE);
}
bool is_alnum(char32_t c) {
  return is_word(c) && c != '_';
}
bool is_ascii_char(char32_t c) {
  return c < 0x80;
}

template <bool (*predicate)(char32_t)>
Value str_all(Interpreter& in, const Value& self, CallArgs& args) {
  no_arguments("a string method", args);
  in.meter.step(self.text().size() / 64);
  return Value::boolean(all_chars(self.view(), predicate));
}

Value str_isupper(Interpreter&, const Value& self, CallArgs&) {
  return Value::boolean(is_upper_text(self.view()));
}
Value str_islower(Interpreter&, const Value& self, CallArgs&) {
  return Value::boolean(is_lower_text(self.view()));
}
Value str_isascii(Interpreter&, const Value& self, CallArgs&) {
  return Value::boolean(self.text().empty() || all_chars(self.view(), is_ascii_char));
}

const MethodTable& str_methods() {
  static const MethodTable table = {{"strip", str_strip<Side::kBoth>},
                                    {"lstrip", str_strip<Side::kLeft>},
                                    {"rstrip", str_strip<Side::kRight>},
                                    {"split", str_split<false>},
                                    {"rsplit", str_split<true>},
                                    {"splitlines", str_splitlines},
                                    {"partition", str_partition<false>},
                                    {"rpartition", str_partition<true>},
                                    {"startswith", str_affix<false>},
                                    {"endswith", str_affix<true>},
                                    {"find", str_find<false, false>},
                                    {"rfind", str_find<true, false>},
                                    {"index", str_find<false, true>},
                                    {"rindex", str_find<true, true>},
                                    {"count", str_count},
                                    {"replace", str_replace},
                                    {"join", str_join},
                                    {"format", str_format},
                                    {"upper", str_convert<upper>},
                                    {"lower", str_convert<lower>},
                                    {"casefold", str_convert<lower>},
                                    {"title", str_convert<title>},
                                    {"capitalize", str_convert<capitalize>},
                                    {"swapcase", str_convert<swap_case>},
                                    {"removeprefix", str_remove_affix<false>},
                                    {"removesuffix", str_remove_affix<true>},
                                    {"ljust", str_pad<Side::kLeft>},
                                    {"rjust", str_pad<Side::kRight>},
                                    {"center", str_pad<Side::kBoth>},
                                    {"zfill", str_zfill},
                                    {"isspace", str_all<is_space>},
                                    {"isdigit", str_all<is_decimal>},
                                    {"isdecimal", str_all<is_decimal>},
                                    {"isnumeric", str_all<is_decimal>},
                                    {"isalpha", str_all<is_letter>},
                                    {"isalnum", str_all<is_alnum>},
                                    {"isupper", str_isupper},
                                    {"islower", str_islower},
                                    {"isascii", str_isascii}};
  return table;
}

// --- list and tuple

Value list_append(Interpreter&, const Value& self, CallArgs& args) {
  const Bound a("append", {"object"}, 1, args);
  self.list()->push(a[0]);
  return Value::none();
}

Value list_extend(Interpreter& in, const Value& self, CallArgs& args) {
  const Bound a("extend", {"iterable"}, 1, args);
  for (Value& v : iterate(in.heap, a[0])) self.list()->push(std::move(v));
  return Value::none();
}

// A position from an index that may be negative; clamped to [0, size].
size_t clamp_index(int64_t at, size_t size) {
  const auto n = static_cast<int64_t>(size);
  return static_cast<size_t>(std::clamp<int64_t>(at < 0 ? at + n : at, 0, n));
}

Value list_insert(Interpreter& in, const Value& self, CallArgs& args) {
  const Bound a("insert", {"index", "object"}, 2, args);
  auto& items = self.list()->items;
  const size_t at = clamp_index(a.integer(0, 0), items.size());
  in.meter.step(items.size() / 16);
  self.list()->push(Value::none());
  items.pop_back();
  items.insert(items.begin() + static_cast<ptrdiff_t>(at), a[1]);
  return Value::none();
}

Value list_pop(Interpreter& in, const Value& self, CallArgs& args) {
  const Bound a("pop", {"index"}, 0, args);
  auto& items = self.list()->items;
  const auto size = static_cast<int64_t>(items.size());
  const int64_t given = a.integer(0, -1);
  const int64_t at = given < 0 ? given + size : given;
  if (at < 0 || at >= size) fail(size == 0 ? "pop from empty list" : "pop index out of range");
  in.meter.step(items.size() / 16);
  Value out = std::move(items[static_cast<size_t>(at)]);
  items.erase(items.begin() + at);
  return out;
}

Value list_remove(Interpreter& in, const Value& self, CallArgs& args) {
  const Bound a("remove", {"value"}, 1, args);
  auto& items = self.list()->items;
  const auto found = std::find_if(items.begin(), items.end(),
                                  [&](const Value& v) { return equals(v, a[0], in.meter); });
  if (found == items.end()) fail("list.remove(x): x not in list");
  items.erase(found);
  return Value::none();
}

Value list_reverse(Interpreter& in, const Value& self, CallArgs& args) {
  no_arguments("reverse", args);
  in.meter.step(self.list()->size());
  std::reverse(self.list()->items.begin(), self.list()->items.end());
  return Value::none();
}

Value list_clear(Interpreter&, const Value& self, CallArgs& args) {
  no_arguments("clear", args);
  self.list()->items.clear();
  return Value::none();
}

Value list_copy(Interpreter& in, const Value& self, CallArgs& args) {
  no_arguments("copy", args);
  return in.list(self.list()->items);
}

Value list_index(Interpreter& in, const Value& self, CallArgs& args) {
  const Bound a("index", {"value"}, 1, args);
  const auto& items = self.list()->items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (equals(items[i], a[0], in.meter)) return Value::integer(static_cast<int64_t>(i));
  }
  fail("the value is not in the list");
}

Value list_count(Interpreter& in, const Value& self, CallArgs& args) {
  const Bound a("count", {"value"}, 1, args);
  const auto& items = self.list()->items;
  return Value::integer(std::count_if(items.begin(), items.end(),
                                      [&](const Value& v) { return equals(v, a[0], in.meter); }));
}

const MethodTable& tuple_methods() {
  static const MethodTable table = {{"index", list_index}, {"count", list_count}};
  return table;
}

const MethodTable& list_methods() {
  static const MethodTable table = {{"append", list_append}, {"extend", list_extend},
                                    {"insert", list_insert}, {"pop", list_pop},
                                    {"remove", list_remove}, {"reverse", list_reverse},
                                    {"clear", list_clear},   {"copy", list_copy},
                                    {"index", list_index},   {"count", list_count}};
  return table;
}

// --- dict

template <ListKind kind>
Value dict_view(Interpreter& in, const Value& self, CallArgs& args) {
  no_arguments("a dict method", args);
  std::vector<Value> out;
  in.meter.step(self.dict()->size());
  for (const auto& [key, value] : self.dict()->entries()) {
    if (kind == ListKind::kItems) {
      out.push_back(in.list({key, value}, ListKind::kTuple));
    } else {
      out.push_back(kind == ListKind::kKeys ? key : value);
    }
  }
  return in.list(std::move(out), kind);
}

Value dict_get(Interpreter&, const Value& self, CallArgs& args) {
  const Bound a("get", {"key", "default"}, 1, args);
  if (const Value* found = self.dict()->find(a[0])) return *found;
  return a.given(1) ? a[1] : Value::none();
}

Value dict_setdefault(Interpreter&, const Value& self, CallArgs& args) {
  const Bound a("setdefault", {"key", "default"}, 1, args);
  if (const Value* found = self.dict()->find(a[0])) return *found;
  Value value = a.given(1) ? a[1] : Value::none();
  self.dict()->set(a[0], value);
  return value;
}

Value dict_pop(Interpreter& in, const Value& self, CallArgs& args) {
  const Bound a("pop", {"key", "default"}, 1, args);
  if (std::optional<Value> found = self.dict()->remove(a[0])) return *found;
  if (a.given(1)) return a[1];
  std::string shown;
  append_repr(shown, a[0], in.meter);
  fail("key " + shown + " is not in the dict");
}

Value dict_update(Interpreter& in, const Value& self, CallArgs& args) {
  if (args.positional.size() > 1) fail("update expected at most 1 argument");
  if (!args.positional.empty()) {
    if (!args.positional[0].is(Type::kDict)) fail("update() needs a dict");
    const auto entries = args.positional[0].dict()->entries();
    for (const auto& [key, value] : entries) self.dict()->set(key, value);
  }
  for (auto& [name, value] : args.named) self.dict()->set(in.str(name, true), value);
  return Value::none();
}

Value dict_copy(Interpreter& in, const Value& self, CallArgs& args) {
  no_arguments("copy", args);
  Dict* out = in.heap.make<Dict>(in.meter);
  for (const auto& [key, value] : self.dict()->entries()) out->set(key, value);
  return out;
}

Value dict_clear(Interpreter&, const Value& self, CallArgs& args) {
  no_arguments("clear", args);
  self.dict()->clear();
  return Value::none();
}

const MethodTable& dict_methods() {
  static const MethodTable table = {{"items", dict_view<ListKind::kItems>},
                                    {"keys", dict_view<ListKind::kKeys>},
                                    {"values", dict_view<ListKind::kValues>},
                                    {"get", dict_get},
                                    {"setdefault", dict_setdefault},
                                    {"pop", dict_pop},
                                    {"update", dict_update},
                                    {"copy", dict_copy},
                                    {"clear", dict_clear}};
  return table;
}

Method find_method(const Value& self, std::string_view name) {
  const MethodTable* table = nullptr;
  if (self.is_string()) table = &str_methods();
  if (self.is(Type::kDict)) table = &dict_methods();
  if (self.is(Type::kList) && self.list()->kind == ListKind::kList) table = &list_methods();
  if (self.is(Type::kList) && self.list()->kind == ListKind::kTuple) table = &tuple_methods();
  if (table == nullptr) return nullptr;
  const auto found = table->find(name);
  return found == table->end() ? nullptr : found->second;
}

}  // namespace

bool has_method(const Value& self, std::string_view name) {
  return find_method(self, name) != nullptr;
}

Value call_method(Interpreter& in, const Value& self, std::string_view name, CallArgs& args) {
  in.meter.step();
  return find_method(self, name)(in, self, args);
}

}  // namespace attune::text::jinja
