// `loop`, global functions and how arguments meet parameters.
#include "text/jinja/objects.h"

#include <algorithm>
#include <array>

namespace attune::text::jinja {

// --- Arguments

Bound::Bound(const char* what, std::initializer_list<std::string_view> names, size_t required,
             CallArgs& args)
    : what_(what), values_(names.size()) {
  const std::string call = std::string(what) + "()";
  if (args.positional.size() > names.size()) {
    fail(call + " takes at most " + std::to_string(names.size()) + " argument(s) (" +
         std::to_string(args.positional.size()) + " given)");
  }
  std::copy(args.positional.begin(), args.positional.end(), values_.begin());
  for (auto& [name, value] : args.named) {
    const auto* found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) fail(call + " got an unexpected keyword argument '" + name + "'");
    Value& slot = values_[static_cast<size_t>(found - names.begin())];
    if (!slot.missing()) fail(call + " got multiple values for argument '" + name + "'");
    slot = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (values_[i].missing()) {
      fail(call + " misses its argument '" + std::string(names.begin()[i]) + "'");
    }
  }
}

int64_t Bound::integer(size_t i, int64_t otherwise) const {
  const Value& v = values_[i];
  if (v.missing()) return otherwise;
  if (!v.is_integral()) fail(std::string(what_) + "(): '" + type_name(v) + "' is no integer");
  return v.as_int();
}

Text Bound::text(size_t i) const {
  const Value& v = values_[i];
  if (!v.is_string()) fail(std::string(what_) + "(): '" + type_name(v) + "' is no string");
  return v.text();
}

// --- loop

bool LoopObject::peek(Interpreter& in) {
  if (!ahead.empty()) return true;
  Value v;
  if (!in.loop_next(*this, v)) return false;
  ahead.push_back(std::move(v));
  return true;
}

bool LoopObject::advance(Interpreter& in, Value& out) {
  if (!peek(in)) return false;
  before = std::move(current);
  current = std::move(ahead.front());
  ahead.pop_front();
  ++index0;
  out = current;
  return true;
}

int64_t LoopObject::length(Interpreter& in) {
  if (stmt.exprs[1] == nullptr) return static_cast<int64_t>(source->size());
  for (Value v; in.loop_next(*this, v);) ahead.push_back(std::move(v));
  return index0 + 1 + static_cast<int64_t>(ahead.size());
}

Value LoopObject::cycle(CallArgs& args) const {
  if (args.positional.empty()) fail("no items for cycling given");
  return args.positional[static_cast<size_t>(index0) % args.positional.size()];
}

Value LoopObject::changed(Interpreter& in, CallArgs& args) {
  const std::vector<Value>& now = args.positional;
  const bool same =
      changed_called && now.size() == last_changed.size() &&
      std::equal(now.begin(), now.end(), last_changed.begin(),
                 [&](const Value& a, const Value& b) { return equals(a, b, in.meter); });
  changed_called = true;
  last_changed = now;
  return Value::boolean(!same);
}

std::optional<Value> LoopObject::attribute(Interpreter& in, std::string_view name) {
  if (name == "index") return Value::integer(index0 + 1);
  if (name == "index0") return Value::integer(index0);
  if (name == "first") return Value::boolean(index0 == 0);
  if (name == "last") return Value::boolean(!peek(in));
  if (name == "length") return Value::integer(length(in));
  if (name == "revindex") return Value::integer(length(in) - index0);
  if (name == "revindex0") return Value::integer(length(in) - index0 - 1);
  if (name == "depth") return Value::integer(depth + 1);
  if (name == "depth0") return Value::integer(depth);
  if (name == "previtem")
    return before.missing() ? in.heap.undefined("there is no previous item") : before;
  if (name == "nextitem")
    return peek(in) ? ahead.front() : in.heap.undefined("there is no next item");
  if (name == "cycle") {
    return in.heap.make<MemberFunction<LoopObject>>(
        *this, [](Interpreter&, LoopObject& loop, CallArgs& args) { return loop.cycle(args); });
  }
  if (name == "changed") {
    return in.heap.make<MemberFunction<LoopObject>>(
        *this,
        [](Interpreter& i, LoopObject& loop, CallArgs& args) { return loop.changed(i, args); });
  }
  return std::nullopt;
}

Value LoopObject::call(Interpreter& in, CallArgs& args) {
  const Bound bound("loop", {"iterable"}, 1, args);
  return in.recurse(*this, bound[0]);
}

// --- Global functions

namespace {

class Cycler final : public Object {
 public:
  explicit Cycler(std::vector<Value> items) : items_(std::move(items)) {}
  const char* type_name() const override { return "Cycler"; }
  bool callable() const override { return false; }
  std::optional<Value> attribute(Interpreter& in, std::string_view name) override {
    if (name == "current") return items_[at_];
    if (name == "next") {
      return in.heap.make<MemberFunction<Cycler>>(*this, [](Interpreter&, Cycler& c, CallArgs&) {
        return c.items_[std::exchange(c.at_, (c.at_ + 1) % c.items_.size())];
      });
    }
    if (name == "reset") {
      return in.heap.make<MemberFunction<Cycler>>(*this, [](Interpreter&, Cycler& c, CallArgs&) {
        c.at_ = 0;
        return Value::none();
      });
    }
    return std::nullopt;
  }

 private:
  std::vector<Value> items_;
  size_t at_ = 0;
};

class Joiner final : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}
  const char* type_name() const override { return "Joiner"; }
  Value call(Interpreter& in, CallArgs&) override {
    return std::exchange(used_, true) ? separator_ : in.str("", true);
  }

 private:
  Value separator_;
  bool used_ = false;
};

constexpr int64_t kMaxRange = 100'000;  // jinja2's sandbox has the same

Value range(Interpreter& in, CallArgs& args) {
  if (!args.named.empty()) fail("range() takes no keyword arguments");
  if (args.positional.empty() || args.positional.size() > 3) fail("range() takes 1 to 3 arguments");
  for (const Value& v : args.positional) {
    if (v.is_undefined()) fail(v.undefined_reason());
    if (!v.is_integral())
      fail(std::string("'") + type_name(v) + "' object cannot be interpreted as an integer");
  }
  const auto arg = [&](size_t i) { return args.positional[i].as_int(); };
  const bool two = args.positional.size() > 1;
  const int64_t begin = two ? arg(0) : 0, end = two ? arg(1) : arg(0);
  const int64_t step = args.positional.size() == 3 ? arg(2) : 1;
  if (step == 0) fail("range() arg 3 must not be zero");
  std::vector<Value> items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange) {
      fail_limit("range too big: ranges longer than " + std::to_string(kMaxRange) + " are blocked");
    }
    items.push_back(Value::integer(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  in.meter.step(items.size() / 16);
  return in.list(std::move(items), ListKind::kRange);
}

// dict(mapping or pairs, name=value ...)
Dict* make_dict(Interpreter& in, CallArgs& args) {
  Dict* out = in.heap.make<Dict>(in.meter);
  if (args.positional.size() > 1) fail("dict expected at most 1 argument");
  if (!args.positional.empty()) {
    const Value& from = args.positional[0];
    if (from.is(Type::kDict)) {
      for (const auto& [key, value] : from.dict()->entries()) out->set(key, value);
    } else {
      for (const Value& pair : iterate(in.heap, from)) {
        const std::vector<Value> both = iterate(in.heap, pair);
        if (both.size() != 2) fail("dict(): an element is no pair");
        out->set(both[0], both[1]);
      }
    }
  }
  for (auto& [name, value] : args.named) out->set(in.str(name, true), value);
  return out;
}

Value dict_function(Interpreter& in, CallArgs& args) {
  return make_dict(in, args);
}

Value namespace_function(Interpreter& in, CallArgs& args) {
  return in.heap.make<Namespace>(make_dict(in, args));
}

Value cycler(Interpreter& in, CallArgs& args) {
  if (args.positional.empty()) fail("at least one item has to be provided");
  return in.heap.make<Cycler>(args.positional);
}

Value joiner(Interpreter& in, CallArgs& args) {
  const Bound bound("joiner", {"sep"}, 0, args);
  return in.heap.make<Joiner>(bound.given(0) ? bound[0] : in.str(", ", true));
}

Value raise_exception(Interpreter& in, CallArgs& args) {
  const Bound bound("raise_exception", {"message"}, 1, args);
  throw RenderError{Code::kInvalidArgument, in.text_of(bound[0]).bytes(), true};
}

Value strftime_now(Interpreter& in, CallArgs& args) {
  const Bound bound("strftime_now", {"format"}, 1, args);
  const Text format = bound.text(0);
  constexpr size_t kLongestFormat = 1024;
  if (format.size() > kLongestFormat) fail("strftime_now(): the format is longer than 1024 bytes");
  if (format.bytes().find('\0') != std::string::npos)
    fail("strftime_now(): embedded null character");
  // A byte more than asked tells an empty result from one that does not fit.
  const std::string guarded = format.bytes() + "x";
  std::array<char, 16384> buffer;
  const size_t n =
      std::strftime(buffer.data(), buffer.size(), guarded.c_str(), &in.environment().now);
  if (n == 0) fail("strftime_now(): the result is too long");
  bool trusted = true;
  format.for_each_run(0, format.size(), [&](size_t, size_t, bool t) { trusted = trusted && t; });
  return in.str(valid_utf8(std::string_view(buffer.data(), n - 1)), trusted);
}

}  // namespace

Value global_function(Heap& heap, std::string_view name) {
  constexpr std::pair<std::string_view, Function::Body> kFunctions[] = {
      {"range", range},
      {"dict", dict_function},
      {"namespace", namespace_function},
      {"cycler", cycler},
      {"joiner", joiner},
      {"raise_exception", raise_exception},
      {"strftime_now", strftime_now}};
  for (const auto& [known, body] : kFunctions) {
    if (known == name) return heap.make<Function>(body);
  }
  return Value();
}

}  // namespace attune::text::jinja
