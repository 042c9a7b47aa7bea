// `is ...`, and the look-up of filters and tests by name.
#include "text/jinja/builtins.h"
#include "text/jinja/interpreter_impl.h"
#include "text/jinja/parser.h"
#include "text/jinja/text_ops.h"

namespace attune::text::jinja {

namespace {

using Test = bool (*)(Interpreter&, const Value&, CallArgs&);

const Value& only(const char* what, CallArgs& args) {
  if (args.positional.size() != 1 || !args.named.empty())
    fail(std::string(what) + ": one argument is needed");
  return args.positional[0];
}

// v % by, whatever Python makes of it: -1 for what is no number.
double modulo(Interpreter& in, const Value& v, int64_t by) {
  const Value rest = in.binary('%', v, Value::integer(by));
  return rest.is_number() ? rest.as_double() : -1;
}

template <Type type>
bool is_type(Interpreter&, const Value& v, CallArgs&) {
  return v.is(type);
}

template <bool wanted>
bool is_bool(Interpreter&, const Value& v, CallArgs&) {
  return v.is(Type::kBool) && v.as_bool() == wanted;
}

bool is_sequence(Interpreter&, const Value& v, CallArgs&) {
  // jinja2 asks for len() and [], which mappings and its Undefined have too.
  return v.is_undefined() || v.is_string() || v.is(Type::kDict) ||
         (v.is(Type::kList) && v.list()->indexable());
}

bool is_callable(Interpreter&, const Value& v, CallArgs&) {
  return v.is_undefined() || (v.is(Type::kObject) && v.object()->callable());
}

bool is_in(Interpreter& in, const Value& v, CallArgs& args) {
  return in.contains(only("in", args), v);
}

bool is_equal(Interpreter& in, const Value& v, CallArgs& args) {
  return equals(v, only("==", args), in.meter);
}
bool is_not_equal(Interpreter& in, const Value& v, CallArgs& args) {
  return !equals(v, only("!=", args), in.meter);
}
bool is_less(Interpreter& in, const Value& v, CallArgs& args) {
  return less(v, only("<", args), in.meter, "<");
}
bool is_greater(Interpreter& in, const Value& v, CallArgs& args) {
  return less(only(">", args), v, in.meter, ">");
}
bool is_at_most(Interpreter& in, const Value& v, CallArgs& args) {
  return less(v, only("<=", args), in.meter, "<=") || is_equal(in, v, args);
}
bool is_at_least(Interpreter& in, const Value& v, CallArgs& args) {
  return less(only(">=", args), v, in.meter, ">=") || is_equal(in, v, args);
}

bool is_odd(Interpreter& in, const Value& v, CallArgs&) {
  return modulo(in, v, 2) == 1;
}
bool is_even(Interpreter& in, const Value& v, CallArgs&) {
  return modulo(in, v, 2) == 0;
}
bool is_divisible(Interpreter& in, const Value& v, CallArgs& args) {
  const Value rest = in.binary('%', v, only("divisibleby", args));
  return rest.is_number() && rest.as_double() == 0;
}

bool is_same(Interpreter&, const Value& v, CallArgs& args) {
  return v.same_object(only("sameas", args));
}
bool is_filter(Interpreter&, const Value& v, CallArgs&) {
  return v.is_string() && filter_exists(v.view());
}
bool is_test(Interpreter&, const Value& v, CallArgs&) {
  return v.is_string() && test_exists(v.view());
}

using TestTable = std::unordered_map<std::string_view, Test>;

const TestTable& all_tests() {
  static const TestTable table = {
      {"defined", [](Interpreter&, const Value& v, CallArgs&) { return !v.is_undefined(); }},
      {"undefined", is_type<Type::kUndefined>},
      {"none", is_type<Type::kNone>},
      {"boolean", is_type<Type::kBool>},
      {"true", is_bool<true>},
      {"false", is_bool<false>},
      {"integer", is_type<Type::kInt>},
      {"float", is_type<Type::kFloat>},
      {"string", is_type<Type::kString>},
      {"mapping", is_type<Type::kDict>},
      {"number", [](Interpreter&, const Value& v, CallArgs&) { return v.is_number(); }},
      {"iterable", [](Interpreter&, const Value& v, CallArgs&) { return iterable(v); }},
      {"sequence", is_sequence},
      {"callable", is_callable},
      {"sameas", is_same},
      {"escaped", [](Interpreter&, const Value& v, CallArgs&) { return v.is_markup(); }},
      {"lower", [](Interpreter& in, const Value& v,
                   CallArgs&) { return is_lower_text(in.text_of(v).view()); }},
      {"upper", [](Interpreter& in, const Value& v,
                   CallArgs&) { return is_upper_text(in.text_of(v).view()); }},
      {"odd", is_odd},
      {"even", is_even},
      {"divisibleby", is_divisible},
      {"in", is_in},
      {"filter", is_filter},
      {"test", is_test},
      {"==", is_equal},
      {"eq", is_equal},
      {"equalto", is_equal},
      {"!=", is_not_equal},
      {"ne", is_not_equal},
      {"<", is_less},
      {"lt", is_less},
      {"lessthan", is_less},
      {"<=", is_at_most},
      {"le", is_at_most},
      {">", is_greater},
      {"gt", is_greater},
      {"greaterthan", is_greater},
      {">=", is_at_least},
      {"ge", is_at_least}};
  return table;
}

Filter find_filter(std::string_view name) {
  for (const FilterTable* table : {&sequence_filters(), &text_filters()}) {
    if (const auto found = table->find(name); found != table->end()) return found->second;
  }
  return nullptr;
}

}  // namespace

bool filter_exists(std::string_view name) {
  return find_filter(name) != nullptr;
}
bool test_exists(std::string_view name) {
  return all_tests().contains(name);
}

Value Interpreter::apply_filter(std::string_view name, const Value& input, CallArgs& args) {
  const Depth depth(*this);
  meter.step();
  const Filter filter = find_filter(name);
  if (filter == nullptr) fail("No filter named '" + std::string(name) + "'");
  return filter(*this, input, args);
}

bool Interpreter::apply_test(std::string_view name, const Value& input, CallArgs& args) {
  meter.step();
  const auto found = all_tests().find(name);
  if (found == all_tests().end()) fail("No test named '" + std::string(name) + "'");
  return found->second(*this, input, args);
}

}  // namespace attune::text::jinja
