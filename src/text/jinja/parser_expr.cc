#include <algorithm>

#include "text/jinja/parser_impl.h"

namespace attune::text::jinja {

ExprPtr Parser::node(ExprKind kind, int line) {
  auto out = std::make_unique<Expr>();
  out->kind = kind;
  out->line = line;
  return out;
}

void Parser::adopt(Expr& parent, ExprPtr child) {
  if (child) {
    parent.depth = std::max(parent.depth, child->depth + 1);
    if (parent.depth > kMaxExprDepth) {
      error("an expression is nested more than " + std::to_string(kMaxExprDepth) + " deep",
            parent.line, Code::kResourceExhausted);
    }
  }
  parent.children.push_back(std::move(child));
}

ExprPtr Parser::with_children(ExprKind kind, int line, ExprPtr a, ExprPtr b) {
  ExprPtr out = node(kind, line);
  adopt(*out, std::move(a));
  if (b) adopt(*out, std::move(b));
  return out;
}

// --- Assignment targets

ExprPtr Parser::target_item(bool with_namespace) {
  const Nesting nesting(*this);
  const int line = current().line;
  if (skip_op("(")) {
    ExprPtr out = target(with_namespace, {});
    expect_op(")");
    return out;
  }
  const Token name = expect(Tok::kName, "a name to assign to");
  constexpr std::string_view kConstants[] = {"true", "false", "none", "True", "False", "None"};
  if (std::find(std::begin(kConstants), std::end(kConstants), name.text) != std::end(kConstants)) {
    error("can't assign to '" + name.text + "'", line);
  }
  ExprPtr out = node(ExprKind::kName, line);
  out->name = name_id(name.text);
  out->text = name.text;
  if (with_namespace && skip_op(".")) {
    out->kind = ExprKind::kNamespaceRef;
    out->text = expect(Tok::kName, "an attribute name").text;
  }
  return out;
}

ExprPtr Parser::target(bool with_namespace, std::string_view end) {
  const int line = current().line;
  ExprPtr first = target_item(with_namespace);
  if (!is_op(",")) return first;
  ExprPtr out = with_children(ExprKind::kTuple, line, std::move(first));
  while (skip_op(",")) {
    if ((!end.empty() && is_name(end)) || is_op("=") || is_op(")") ||
        current().kind == Tok::kTagEnd)
      break;
    adopt(*out, target_item(with_namespace));
  }
  return out;
}

// --- Expressions, loosest binding first

ExprPtr Parser::tuple(CondMode mode, std::string_view end, bool parenthesised) {
  const int line = current().line;
  const auto at_end = [&] {
    return current().kind == Tok::kPrintEnd || current().kind == Tok::kTagEnd || is_op(")") ||
           (!end.empty() && is_name(end));
  };
  if (at_end()) {
    if (!parenthesised) error("Expected an expression, got '" + describe(current()) + "'");
    return node(ExprKind::kTuple, line);
  }
  ExprPtr first = expression(mode);
  if (!is_op(",")) return first;
  ExprPtr out = with_children(ExprKind::kTuple, line, std::move(first));
  while (skip_op(",")) {
    if (at_end()) break;
    adopt(*out, expression(mode));
  }
  return out;
}

ExprPtr Parser::expression(CondMode mode) {
  const Nesting nesting(*this);
  const int line = current().line;
  ExprPtr out = or_expr();
  while (mode == kWithCond && skip_name("if")) {
    const Conditional conditional(*this);
    ExprPtr condition = or_expr();
    ExprPtr other = skip_name("else") ? expression() : nullptr;
    ExprPtr cond = with_children(ExprKind::kCond, line, std::move(out), std::move(condition));
    adopt(*cond, std::move(other));
    out = std::move(cond);
  }
  return out;
}

ExprPtr Parser::or_expr() {
  const int line = current().line;
  ExprPtr left = and_expr();
  while (skip_name("or")) left = with_children(ExprKind::kOr, line, std::move(left), and_expr());
  return left;
}

ExprPtr Parser::and_expr() {
  const int line = current().line;
  ExprPtr left = not_expr();
  while (skip_name("and")) left = with_children(ExprKind::kAnd, line, std::move(left), not_expr());
  return left;
}

ExprPtr Parser::not_expr() {
  const int line = current().line;
  if (!is_name("not")) return compare();
  const Nesting nesting(*this);
  take();
  return with_children(ExprKind::kNot, line, not_expr());
}

ExprPtr Parser::compare() {
  constexpr std::pair<std::string_view, CompareOp> kOps[] = {
      {"==", CompareOp::kEq}, {"!=", CompareOp::kNe}, {"<", CompareOp::kLt},
      {"<=", CompareOp::kLe}, {">", CompareOp::kGt},  {">=", CompareOp::kGe}};
  const int line = current().line;
  ExprPtr first = additive();
  ExprPtr out;
  const auto add = [&](CompareOp op) {
    if (!out) out = with_children(ExprKind::kCompare, line, std::move(first));
    out->ops.push_back(op);
    adopt(*out, additive());
  };
  while (true) {
    const auto* found = std::find_if(std::begin(kOps), std::end(kOps),
                                     [&](const auto& o) { return is_op(o.first); });
    if (found != std::end(kOps)) {
      take();
      add(found->second);
    } else if (skip_name("in")) {
      add(CompareOp::kIn);
    } else if (is_name("not") && peek().kind == Tok::kName && peek().text == "in") {
      take();
      take();
      add(CompareOp::kNotIn);
    } else {
      return out ? std::move(out) : std::move(first);
    }
  }
}

ExprPtr Parser::additive() {
  const int line = current().line;
  ExprPtr left = concat();
  while (is_op("+") || is_op("-")) {
    const char op = take().text[0];
    left = with_children(ExprKind::kBinary, line, std::move(left), concat());
    left->op = op;
  }
  return left;
}

ExprPtr Parser::concat() {
  const int line = current().line;
  ExprPtr first = multiplicative();
  if (!is_op("~")) return first;
  ExprPtr out = with_children(ExprKind::kConcat, line, std::move(first));
  while (skip_op("~")) adopt(*out, multiplicative());
  return out;
}

ExprPtr Parser::multiplicative() {
  const int line = current().line;
  ExprPtr left = power();
  while (is_op("*") || is_op("/") || is_op("//") || is_op("%")) {
    const std::string op = take().text;
    left = with_children(ExprKind::kBinary, line, std::move(left), power());
    left->op = op == "//" ? 'f' : op[0];
  }
  return left;
}

ExprPtr Parser::power() {
  const int line = current().line;
  ExprPtr left = unary();
  while (skip_op("**")) {
    left = with_children(ExprKind::kBinary, line, std::move(left), unary());
    left->op = 'p';
  }
  return left;
}

ExprPtr Parser::unary(bool with_filter) {
  const Nesting nesting(*this);
  const int line = current().line;
  ExprPtr out;
  if (is_op("-") || is_op("+")) {
    const ExprKind kind = take().text == "-" ? ExprKind::kNegative : ExprKind::kPositive;
    out = with_children(kind, line, unary(false));
  } else {
    out = primary();
  }
  out = postfix(std::move(out));
  return with_filter ? filters_and_tests(std::move(out)) : std::move(out);
}

ExprPtr Parser::primary() {
  const Token& token = current();
  const int line = token.line;
  ExprPtr out;
  switch (token.kind) {
    case Tok::kName:
      return name_or_constant();
    case Tok::kString:
      out = node(ExprKind::kString, line);
      while (current().kind == Tok::kString) out->text += take().text;
      out->constant = out_.string_literals++;
      return out;
    case Tok::kInt:
      out = node(ExprKind::kInt, line);
      out->integer = take().integer;
      return out;
    case Tok::kFloat:
      out = node(ExprKind::kFloat, line);
      out->real = take().real;
      return out;
    default:
      if (is_op("[")) return list();
      if (is_op("{")) return dict();
      if (!skip_op("(")) error("unexpected '" + describe(token) + "'");
      out = tuple(kWithCond, {}, true);
      expect_op(")");
      return out;
  }
}

ExprPtr Parser::name_or_constant() {
  const Token token = take();
  if (token.text == "true" || token.text == "True") return node(ExprKind::kTrue, token.line);
  if (token.text == "false" || token.text == "False") return node(ExprKind::kFalse, token.line);
  if (token.text == "none" || token.text == "None") return node(ExprKind::kNone, token.line);
  for (MacroDef* macro : macros_) {
    macro->uses_varargs |= token.text == "varargs";
    macro->uses_kwargs |= token.text == "kwargs";
    macro->uses_caller |= token.text == "caller";
  }
  ExprPtr out = node(ExprKind::kName, token.line);
  out->name = name_id(token.text);
  out->text = token.text;
  return out;
}

ExprPtr Parser::list() {
  ExprPtr out = node(ExprKind::kList, take().line);
  while (!is_op("]")) {
    if (!out->children.empty()) expect_op(",");
    if (is_op("]")) break;
    adopt(*out, expression());
  }
  take();
  return out;
}

ExprPtr Parser::dict() {
  ExprPtr out = node(ExprKind::kDict, take().line);
  while (!is_op("}")) {
    if (!out->children.empty()) expect_op(",");
    if (is_op("}")) break;
    adopt(*out, expression());
    expect_op(":");
    adopt(*out, expression());
  }
  take();
  return out;
}

// --- What follows a value

ExprPtr Parser::postfix(ExprPtr value) {
  while (true) {
    if (is_op(".")) {
      value = attribute(std::move(value));
    } else if (is_op("[")) {
      value = subscript(std::move(value));
    } else if (is_op("(")) {
      value = call(std::move(value));
    } else {
      return value;
    }
  }
}

ExprPtr Parser::filters_and_tests(ExprPtr value) {
  while (true) {
    if (is_op("|")) {
      value = filters(std::move(value), false);
    } else if (is_name("is")) {
      value = test(std::move(value));
    } else if (is_op("(")) {
      value = call(std::move(value));
    } else {
      return value;
    }
  }
}

ExprPtr Parser::attribute(ExprPtr value) {
  const int line = take().line;
  const Token key = take();
  if (key.kind == Tok::kName) {
    ExprPtr out = with_children(ExprKind::kAttr, line, std::move(value));
    out->text = key.text;
    return out;
  }
  if (key.kind != Tok::kInt) error("expected name or number", key.line);
  ExprPtr index = node(ExprKind::kInt, key.line);
  index->integer = key.integer;
  return with_children(ExprKind::kItem, line, std::move(value), std::move(index));
}

ExprPtr Parser::subscript(ExprPtr value) {
  const int line = take().line;
  if (is_op("]")) error("Expected an expression, got ']'");
  ExprPtr begin = is_op(":") ? nullptr : expression();
  if (is_op(",")) {  // a tuple as the key
    ExprPtr key = with_children(ExprKind::kTuple, line, std::move(begin));
    while (skip_op(",") && !is_op("]")) adopt(*key, expression());
    expect_op("]");
    return with_children(ExprKind::kItem, line, std::move(value), std::move(key));
  }
  if (!is_op(":")) {
    expect_op("]");
    return with_children(ExprKind::kItem, line, std::move(value), std::move(begin));
  }
  take();
  ExprPtr end = is_op(":") || is_op("]") ? nullptr : expression();
  ExprPtr step;
  if (skip_op(":") && !is_op("]")) step = expression();
  expect_op("]");
  ExprPtr out = with_children(ExprKind::kSlice, line, std::move(value));
  adopt(*out, std::move(begin));
  adopt(*out, std::move(end));
  adopt(*out, std::move(step));
  return out;
}

std::unique_ptr<CallExprs> Parser::arguments(Expr& owner) {
  const int line = current().line;
  expect_op("(");
  auto out = std::make_unique<CallExprs>();
  const auto take_value = [&]() -> ExprPtr {
    ExprPtr value = expression();
    owner.depth = std::max(owner.depth, value->depth + 1);
    return value;
  };
  const auto ensure = [&](bool good) {
    if (!good) error("invalid syntax for function call expression", line);
  };
  for (bool first = true; !is_op(")"); first = false) {
    if (!first) {
      expect_op(",");
      if (is_op(")")) break;
    }
    if (skip_op("*")) {
      ensure(!out->star && !out->double_star);
      out->star = take_value();
    } else if (skip_op("**")) {
      ensure(!out->double_star);
      out->double_star = take_value();
    } else if (current().kind == Tok::kName && peek().kind == Tok::kOp && peek().text == "=") {
      ensure(!out->double_star);
      std::string name = take().text;
      take();
      out->named.emplace_back(std::move(name), std::move(*take_value()));
    } else {
      ensure(!out->star && !out->double_star && out->named.empty());
      out->positional.push_back(std::move(*take_value()));
    }
  }
  take();
  return out;
}

ExprPtr Parser::call(ExprPtr callee) {
  ExprPtr out = with_children(ExprKind::kCall, current().line, std::move(callee));
  out->args = arguments(*out);
  return out;
}

std::string Parser::dotted_name(std::string_view what) {
  std::string name = expect(Tok::kName, what).text;
  while (skip_op(".")) name += "." + expect(Tok::kName, what).text;
  return name;
}

// |name(args)|name2 ... ; inline_first: the first one has no bar, as in {% filter name %}.
ExprPtr Parser::filters(ExprPtr value, bool inline_first) {
  while (inline_first || is_op("|")) {
    if (!inline_first) take();
    inline_first = false;
    const int line = current().line;
    ExprPtr out = node(ExprKind::kFilter, line);
    adopt(*out, std::move(value));
    out->text = dotted_name("a filter name");
    if (conditional_ == 0 && !filter_exists(out->text)) {
      error("No filter named '" + out->text + "'", line, Code::kUnsupported);
    }
    if (is_op("(")) out->args = arguments(*out);
    value = std::move(out);
  }
  return value;
}

ExprPtr Parser::test(ExprPtr value) {
  const int line = take().line;
  const bool negated = skip_name("not");
  ExprPtr out = with_children(ExprKind::kTest, line, std::move(value));
  out->text = dotted_name("a test name");
  if (conditional_ == 0 && !test_exists(out->text)) {
    error("No test named '" + out->text + "'", line, Code::kUnsupported);
  }
  const Tok kind = current().kind;
  const bool operand =
      kind == Tok::kString || kind == Tok::kInt || kind == Tok::kFloat || is_op("[") ||
      is_op("{") || (kind == Tok::kName && !is_name("else") && !is_name("or") && !is_name("and"));
  if (is_op("(")) {
    out->args = arguments(*out);
  } else if (operand) {
    if (is_name("is")) error("You cannot chain multiple tests with is", line);
    out->args = std::make_unique<CallExprs>();
    ExprPtr argument = postfix(primary());
    out->depth = std::max(out->depth, argument->depth + 1);
    out->args->positional.push_back(std::move(*argument));
  }
  return negated ? with_children(ExprKind::kNot, line, std::move(out)) : std::move(out);
}

}  // namespace attune::text::jinja
