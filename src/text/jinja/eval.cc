// Expressions.
#include <algorithm>
#include <cmath>

#include "text/jinja/interpreter_impl.h"
#include "text/jinja/objects.h"
#include "text/jinja/text_ops.h"

namespace attune::text::jinja {

Value Interpreter::eval(const Expr& e, Scope* scope) {
  const Depth depth(*this);
  meter.step();
  line_ = e.line;
  switch (e.kind) {
    case ExprKind::kString:
      return eval_string(e);
    case ExprKind::kInt:
      return Value::integer(e.integer);
    case ExprKind::kFloat:
      return Value::real(e.real);
    case ExprKind::kTrue:
      return Value::boolean(true);
    case ExprKind::kFalse:
      return Value::boolean(false);
    case ExprKind::kNone:
      return Value::none();
    case ExprKind::kName:
      return eval_name(e, scope);
    case ExprKind::kList:
    case ExprKind::kTuple:
      return eval_list(e, scope);
    case ExprKind::kDict:
      return eval_dict(e, scope);
    case ExprKind::kAttr:
      return attribute(eval(*e.children[0], scope), e.text);
    case ExprKind::kItem: {
      const Value of = eval(*e.children[0], scope);
      return item(of, eval(*e.children[1], scope));
    }
    case ExprKind::kSlice:
      return eval_slice(e, scope);
    case ExprKind::kCall:
      return eval_call(e, scope, eval_args(e.args.get(), scope));
    case ExprKind::kFilter:
      return eval_filter(e, scope, nullptr);
    case ExprKind::kTest:
      return Value::boolean(eval_test(e, scope));
    case ExprKind::kNot:
      return Value::boolean(!truthy(eval(*e.children[0], scope)));
    case ExprKind::kNegative:
    case ExprKind::kPositive:
      return eval_unary(e, scope);
    case ExprKind::kBinary: {
      const Value a = eval(*e.children[0], scope);
      return binary(e.op, a, eval(*e.children[1], scope));
    }
    case ExprKind::kConcat:
      return eval_concat(e, scope);
    case ExprKind::kCompare:
      return Value::boolean(eval_compare(e, scope));
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      Value a = eval(*e.children[0], scope);
      return truthy(a) == (e.kind == ExprKind::kOr) ? a : eval(*e.children[1], scope);
    }
    case ExprKind::kCond:
      return eval_cond(e, scope);
    case ExprKind::kNamespaceRef:
      break;
  }
  fail("not an expression");
}

Value Interpreter::eval_string(const Expr& e) {
  Value& literal = literals_[static_cast<size_t>(e.constant)];
  if (literal.missing()) literal = str(e.text, true);
  return literal;
}

Value Interpreter::eval_name(const Expr& e, Scope* scope) {
  for (Scope* s = scope; s != nullptr; s = s->parent) {
    if (const Value* found = s->find_here(e.name)) return *found;
  }
  return heap.undefined("'" + e.text + "' is undefined");
}

Value Interpreter::eval_list(const Expr& e, Scope* scope) {
  std::vector<Value> items;
  items.reserve(e.children.size());
  for (const ExprPtr& child : e.children) items.push_back(eval(*child, scope));
  return list(std::move(items), e.kind == ExprKind::kTuple ? ListKind::kTuple : ListKind::kList);
}

Value Interpreter::eval_dict(const Expr& e, Scope* scope) {
  Dict* out = heap.make<Dict>(meter);
  for (size_t i = 0; i < e.children.size(); i += 2) {
    const Value key = eval(*e.children[i], scope);
    out->set(key, eval(*e.children[i + 1], scope));
  }
  return out;
}

Value Interpreter::eval_cond(const Expr& e, Scope* scope) {
  if (truthy(eval(*e.children[1], scope))) return eval(*e.children[0], scope);
  if (e.children[2]) return eval(*e.children[2], scope);
  return heap.undefined(
      "the inline if-expression evaluated to false and no else section was defined");
}

// --- Attributes, elements, slices

namespace {

std::string object_repr(const Value& v) {
  return v.is_none() ? "None" : std::string(type_name(v)) + " object";
}

std::string no_attribute(const Value& of, std::string_view name) {
  return "'" + object_repr(of) + "' has no attribute '" + std::string(name) + "'";
}

}  // namespace

Value Interpreter::attribute(const Value& of, std::string_view name) {
  if (of.is_undefined()) fail(of.undefined_reason());
  if (of.is(Type::kObject)) {
    if (std::optional<Value> found = of.object()->attribute(*this, name)) return *found;
    return heap.undefined(no_attribute(of, name));
  }
  if (has_method(of, name)) return heap.make<BoundMethod>(of, std::string(name));
  if (of.is(Type::kDict)) {
    if (const Value* found = of.dict()->find(name)) return *found;
  }
  return heap.undefined(no_attribute(of, name));
}

Value Interpreter::item(const Value& of, std::string_view key) {
  if (of.is_undefined()) fail(of.undefined_reason());
  if (of.is(Type::kDict)) {
    if (const Value* found = of.dict()->find(key)) return *found;
  }
  if (of.is(Type::kObject)) return attribute(of, key);
  if (has_method(of, key)) return heap.make<BoundMethod>(of, std::string(key));
  return heap.undefined(no_attribute(of, key));
}

Value Interpreter::item(const Value& of, const Value& key) {
  if (key.is_string()) return item(of, key.view());
  if (of.is_undefined()) fail(of.undefined_reason());
  if (of.is(Type::kDict) && !key.is(Type::kDict) &&
      !(key.is(Type::kList) && key.list()->kind == ListKind::kList)) {
    if (const Value* found = of.dict()->find(key)) return *found;
  } else if (key.is_integral() && of.is(Type::kList) && of.list()->indexable()) {
    const auto size = static_cast<int64_t>(of.list()->size());
    const int64_t at = key.as_int() < 0 ? key.as_int() + size : key.as_int();
    if (at >= 0 && at < size) return of.list()->items[static_cast<size_t>(at)];
  } else if (key.is_integral() && of.is_string()) {
    meter.step(of.text().size() / 64);
    const auto size = length_of(of);
    const int64_t at = key.as_int() < 0 ? key.as_int() + size : key.as_int();
    if (at >= 0 && at < size) {
      const size_t begin = byte_of_char(of.view(), static_cast<size_t>(at));
      size_t end = begin;
      next_char(of.view(), end);
      return str(of.text().slice(begin, end));
    }
  }
  std::string shown;
  append_repr(shown, key, meter);
  return heap.undefined(object_repr(of) + " has no element " + shown);
}

std::optional<SliceBounds> slice_bounds(const Value& begin, const Value& end, const Value& step,
                                        int64_t length) {
  const auto absent = [](const Value& v) { return v.missing() || v.is_none(); };
  for (const Value* v : {&begin, &end, &step}) {
    if (!absent(*v) && !v->is_integral()) return std::nullopt;
  }
  const int64_t by = absent(step) ? 1 : step.as_int();
  if (by == 0) fail("slice step cannot be zero");
  const int64_t low = by > 0 ? 0 : -1, high = by > 0 ? length : length - 1;
  const auto place = [&](const Value& v, int64_t otherwise) {
    if (absent(v)) return otherwise;
    const int64_t at = v.as_int() < 0 ? v.as_int() + length : v.as_int();
    return std::clamp(at, low, high);
  };
  return SliceBounds{place(begin, by > 0 ? low : high), place(end, by > 0 ? high : low), by};
}

namespace {

// The positions of a slice, in order. The step may be huge; it must not wrap.
template <typename Visit>
void for_each_position(const SliceBounds& s, Visit visit) {
  for (int64_t i = s.begin; s.step > 0 ? i < s.end : i > s.end;) {
    visit(static_cast<size_t>(i));
    if (__builtin_add_overflow(i, s.step, &i)) break;
  }
}

Text slice_text(const Text& text, const SliceBounds& s) {
  if (s.step == 1) {
    if (s.begin >= s.end) return Text();
    const size_t begin = byte_of_char(text.view(), static_cast<size_t>(s.begin));
    const std::string_view rest = text.view().substr(begin);
    return text.slice(begin, begin + byte_of_char(rest, static_cast<size_t>(s.end - s.begin)));
  }
  std::vector<size_t> starts;
  for (size_t pos = 0; pos < text.size(); next_char(text.view(), pos)) starts.push_back(pos);
  starts.push_back(text.size());
  Text out;
  for_each_position(s, [&](size_t i) { out.append(text, starts[i], starts[i + 1]); });
  return out;
}

}  // namespace

Value Interpreter::eval_slice(const Expr& e, Scope* scope) {
  const Value of = eval(*e.children[0], scope);
  Value parts[3];
  for (int i = 0; i < 3; ++i) {
    if (e.children[i + 1]) parts[i] = eval(*e.children[i + 1], scope);
  }
  if (of.is_undefined()) fail(of.undefined_reason());
  if (of.is_string() || (of.is(Type::kList) && of.list()->indexable())) {
    const int64_t length = length_of(of);
    meter.step(static_cast<size_t>(length) / 16);
    if (const auto bounds = slice_bounds(parts[0], parts[1], parts[2], length)) {
      if (of.is_string()) return str(slice_text(of.text(), *bounds));
      std::vector<Value> items;
      for_each_position(*bounds, [&](size_t i) { items.push_back(of.list()->items[i]); });
      const bool is_tuple = of.list()->kind == ListKind::kTuple;
      return list(std::move(items), is_tuple ? ListKind::kTuple : ListKind::kList);
    }
  }
  return heap.undefined(object_repr(of) + " has no such slice");
}

// --- Calls, filters, tests

CallArgs Interpreter::eval_args(const CallExprs* args, Scope* scope) {
  CallArgs out;
  if (args == nullptr) return out;
  for (const Expr& e : args->positional) out.positional.push_back(eval(e, scope));
  for (const auto& [name, e] : args->named) out.named.emplace_back(name, eval(e, scope));
  if (args->star) {
    for (Value& v : iterate(heap, eval(*args->star, scope))) out.positional.push_back(std::move(v));
  }
  if (args->double_star) {
    const Value rest = eval(*args->double_star, scope);
    if (!rest.is(Type::kDict))
      fail(std::string("argument after ** must be a mapping, not ") + type_name(rest));
    for (const auto& [key, value] : rest.dict()->entries()) {
      if (!key.is_string()) fail("keywords must be strings");
      out.named.emplace_back(std::string(key.view()), value);
    }
  }
  constexpr size_t kMaxArguments = 1000;  // calls copy them on to other calls
  if (out.positional.size() + out.named.size() > kMaxArguments)
    fail_limit("a call has more than 1000 arguments");
  return out;
}

Value Interpreter::eval_call(const Expr& e, Scope* scope, CallArgs args) {
  const Expr& callee = *e.children[0];
  if (callee.kind == ExprKind::kAttr) {  // a method called at once needs no object in between
    const Value self = eval(*callee.children[0], scope);
    if (!self.is(Type::kObject) && !self.is_undefined() && has_method(self, callee.text)) {
      line_ = e.line;
      return call_method(*this, self, callee.text, args);
    }
    const Value function = attribute(self, callee.text);
    line_ = e.line;
    return call(function, args);
  }
  const Value function = eval(callee, scope);
  line_ = e.line;
  return call(function, args);
}

Value Interpreter::call(const Value& callee, CallArgs& args) {
  const Depth depth(*this);
  meter.step();
  if (callee.is_undefined()) fail(callee.undefined_reason());
  if (!callee.is(Type::kObject))
    fail(std::string("'") + type_name(callee) + "' object is not callable");
  return callee.object()->call(*this, args);
}

// `input` stands in for the innermost operand, which a filter block does not write.
Value Interpreter::eval_filter(const Expr& e, Scope* scope, const Value* input) {
  const Depth depth(*this);
  const Value operand = !e.children[0]     ? *input
                        : input != nullptr ? eval_filter(*e.children[0], scope, input)
                                           : eval(*e.children[0], scope);
  CallArgs args = eval_args(e.args.get(), scope);
  line_ = e.line;
  return apply_filter(e.text, operand, args);
}

bool Interpreter::eval_test(const Expr& e, Scope* scope) {
  const Value operand = eval(*e.children[0], scope);
  if (e.args == nullptr) {  // the usual ones, without a look-up
    if (e.text == "defined") return !operand.is_undefined();
    if (e.text == "none") return operand.is_none();
    if (e.text == "string") return operand.is_string();
  }
  CallArgs args = eval_args(e.args.get(), scope);
  line_ = e.line;
  return apply_test(e.text, operand, args);
}

// --- Operators

namespace {

[[noreturn]] void fail_operands(const char* op, const Value& a, const Value& b) {
  fail(std::string("unsupported operand type(s) for ") + op + ": '" + type_name(a) + "' and '" +
       type_name(b) + "'");
}

[[noreturn]] void fail_overflow() {
  fail("an integer is out of the 64-bit range");
}

int64_t floor_div(int64_t a, int64_t b) {
  if (b == -1) {
    int64_t out;
    if (__builtin_sub_overflow(int64_t{0}, a, &out)) fail_overflow();
    return out;
  }
  return a / b - ((a % b != 0) && ((a < 0) != (b < 0)));
}

int64_t floor_mod(int64_t a, int64_t b) {
  if (b == -1) return 0;
  const int64_t r = a % b;
  return r != 0 && ((r < 0) != (b < 0)) ? r + b : r;
}

double float_mod(double a, double b) {
  const double r = std::fmod(a, b);
  if (r == 0) return std::copysign(0.0, b);
  return (r < 0) != (b < 0) ? r + b : r;
}

Value integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) fail("0.0 cannot be raised to a negative power");
    return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  if (base == 0 || base == 1) return Value::integer(exponent == 0 ? 1 : base);
  if (base == -1) return Value::integer(exponent % 2 == 0 ? 1 : -1);
  int64_t out = 1;
  for (; exponent > 0; --exponent) {  // |base| > 1: at most 63 rounds before it overflows
    if (__builtin_mul_overflow(out, base, &out)) fail_overflow();
  }
  return Value::integer(out);
}

Value integer_op(char op, int64_t a, int64_t b) {
  int64_t out = 0;
  bool overflow = false;
  switch (op) {
    case '+':
      overflow = __builtin_add_overflow(a, b, &out);
      break;
    case '-':
      overflow = __builtin_sub_overflow(a, b, &out);
      break;
    case '*':
      overflow = __builtin_mul_overflow(a, b, &out);
      break;
    case 'p':
      return integer_power(a, b);
    default:
      if (b == 0) fail(op == '/' ? "division by zero" : "integer division or modulo by zero");
      if (op == '/') return Value::real(static_cast<double>(a) / static_cast<double>(b));
      out = op == 'f' ? floor_div(a, b) : floor_mod(a, b);
  }
  if (overflow) fail_overflow();
  return Value::integer(out);
}

Value float_op(char op, double a, double b) {
  switch (op) {
    case '+':
      return Value::real(a + b);
    case '-':
      return Value::real(a - b);
    case '*':
      return Value::real(a * b);
    case 'p':
      return Value::real(std::pow(a, b));
    default:
      if (b == 0)
        fail(op == '/' ? "float division by zero" : "float floor division or modulo by zero");
      if (op == '/') return Value::real(a / b);
      return Value::real(op == 'f' ? std::floor(a / b) : float_mod(a, b));
  }
}

const char* op_name(char op) {
  switch (op) {
    case '+':
      return "+";
    case '-':
      return "-";
    case '*':
      return "*";
    case '/':
      return "/";
    case 'f':
      return "//";
    case '%':
      return "%";
    default:
      return "** or pow()";
  }
}

bool sequence(const Value& v) {
  return v.is_string() || (v.is(Type::kList) && v.list()->kind <= ListKind::kTuple);
}

Value repeat(Interpreter& in, const Value& what, int64_t times) {
  const size_t n = times > 0 ? static_cast<size_t>(times) : 0;
  const size_t size = what.is_string() ? what.text().size() : what.list()->size() * sizeof(Value);
  if (size > 0 && n > in.meter.max_memory() / size) fail_limit("a repeated value is too large");
  in.meter.step(n * size / 64);
  if (what.is_string()) {
    Text out;
    for (size_t i = 0; i < n && size > 0; ++i) out.append(what.text());
    return in.str(std::move(out));
  }
  std::vector<Value> items;
  for (size_t i = 0; i < n && size > 0; ++i) {
    items.insert(items.end(), what.list()->items.begin(), what.list()->items.end());
  }
  return in.list(std::move(items), what.list()->kind);
}

Value join_lists(Interpreter& in, const Value& a, const Value& b) {
  std::vector<Value> items = a.list()->items;
  items.insert(items.end(), b.list()->items.begin(), b.list()->items.end());
  in.meter.step(items.size());
  return in.list(std::move(items), a.list()->kind);
}

}  // namespace

Value Interpreter::binary(char op, const Value& a, const Value& b) {
  if (a.is_undefined() && !(op == '%' && b.is_string())) fail(a.undefined_reason());
  if (a.is_integral() && b.is_integral()) return integer_op(op, a.as_int(), b.as_int());
  if (a.is_number() && b.is_number()) return float_op(op, a.as_double(), b.as_double());
  if (op == '%' && a.is_string()) return str(format_percent(*this, a.text(), b));
  if (b.is_undefined()) fail(b.undefined_reason());
  if (op == '+' && a.is_string()) {
    if (!b.is_string())
      fail(std::string("can only concatenate str (not \"") + type_name(b) + "\") to str");
    meter.step((a.text().size() + b.text().size()) / 64);
    const bool markup = a.is_markup() || b.is_markup();
    const auto part = [markup](const Value& v) {
      return markup && !v.is_markup() ? escape_html(v.text()) : v.text();
    };
    Text out = part(a);
    out.append(part(b));
    return Value::string(meter, std::move(out), markup);
  }
  if (op == '+' && sequence(a) && sequence(b) && !b.is_string() &&
      a.list()->kind == b.list()->kind) {
    return join_lists(*this, a, b);
  }
  if (op == '*' && sequence(a) && b.is_integral()) return repeat(*this, a, b.as_int());
  if (op == '*' && sequence(b) && a.is_integral()) return repeat(*this, b, a.as_int());
  fail_operands(op_name(op), a, b);
}

Value Interpreter::eval_unary(const Expr& e, Scope* scope) {
  const Value v = eval(*e.children[0], scope);
  if (v.is_undefined()) fail(v.undefined_reason());
  const bool negative = e.kind == ExprKind::kNegative;
  if (v.is_integral())
    return negative ? integer_op('-', 0, v.as_int()) : Value::integer(v.as_int());
  if (v.is_number()) return Value::real(negative ? -v.as_double() : v.as_double());
  fail(std::string("bad operand type for unary ") + (negative ? "-" : "+") + ": '" + type_name(v) +
       "'");
}

Value Interpreter::eval_concat(const Expr& e, Scope* scope) {
  Text out;
  for (const ExprPtr& child : e.children) out.append(text_of(eval(*child, scope)));
  meter.step(out.size() / 64);
  return str(std::move(out));
}

bool Interpreter::eval_compare(const Expr& e, Scope* scope) {
  Value left = eval(*e.children[0], scope);
  for (size_t i = 0; i < e.ops.size(); ++i) {
    Value right = eval(*e.children[i + 1], scope);
    if (!compare(e.ops[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

bool Interpreter::compare(CompareOp op, const Value& a, const Value& b) {
  switch (op) {
    case CompareOp::kEq:
      return equals(a, b, meter);
    case CompareOp::kNe:
      return !equals(a, b, meter);
    case CompareOp::kLt:
      return less(a, b, meter, "<");
    case CompareOp::kGt:
      return less(b, a, meter, ">");
    case CompareOp::kLe:
      return less(a, b, meter, "<=") || equals(a, b, meter);
    case CompareOp::kGe:
      return less(b, a, meter, ">=") || equals(a, b, meter);
    case CompareOp::kIn:
      return contains(b, a);
    case CompareOp::kNotIn:
      return !contains(b, a);
  }
  return false;
}

bool Interpreter::contains(const Value& container, const Value& item) {
  switch (container.type()) {
    case Type::kUndefined:
      return false;
    case Type::kString:
      if (!item.is_string()) {
        fail(std::string("'in <string>' requires string as left operand, not ") + type_name(item));
      }
      meter.step(container.text().size() / 64);
      return container.view().find(item.view()) != std::string_view::npos;
    case Type::kDict:
      return container.dict()->find(item) != nullptr;
    case Type::kList: {
      const std::vector<Value> items = take_items(*container.list());
      return std::any_of(items.begin(), items.end(),
                         [&](const Value& v) { return equals(v, item, meter); });
    }
    default:
      fail(std::string("argument of type '") + type_name(container) + "' is not iterable");
  }
}

}  // namespace attune::text::jinja
