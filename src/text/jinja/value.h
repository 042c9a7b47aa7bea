// What a template computes with: Python's values as far as templates see them. Strings are counted
// references; lists, dicts and objects belong to the Heap of one render and live until it ends, so
// they may refer to each other as they like. Used by one thread; errors are thrown as RenderError
// and caught where a render begins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "attune/status.h"
#include "text/jinja/text.h"

namespace attune::text::jinja {

// Never leaves src/text/jinja. `line` is set where the statement is known.
struct RenderError {
  Code code = Code::kInvalidArgument;
  std::string message;
  bool raised = false;  // by the template's own raise_exception
  int line = 0;
};
[[noreturn]] void fail(std::string message);
[[noreturn]] void fail_limit(std::string message);  // resource_exhausted

// Counts what a render holds and does against its limits.
class Meter {
 public:
  Meter(size_t max_steps, size_t max_memory) : max_steps_(max_steps), max_memory_(max_memory) {}
  void step(size_t n = 1) {
    steps_ += n;
    if (steps_ > max_steps_)
      fail_limit("the template takes more than " + std::to_string(max_steps_) + " steps");
  }
  void take(size_t bytes) {
    if (bytes > max_memory_ - held_) {
      fail_limit("the template needs more than " + std::to_string(max_memory_) +
                 " bytes of memory");
    }
    held_ += bytes;
  }
  void give_back(size_t bytes) { held_ -= bytes; }
  size_t max_memory() const { return max_memory_; }

 private:
  size_t max_steps_, max_memory_;
  size_t steps_ = 0, held_ = 0;
};

struct Str {
  Text text;
  Meter* meter;
  size_t held;
  uint32_t references = 0;
  bool markup = false;  // came out of |safe or |escape: + escapes what is added to it
};

class List;
class Dict;
class Object;

enum class Type : uint8_t {
  kMissing,  // an argument that was not given; templates never see it
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kDict,
  kObject,
};

// 16 bytes; copying a string, list, dict or object copies the reference.
class Value {
 public:
  Value() : type_(Type::kMissing) { rep_.i = 0; }
  Value(const Value& o) : type_(o.type_), rep_(o.rep_) { acquire(); }
  Value(Value&& o) noexcept : type_(o.type_), rep_(o.rep_) { o.type_ = Type::kMissing; }
  Value& operator=(Value o) noexcept {
    std::swap(type_, o.type_);
    std::swap(rep_, o.rep_);
    return *this;
  }
  ~Value() { release(); }

  static Value none() { return Value(Type::kNone); }
  static Value boolean(bool v) {
    Value r(Type::kBool);
    r.rep_.b = v;
    return r;
  }
  static Value integer(int64_t v) {
    Value r(Type::kInt);
    r.rep_.i = v;
    return r;
  }
  static Value real(double v) {
    Value r(Type::kFloat);
    r.rep_.d = v;
    return r;
  }
  static Value string(Meter& meter, Text text, bool markup = false);
  // Prints as nothing; anything else done with it fails with `why`.
  static Value undefined(Meter& meter, std::string why);
  Value(List* v) : type_(Type::kList) { rep_.list = v; }        // NOLINT: implicit by design
  Value(Dict* v) : type_(Type::kDict) { rep_.dict = v; }        // NOLINT
  Value(Object* v) : type_(Type::kObject) { rep_.object = v; }  // NOLINT

  Type type() const { return type_; }
  bool is(Type t) const { return type_ == t; }
  bool missing() const { return type_ == Type::kMissing; }
  bool is_undefined() const { return type_ == Type::kUndefined; }
  bool is_none() const { return type_ == Type::kNone; }
  bool is_string() const { return type_ == Type::kString; }
  bool is_integral() const {
    return type_ == Type::kInt || type_ == Type::kBool;
  }  // as Python's int
  bool is_number() const { return is_integral() || type_ == Type::kFloat; }

  // REQUIRES: the matching type
  bool as_bool() const { return rep_.b; }
  int64_t as_int() const { return type_ == Type::kBool ? int64_t{rep_.b} : rep_.i; }
  double as_double() const {
    return type_ == Type::kFloat ? rep_.d : static_cast<double>(as_int());
  }
  const Text& text() const { return rep_.str->text; }
  std::string_view view() const { return rep_.str->text.view(); }
  bool is_markup() const { return type_ == Type::kString && rep_.str->markup; }
  const std::string& undefined_reason() const { return rep_.str->text.bytes(); }
  List* list() const { return rep_.list; }
  Dict* dict() const { return rep_.dict; }
  Object* object() const { return rep_.object; }
  // Of a string: the same reference, not the same text.
  bool same_object(const Value& o) const;

 private:
  explicit Value(Type t) : type_(t) { rep_.i = 0; }
  bool counted() const { return type_ == Type::kString || type_ == Type::kUndefined; }
  void acquire() {
    if (counted()) ++rep_.str->references;
  }
  void release();

  Type type_;
  union {
    bool b;
    int64_t i;
    double d;
    Str* str;
    List* list;
    Dict* dict;
    Object* object;
  } rep_;
};

// Everything of a render that is not a string. Freed when the render ends.
class HeapItem {
 public:
  virtual ~HeapItem() = default;
};

class Heap {
 public:
  explicit Heap(Meter& meter) : meter(meter) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;
  ~Heap();
  template <typename T, typename... Args>
  T* make(Args&&... args) {
    meter.take(sizeof(T) + 32);
    auto item = std::make_unique<T>(std::forward<Args>(args)...);
    T* raw = item.get();
    items_.push_back(std::move(item));
    return raw;
  }
  Value str(Text text) { return Value::string(meter, std::move(text)); }
  Value str(std::string text, bool trusted) { return str(Text(std::move(text), trusted)); }
  Value undefined(std::string why) { return Value::undefined(meter, std::move(why)); }

  Meter& meter;

 private:
  std::vector<std::unique_ptr<HeapItem>> items_;
};

// The kinds behave alike but for their names, what they print, and: an iterator is always true, has
// no length and no elements by index, and gives its items once.
enum class ListKind : uint8_t { kList, kTuple, kRange, kKeys, kValues, kItems, kIterator };

class List final : public HeapItem {
 public:
  explicit List(Meter& meter, ListKind kind = ListKind::kList) : kind(kind), meter_(meter) {}
  void push(Value v) {
    meter_.take(sizeof(Value));
    items.push_back(std::move(v));
  }
  size_t size() const { return items.size(); }
  bool indexable() const { return kind <= ListKind::kRange; }

  ListKind kind;
  std::vector<Value> items;
  size_t consumed = 0;  // of an iterator

 private:
  Meter& meter_;
};

// Insertion-ordered. Keys are strings, numbers, booleans, None or tuples of them, equal as in
// Python.
class Dict final : public HeapItem {
 public:
  explicit Dict(Meter& meter) : meter_(meter) {}
  using Entry = std::pair<Value, Value>;
  const std::vector<Entry>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  Value* find(const Value& key);
  Value* find(std::string_view key);
  void set(const Value& key, Value value);  // fails for a key that can't be hashed
  std::optional<Value> remove(const Value& key);
  void clear();

 private:
  static constexpr size_t kIndexFrom = 12;  // fewer entries are searched one by one
  size_t locate(const Value& key, size_t hash) const;
  void reindex();
  Meter& meter_;
  std::vector<Entry> entries_;
  std::unordered_multimap<size_t, size_t> index_;  // hash to position; empty below kIndexFrom
};

class Interpreter;
struct CallArgs {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Namespaces, macros, bound methods, functions, loop, cycler, joiner.
class Object : public HeapItem {
 public:
  virtual const char* type_name() const = 0;
  // None when there is no such attribute.
  virtual std::optional<Value> attribute(Interpreter&, std::string_view) { return std::nullopt; }
  virtual bool set_attribute(std::string_view, Value) { return false; }
  virtual bool callable() const { return true; }
  virtual Value call(Interpreter&, CallArgs&) {
    fail(std::string("'") + type_name() + "' object is not callable");
  }
};

class Namespace final : public Object {
 public:
  explicit Namespace(Dict* attributes) : attributes(attributes) {}
  const char* type_name() const override { return "Namespace"; }
  bool callable() const override { return false; }
  std::optional<Value> attribute(Interpreter&, std::string_view name) override;
  Dict* attributes;
};

const char* type_name(const Value& v);  // Python's: "str", "dict", "NoneType", ...
bool truthy(const Value& v);
bool equals(const Value& a, const Value& b, Meter& meter, int depth = 0);
// a < b as Python orders them; fails when it does not.
bool less(const Value& a, const Value& b, Meter& meter, const char* op = "<", int depth = 0);
size_t hash_value(const Value& v, Meter& meter, int depth = 0);  // fails for what can't be a key

// str() and repr(). Numbers, booleans and None count as written by the template; repr() as
// untrusted.
Text to_text(const Value& v, Meter& meter);
void append_repr(std::string& out, const Value& v, Meter& meter, int depth = 0);
void append_quoted(std::string& out, std::string_view text);  // repr() of a string
std::string float_repr(double v);

struct JsonStyle {
  std::string indent;  // empty with pretty == false
  bool pretty = false;
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::string item_separator = ", ", key_separator = ": ";
};
void append_json(std::string& out, const Value& v, const JsonStyle& style, Meter& meter,
                 int depth = 0);

// Elements from `list` that iterating it now would give; an iterator is used up.
std::vector<Value> take_items(List& list);
// Everything that iterating `v` gives: elements, keys, characters; fails for what can't be
// iterated.
std::vector<Value> iterate(Heap& heap, const Value& v);
bool iterable(const Value& v);
// len(); fails for what has none.
int64_t length_of(const Value& v);

}  // namespace attune::text::jinja
