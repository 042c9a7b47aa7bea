#include "text/jinja/value.h"

#include <cmath>
#include <functional>

namespace attune::text::jinja {

namespace {
constexpr int kMaxDataDepth = 400;  // of nested containers, as Python's own recursion limit

void check(Meter& meter, int depth) {
  meter.step();
  if (depth > kMaxDataDepth) fail_limit("values are nested more than 400 deep");
}
}  // namespace

void fail(std::string message) {
  throw RenderError{Code::kInvalidArgument, std::move(message)};
}
void fail_limit(std::string message) {
  throw RenderError{Code::kResourceExhausted, std::move(message)};
}

Value Value::string(Meter& meter, Text text, bool markup) {
  Value r(Type::kNone);
  const size_t held = sizeof(Str) + text.memory();
  meter.take(held);
  r.rep_.str = new Str{std::move(text), &meter, held, 1, markup};
  r.type_ = Type::kString;
  return r;
}

Value Value::undefined(Meter& meter, std::string why) {
  Value r = string(meter, Text(std::move(why), false));
  r.type_ = Type::kUndefined;
  return r;
}

void Value::release() {
  if (!counted() || --rep_.str->references > 0) return;
  rep_.str->meter->give_back(rep_.str->held);
  delete rep_.str;
}

bool Value::same_object(const Value& o) const {
  if (type_ != o.type_) return false;
  switch (type_) {
    case Type::kMissing:
    case Type::kNone:
      return true;
    case Type::kBool:
      return rep_.b == o.rep_.b;
    case Type::kInt:
      return rep_.i == o.rep_.i;
    case Type::kFloat:
      return rep_.d == o.rep_.d;
    case Type::kString:
      return rep_.str == o.rep_.str || rep_.str->text.bytes() == o.rep_.str->text.bytes();
    default:
      return rep_.str == o.rep_.str;
  }
}

Heap::~Heap() = default;

// --- Dict

size_t Dict::locate(const Value& key, size_t hash) const {
  if (index_.empty()) {
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (equals(entries_[i].first, key, meter_)) return i;
    }
  } else {
    const auto [from, to] = index_.equal_range(hash);
    for (auto it = from; it != to; ++it) {
      if (equals(entries_[it->second].first, key, meter_)) return it->second;
    }
  }
  return entries_.size();
}

Value* Dict::find(const Value& key) {
  const size_t at = locate(key, hash_value(key, meter_));
  return at < entries_.size() ? &entries_[at].second : nullptr;
}

Value* Dict::find(std::string_view key) {
  const auto matches = [key](const Value& v) { return v.is_string() && v.view() == key; };
  if (index_.empty()) {
    for (Entry& e : entries_) {
      if (matches(e.first)) return &e.second;
    }
    return nullptr;
  }
  const auto [from, to] = index_.equal_range(std::hash<std::string_view>()(key));
  for (auto it = from; it != to; ++it) {
    if (matches(entries_[it->second].first)) return &entries_[it->second].second;
  }
  return nullptr;
}

void Dict::set(const Value& key, Value value) {
  const size_t hash = hash_value(key, meter_);
  const size_t at = locate(key, hash);
  if (at < entries_.size()) {
    entries_[at].second = std::move(value);
    return;
  }
  meter_.take(sizeof(Entry) + 48);
  entries_.emplace_back(key, std::move(value));
  if (!index_.empty()) {
    index_.emplace(hash, at);
  } else if (entries_.size() >= kIndexFrom) {
    reindex();
  }
}

std::optional<Value> Dict::remove(const Value& key) {
  const size_t at = locate(key, hash_value(key, meter_));
  if (at == entries_.size()) return std::nullopt;
  Value out = std::move(entries_[at].second);
  entries_.erase(entries_.begin() + static_cast<ptrdiff_t>(at));
  meter_.step(entries_.size());
  reindex();
  return out;
}

void Dict::clear() {
  entries_.clear();
  index_.clear();
}

void Dict::reindex() {
  index_.clear();
  if (entries_.size() < kIndexFrom) return;
  for (size_t i = 0; i < entries_.size(); ++i)
    index_.emplace(hash_value(entries_[i].first, meter_), i);
}

std::optional<Value> Namespace::attribute(Interpreter&, std::string_view name) {
  if (const Value* v = attributes->find(name)) return *v;
  return std::nullopt;
}

// --- What every value can do

const char* type_name(const Value& v) {
  constexpr const char* kLists[] = {"list",        "tuple",      "range",    "dict_keys",
                                    "dict_values", "dict_items", "generator"};
  switch (v.type()) {
    case Type::kMissing:
    case Type::kUndefined:
      return "Undefined";
    case Type::kNone:
      return "NoneType";
    case Type::kBool:
      return "bool";
    case Type::kInt:
      return "int";
    case Type::kFloat:
      return "float";
    case Type::kString:
      return "str";
    case Type::kList:
      return kLists[static_cast<int>(v.list()->kind)];
    case Type::kDict:
      return "dict";
    case Type::kObject:
      return v.object()->type_name();
  }
  return "?";
}

bool truthy(const Value& v) {
  switch (v.type()) {
    case Type::kMissing:
    case Type::kUndefined:
    case Type::kNone:
      return false;
    case Type::kBool:
      return v.as_bool();
    case Type::kInt:
      return v.as_int() != 0;
    case Type::kFloat:
      return v.as_double() != 0;
    case Type::kString:
      return !v.text().empty();
    case Type::kList:
      return v.list()->kind == ListKind::kIterator || v.list()->size() > 0;
    case Type::kDict:
      return v.dict()->size() > 0;
    case Type::kObject:
      return true;
  }
  return false;
}

namespace {

bool equal_lists(const List& a, const List& b, Meter& meter, int depth) {
  if (a.kind != b.kind || a.size() != b.size()) return false;
  if (a.kind == ListKind::kValues || a.kind == ListKind::kIterator) return &a == &b;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!equals(a.items[i], b.items[i], meter, depth + 1)) return false;
  }
  return true;
}

bool equal_dicts(const Dict& a, Dict& b, Meter& meter, int depth) {
  if (a.size() != b.size()) return false;
  for (const auto& [key, value] : a.entries()) {
    const Value* other = b.find(key);
    if (other == nullptr || !equals(value, *other, meter, depth + 1)) return false;
  }
  return true;
}

}  // namespace

bool equals(const Value& a, const Value& b, Meter& meter, int depth) {
  check(meter, depth);
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() == b.as_int();
    return a.as_double() == b.as_double();
  }
  if (a.type() != b.type()) return false;
  switch (a.type()) {
    case Type::kMissing:
    case Type::kUndefined:
    case Type::kNone:
      return true;
    case Type::kString:
      return a.view() == b.view();
    case Type::kList:
      return equal_lists(*a.list(), *b.list(), meter, depth);
    case Type::kDict:
      return a.dict() == b.dict() || equal_dicts(*a.dict(), *b.dict(), meter, depth);
    default:
      return a.object() == b.object();
  }
}

bool less(const Value& a, const Value& b, Meter& meter, const char* op, int depth) {
  check(meter, depth);
  if (a.is_undefined()) fail(a.undefined_reason());
  if (b.is_undefined()) fail(b.undefined_reason());
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() < b.as_int();
    return a.as_double() < b.as_double();
  }
  if (a.is_string() && b.is_string()) return a.view() < b.view();
  if (a.is(Type::kList) && b.is(Type::kList) && a.list()->kind == b.list()->kind &&
      a.list()->kind <= ListKind::kTuple) {
    const List &x = *a.list(), &y = *b.list();
    for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
      if (!equals(x.items[i], y.items[i], meter, depth + 1))
        return less(x.items[i], y.items[i], meter, op, depth + 1);
    }
    return x.size() < y.size();
  }
  fail(std::string("'") + op + "' not supported between instances of '" + type_name(a) + "' and '" +
       type_name(b) + "'");
}

size_t hash_value(const Value& v, Meter& meter, int depth) {
  check(meter, depth);
  switch (v.type()) {
    case Type::kString:
      return std::hash<std::string_view>()(v.view());
    case Type::kBool:
    case Type::kInt:
    case Type::kFloat:
      return std::hash<double>()(v.as_double());
    case Type::kList:
      if (v.list()->kind == ListKind::kTuple) {
        size_t hash = 1;
        for (const Value& item : v.list()->items)
          hash = hash * 31 + hash_value(item, meter, depth + 1);
        return hash;
      }
      if (v.list()->kind == ListKind::kList) fail("unhashable type: 'list'");
      return reinterpret_cast<size_t>(v.list());
    case Type::kDict:
      fail("unhashable type: 'dict'");
    case Type::kObject:
      return reinterpret_cast<size_t>(v.object());
    default:
      return 0;
  }
}

std::vector<Value> take_items(List& list) {
  if (list.kind != ListKind::kIterator) return list.items;
  std::vector<Value> out(list.items.begin() + static_cast<ptrdiff_t>(list.consumed),
                         list.items.end());
  list.consumed = list.items.size();
  return out;
}

bool iterable(const Value& v) {
  return v.is_undefined() || v.is_string() || v.is(Type::kList) || v.is(Type::kDict);
}

std::vector<Value> iterate(Heap& heap, const Value& v) {
  std::vector<Value> out;
  switch (v.type()) {
    case Type::kUndefined:
      return out;
    case Type::kList:
      out = take_items(*v.list());
      break;
    case Type::kDict:
      for (const auto& entry : v.dict()->entries()) out.push_back(entry.first);
      break;
    case Type::kString:
      for (size_t pos = 0; pos < v.text().size();) {
        const size_t begin = pos;
        next_char(v.view(), pos);
        out.push_back(heap.str(v.text().slice(begin, pos)));
      }
      break;
    default:
      fail(std::string("'") + type_name(v) + "' object is not iterable");
  }
  heap.meter.step(out.size());
  return out;
}

int64_t length_of(const Value& v) {
  switch (v.type()) {
    case Type::kUndefined:
      return 0;
    case Type::kString:
      return static_cast<int64_t>(count_chars(v.view()));
    case Type::kDict:
      return static_cast<int64_t>(v.dict()->size());
    case Type::kList:
      if (v.list()->kind != ListKind::kIterator) return static_cast<int64_t>(v.list()->size());
      [[fallthrough]];
    default:
      fail(std::string("object of type '") + type_name(v) + "' has no len()");
  }
}

}  // namespace attune::text::jinja
