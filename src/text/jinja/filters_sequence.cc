// Filters of lists and dicts, and the tests.
#include <algorithm>
#include <charconv>

#include "text/jinja/builtins.h"
#include "text/jinja/text_ops.h"

namespace attune::text::jinja {

namespace {

Value iterator(Interpreter& in, std::vector<Value> items) {
  return in.list(std::move(items), ListKind::kIterator);
}

// item.a.b.0 for the attribute path "a.b.0"; a number or None as the path is one step or none.
class Getter {
 public:
  Getter(Interpreter& in, const Value& path, const Value& otherwise = Value())
      : in_(in), otherwise_(otherwise) {
    if (path.missing() || path.is_none()) return;
    if (!path.is_string()) {
      parts_.push_back(path);
      return;
    }
    const std::string_view dot = ".";
    for (Text& part : split(path.text(), &dot, -1)) {
      int64_t number = 0;
      const std::string_view view = part.view();
      const bool digits = !view.empty() && view.find_first_not_of("0123456789") == view.npos;
      const auto end = std::from_chars(view.data(), view.data() + view.size(), number);
      parts_.push_back(digits && end.ec == std::errc() ? Value::integer(number)
                                                       : in.str(std::move(part)));
    }
  }
  Value operator()(Value item) const {
    for (const Value& part : parts_) {
      item = in_.item(item, part);
      if (item.is_undefined() && !otherwise_.missing() && !otherwise_.is_none()) item = otherwise_;
    }
    return item;
  }

 private:
  Interpreter& in_;
  Value otherwise_;
  std::vector<Value> parts_;
};

Value fold_case(Interpreter& in, Value v, bool case_sensitive) {
  return v.is_string() && !case_sensitive ? in.str(lower(v.text())) : v;
}

using Keyed = std::vector<std::pair<Value, Value>>;  // sort key, element

void sort_keyed(Interpreter& in, Keyed& items, bool reverse) {
  // As Python's sorted: stable, also when reversed.
  const auto before = [&](const auto& a, const auto& b) {
    return reverse ? less(b.first, a.first, in.meter) : less(a.first, b.first, in.meter);
  };
  std::stable_sort(items.begin(), items.end(), before);
}

std::vector<Value> elements(Keyed items) {
  std::vector<Value> out;
  out.reserve(items.size());
  for (auto& [key, item] : items) out.push_back(std::move(item));
  return out;
}

Value default_filter(Interpreter& in, const Value& v, CallArgs& args) {
  const Bound a("default", {"default_value", "boolean"}, 0, args);
  if (!v.is_undefined() && !(a.flag(1, false) && !truthy(v))) return v;
  return a.given(0) ? a[0] : in.str("", true);
}

Value length(Interpreter& in, const Value& v, CallArgs& args) {
  const Bound a("length", {}, 0, args);
  if (v.is_string()) in.meter.step(v.text().size() / 64);
  return Value::integer(length_of(v));
}

Value first(Interpreter& in, const Value& v, CallArgs& args) {
  const Bound a("first", {}, 0, args);
  if (v.is(Type::kList) && v.list()->kind == ListKind::kIterator) {
    List& list = *v.list();
    if (list.consumed < list.size()) return list.items[list.consumed++];
  } else if (v.is(Type::kList)) {
    if (v.list()->size() > 0) return v.list()->items.front();
  } else {
    const std::vector<Value> items = iterate(in.heap, v);
    if (!items.empty()) return items.front();
  }
  return in.heap.undefined("No first item, sequence was empty.");
}

Value last(Interpreter& in, const Value& v, CallArgs& args) {
  const Bound a("last", {}, 0, args);
  if (v.is(Type::kList) && v.list()->kind == ListKind::kIterator)
    fail("'generator' object is not reversible");
  const std::vector<Value> items = iterate(in.heap, v);
  return items.empty() ? in.heap.undefined("No last item, sequence was empty.") : items.back();
}

Value list_filter(Interpreter& in, const Value& v, CallArgs& args) {
  const Bound a("list", {}, 0, args);
  return in.list(iterate(in.heap, v));
}

Value join_filter(Interpreter& in, const Value& v, CallArgs& args) {
  const Bound a("join", {"d", "attribute"}, 0, args);
  const Getter get(in, a[1]);
  std::vector<Text> parts;
  for (Value& item : iterate(in.heap, v)) parts.push_back(in.text_of(get(std::move(item))));
  return in.str(join(a.given(0) ? in.text_of(a[0]) : Text(), parts, in.meter));
}

Value reverse(Interpreter& in, const Value& v, CallArgs& args) {
  const Bound a("reverse", {}, 0, args);
  if (v.is_string()) return in.str(reversed(v.text()));
  std::vector<Value> items = iterate(in.heap, v);
  std::reverse(items.begin(), items.end());
  return iterator(in, std::move(items));
}

Value sort(Interpreter& in, const Value& v, CallArgs& args) {
  const Bound a("sort", {"reverse", "case_sensitive", "attribute"}, 0, args);
  std::vector<Getter> getters;
  if (a.given(2) && a[2].is_string()) {
    const std::string_view comma = ",";
    for (Text& path : split(a[2].text(), &comma, -1))
      getters.emplace_back(in, in.str(std::move(path)));
  } else {
    getters.emplace_back(in, a[2]);
  }
  Keyed items;
  for (Value& item : iterate(in.heap, v)) {
    std::vector<Value> key;
    for (const Getter& get : getters) key.push_back(fold_case(in, get(item), a.flag(1, false)));
    items.emplace_back(key.size() == 1 ? key[0] : in.list(std::move(key)), std::move(item));
  }
  sort_keyed(in, items, a.flag(0, false));
  return in.list(elements(std::move(items)));
}

Value dictsort(Interpreter& in, const Value& v, CallArgs& args) {
  const Bound a("dictsort", {"case_sensitive", "by", "reverse"}, 0, args);
  if (!v.is(Type::kDict)) fail(std::string("dictsort needs a dict, not ") + type_name(v));
  const std::string by = a.given(1) ? a.text(1).bytes() : "key";
  if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
  Keyed items;
  for (const auto& [key, value] : v.dict()->entries()) {
    items.emplace_back(fold_case(in, by == "key" ? key : value, a.flag(0, false)),
                       in.list({key, value}, ListKind::kTuple));
  }
  sort_keyed(in, items, a.flag(2, false));
  return in.list(elements(std::move(items)));
}

Value unique(Interpreter& in, const Value& v, CallArgs& args) {
  const Bound a("unique", {"case_sensitive", "attribute"}, 0, args);
  const Getter get(in, a[1]);
  Dict* seen = in.heap.make<Dict>(in.meter);
  std::vector<Value> out;
  for (Value& item : iterate(in.heap, v)) {
    const Value key = fold_case(in, get(item), a.flag(0, false));
    if (seen->find(key) != nullptr) continue;
    seen->set(key, Value::none());
    out.push_back(std::move(item));
  }
  return iterator(in, std::move(out));
}

template <bool greatest>
Value extreme(Interpreter& in, const Value& v, CallArgs& args) {
  const Bound a(greatest ? "max" : "min", {"case_sensitive", "attribute"}, 0, args);
  const Getter get(in, a[1]);
  Value best, best_key;
  for (Value& item : iterate(in.heap, v)) {
    const Value key = fold_case(in, get(item), a.flag(0, false));
    if (best.missing() ||
        (greatest ? less(best_key, key, in.meter, ">") : less(key, best_key, in.meter))) {
      best = std::move(item);
      best_key = key;
    }
  }
  return best.missing() ? in.heap.undefined("No aggregated item, sequence was empty.") : best;
}

Value sum(Interpreter& in, const Value& v, CallArgs& args) {
  const Bound a("sum", {"attribute", "start"}, 0, args);
  const Getter get(in, a[0]);
  Value total = a.given(1) ? a[1] : Value::integer(0);
  if (total.is_string()) fail("sum() can't sum strings");
  for (Value& item : iterate(in.heap, v)) total = in.binary('+', total, get(std::move(item)));
  return total;
}

Value items_filter(Interpreter& in, const Value& v, CallArgs& args) {
  if (v.is_undefined()) return iterator(in, {});
  if (!v.is(Type::kDict)) fail("Can only get item pairs from a mapping.");
  return iterator(in, call_method(in, v, "items", args).list()->items);
}

Value batch(Interpreter& in, const Value& v, CallArgs& args) {
  const Bound a("batch", {"linecount", "fill_with"}, 1, args);
  const int64_t per_line = a.integer(0, 1);
  if (per_line < 1) fail("batch: the line count must be positive");
  std::vector<Value> lines, line;
  const auto put = [&] { lines.push_back(in.list(std::exchange(line, {}))); };
  for (Value& item : iterate(in.heap, v)) {
    if (static_cast<int64_t>(line.size()) == per_line) put();
    line.push_back(std::move(item));
  }
  if (!line.empty()) {
    if (a.given(1) && !a[1].is_none()) {
      in.meter.take(static_cast<size_t>(std::min<int64_t>(per_line, INT32_MAX)) * sizeof(Value));
      line.resize(static_cast<size_t>(per_line), a[1]);
    }
    put();
  }
  return iterator(in, std::move(lines));
}

Value slice(Interpreter& in, const Value& v, CallArgs& args) {
  const Bound a("slice", {"slices", "fill_with"}, 1, args);
  const std::vector<Value> items = iterate(in.heap, v);
  const int64_t slices = a.integer(0, 1);
  if (slices < 1) fail("slice: the number of slices must be positive");
  if (slices > 100'000) fail_limit("slice: more than 100000 slices");
  const auto n = static_cast<size_t>(slices);
  const size_t per_slice = items.size() / n, longer = items.size() % n;
  std::vector<Value> out;
  for (size_t i = 0, at = 0; i < n; ++i) {
    const size_t size = per_slice + (i < longer);
    std::vector<Value> part(items.begin() + static_cast<ptrdiff_t>(at),
                            items.begin() + static_cast<ptrdiff_t>(at + size));
    if (a.given(1) && !a[1].is_none() && i >= longer) part.push_back(a[1]);
    out.push_back(in.list(std::move(part)));
    at += size;
  }
  return iterator(in, std::move(out));
}

// A pair that also answers to .grouper and .list.
Value groupby(Interpreter& in, const Value& v, CallArgs& args) {
  const Bound a("groupby", {"attribute", "default", "case_sensitive"}, 1, args);
  const Getter get(in, a[0], a[1]);
  Keyed items;
  for (Value& item : iterate(in.heap, v)) {
    Value key = fold_case(in, get(item), a.flag(2, false));
    items.emplace_back(std::move(key), std::move(item));
  }
  sort_keyed(in, items, false);
  std::vector<Value> groups;
  for (size_t i = 0; i < items.size();) {
    std::vector<Value> members;
    const size_t begin = i;
    for (; i < items.size() && equals(items[i].first, items[begin].first, in.meter); ++i)
      members.push_back(items[i].second);
    groups.push_back(
        in.list({get(items[begin].second), in.list(std::move(members))}, ListKind::kTuple));
  }
  return in.list(std::move(groups));
}

Value attr(Interpreter& in, const Value& v, CallArgs& args) {
  const Bound a("attr", {"name"}, 1, args);
  const Text name = a.text(0);
  if (v.is(Type::kDict) && !has_method(v, name.view()))
    return in.heap.undefined("no attribute '" + name.bytes() + "'");
  return in.attribute(v, name.view());
}

// --- Filters that take a filter's or a test's name

Value map(Interpreter& in, const Value& v, CallArgs& args) {
  if (!truthy(v)) return iterator(in, {});
  std::vector<Value> out;
  if (args.positional.empty()) {
    const Bound a("map", {"attribute", "default"}, 0, args);
    if (!a.given(0)) fail("map requires a filter argument");
    const Getter get(in, a[0], a[1]);
    for (Value& item : iterate(in.heap, v)) out.push_back(get(std::move(item)));
    return iterator(in, std::move(out));
  }
  if (!args.positional[0].is_string()) fail("map: a filter's name must be a string");
  const std::string name(args.positional[0].view());
  const CallArgs rest{{args.positional.begin() + 1, args.positional.end()}, args.named};
  for (const Value& item : iterate(in.heap, v)) {
    CallArgs each = rest;
    out.push_back(in.apply_filter(name, item, each));
  }
  return iterator(in, std::move(out));
}

template <bool wanted, bool by_attribute>
Value select(Interpreter& in, const Value& v, CallArgs& args) {
  if (!truthy(v)) return iterator(in, {});
  if (by_attribute && args.positional.empty()) fail("Missing parameter for attribute name");
  const Getter get(in, by_attribute ? args.positional[0] : Value());
  constexpr size_t kTest = by_attribute ? 1 : 0;
  const bool tested = args.positional.size() > kTest;
  if (tested && !args.positional[kTest].is_string()) fail("select: a test's name must be a string");
  CallArgs rest;
  if (tested) rest = {{args.positional.begin() + kTest + 1, args.positional.end()}, args.named};
  std::vector<Value> out;
  for (Value& item : iterate(in.heap, v)) {
    const Value subject = get(item);
    CallArgs each = rest;
    const bool holds =
        tested ? in.apply_test(args.positional[kTest].view(), subject, each) : truthy(subject);
    if (holds == wanted) out.push_back(std::move(item));
  }
  return iterator(in, std::move(out));
}

}  // namespace

const FilterTable& sequence_filters() {
  static const FilterTable table = {{"default", default_filter},
                                    {"d", default_filter},
                                    {"length", length},
                                    {"count", length},
                                    {"first", first},
                                    {"last", last},
                                    {"list", list_filter},
                                    {"join", join_filter},
                                    {"reverse", reverse},
                                    {"sort", sort},
                                    {"dictsort", dictsort},
                                    {"unique", unique},
                                    {"min", extreme<false>},
                                    {"max", extreme<true>},
                                    {"sum", sum},
                                    {"items", items_filter},
                                    {"batch", batch},
                                    {"slice", slice},
                                    {"groupby", groupby},
                                    {"attr", attr},
                                    {"map", map},
                                    {"select", select<true, false>},
                                    {"reject", select<false, false>},
                                    {"selectattr", select<true, true>},
                                    {"rejectattr", select<false, true>}};
  return table;
}

}  // namespace attune::text::jinja
