#include "text/jinja/parser.h"

#include <algorithm>
#include <unordered_map>

#include "text/jinja/parser_impl.h"

namespace attune::text::jinja {

Result<Template> parse(std::string_view source) {
  try {
    return Parser(tokenize(source)).run();
  } catch (const RenderError& e) {
    return Status(e.code, "line " + std::to_string(e.line) + ": " + e.message);
  } catch (const std::bad_alloc&) {
    return resource_exhausted("not enough memory to parse the template");
  }
}

Parser::Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

Template Parser::run() {
  out_.body = body({});
  return std::move(out_);
}

// --- Tokens

void Parser::error(std::string message, int line, Code code) const {
  throw RenderError{code, std::move(message), false, line > 0 ? line : current().line};
}

const Token& Parser::peek() const {
  return tokens_[std::min(pos_ + 1, tokens_.size() - 1)];
}

Token Parser::take() {
  Token token = current();
  if (pos_ + 1 < tokens_.size()) ++pos_;
  return token;
}

bool Parser::skip_name(std::string_view name) {
  if (!is_name(name)) return false;
  take();
  return true;
}

bool Parser::skip_op(std::string_view op) {
  if (!is_op(op)) return false;
  take();
  return true;
}

void Parser::expect_op(std::string_view op) {
  if (!skip_op(op))
    error("expected token '" + std::string(op) + "', got '" + describe(current()) + "'");
}

Token Parser::expect(Tok kind, std::string_view what) {
  if (current().kind != kind) {
    error("expected " + std::string(what) + ", got '" + describe(current()) + "'");
  }
  return take();
}

NameId Parser::name_id(const std::string& name) {
  const auto [it, added] = name_ids_.emplace(name, static_cast<NameId>(out_.names.size()));
  if (added) out_.names.push_back(name);
  return it->second;
}

// --- Statements

namespace {

bool among(std::string_view name, std::span<const std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string listed(std::span<const std::string_view> names) {
  std::string out;
  for (const std::string_view name : names)
    out += (out.empty() ? "'" : " or '") + std::string(name) + "'";
  return out;
}

}  // namespace

// Up to a tag that `ends` names (whose name is then the current token), or to the template's end.
Body Parser::body(std::span<const std::string_view> ends) {
  const Nesting nesting(*this);
  Body out;
  while (current().kind != Tok::kEnd) {
    switch (current().kind) {
      case Tok::kData: {
        Token data = take();
        out.push_back(Stmt{StmtKind::kData, data.line});
        out.back().text = std::move(data.text);
        break;
      }
      case Tok::kPrintBegin: {
        Stmt stmt{StmtKind::kPrint, take().line};
        stmt.exprs.push_back(tuple());
        expect(Tok::kPrintEnd, "token 'end of print statement'");
        out.push_back(std::move(stmt));
        break;
      }
      default: {
        take();
        if (current().kind == Tok::kName && among(current().text, ends)) return out;
        std::optional<Stmt> stmt = statement();
        expect(Tok::kTagEnd, "token 'end of statement block'");
        if (stmt) out.push_back(std::move(*stmt));
      }
    }
  }
  if (!ends.empty()) error("unexpected end of template: looking for " + listed(ends));
  return out;
}

Body Parser::block(std::span<const std::string_view> ends) {
  skip_op(":");
  expect(Tok::kTagEnd, "token 'end of statement block'");
  return body(ends);
}

Body Parser::block_to(std::string_view end) {
  const std::string_view ends[] = {end};
  Body out = block(ends);
  take();
  return out;
}

std::optional<Stmt> Parser::statement() {
  if (current().kind != Tok::kName) error("tag name expected");
  const std::string tag = current().text;
  const int line = current().line;
  if (tag == "if") return if_statement();
  if (tag == "for") return for_statement();
  if (tag == "set") return set_statement();
  if (tag == "macro") return macro_statement();
  if (tag == "call") return call_statement();
  if (tag == "filter") return filter_statement();
  if (tag == "with") return with_statement();
  if (tag == "print") return print_statement();
  if (tag == "generation" || tag == "block") return scope_statement(tag);
  if (tag == "break" || tag == "continue") {
    take();
    if (loops_ == 0) error("'" + tag + "' outside of a loop", line);
    return Stmt{tag == "break" ? StmtKind::kBreak : StmtKind::kContinue, line};
  }
  if (tag == "include" || tag == "import" || tag == "from" || tag == "extends") {
    error("'" + tag + "' is not supported: a chat template has no other templates to load", line,
          Code::kUnsupported);
  }
  if (tag == "autoescape") {
    error("'autoescape' is not supported: chat templates are not HTML", line, Code::kUnsupported);
  }
  error("Encountered unknown tag '" + tag + "'", line);
}

Stmt Parser::if_statement() {
  constexpr std::string_view kEnds[] = {"elif", "else", "endif"};
  Stmt out{StmtKind::kIf, take().line};
  const Conditional conditional(*this);
  while (true) {
    out.exprs.push_back(tuple(kNoCond));
    out.bodies.push_back(block(kEnds));
    const Token end = take();
    if (end.text == "elif") continue;
    if (end.text == "else") out.bodies.push_back(block_to("endif"));
    return out;
  }
}

Stmt Parser::for_statement() {
  constexpr std::string_view kEnds[] = {"endfor", "else"};
  Stmt out{StmtKind::kFor, take().line};
  out.targets.push_back(target(false, "in"));
  check_no_loop_target(*out.targets[0]);
  if (!skip_name("in")) error("expected token 'in', got '" + describe(current()) + "'");
  out.exprs.push_back(tuple(kNoCond, "recursive"));
  out.exprs.push_back(skip_name("if") ? expression() : nullptr);
  out.recursive = skip_name("recursive");
  ++loops_;
  out.bodies.push_back(block(kEnds));
  --loops_;
  out.bodies.push_back(take().text == "else" ? block_to("endfor") : Body());
  return out;
}

void Parser::check_no_loop_target(const Expr& target) {
  if (target.text == "loop")
    error("can't assign to the special variable 'loop' in a for loop", target.line);
  for (const ExprPtr& child : target.children) check_no_loop_target(*child);
}

Stmt Parser::set_statement() {
  Stmt out{StmtKind::kSet, take().line};
  out.targets.push_back(target(true, {}));
  if (skip_op("=")) {
    out.exprs.push_back(tuple());
    return out;
  }
  out.kind = StmtKind::kSetBlock;
  out.exprs.push_back(filters(nullptr, false));
  out.bodies.push_back(block_to("endset"));
  return out;
}

// The parameters in parentheses of a macro or call block.
void Parser::signature(MacroDef& macro) {
  expect_op("(");
  while (!is_op(")")) {
    if (!macro.parameters.empty()) expect_op(",");
    const Token name = expect(Tok::kName, "a parameter name");
    macro.parameters.emplace_back(name_id(name.text), name.text);
    if (skip_op("=")) {
      macro.defaults.push_back(expression());
    } else if (!macro.defaults.empty()) {
      error("non-default argument follows default argument", name.line);
    }
  }
  expect_op(")");
}

Body Parser::macro_body(MacroDef& macro, std::string_view end) {
  macros_.push_back(&macro);
  const int loops = std::exchange(loops_, 0);
  Body out = block_to(end);
  loops_ = loops;
  macros_.pop_back();
  return out;
}

Stmt Parser::macro_statement() {
  Stmt out{StmtKind::kMacro, take().line};
  out.macro = std::make_unique<MacroDef>();
  out.macro->name = expect(Tok::kName, "a macro name").text;
  out.macro->name_id = name_id(out.macro->name);
  signature(*out.macro);
  out.bodies.push_back(macro_body(*out.macro, "endmacro"));
  return out;
}

Stmt Parser::call_statement() {
  Stmt out{StmtKind::kCallBlock, take().line};
  out.macro = std::make_unique<MacroDef>();
  out.macro->name = "caller";
  if (is_op("(")) signature(*out.macro);
  out.exprs.push_back(expression());
  if (out.exprs[0]->kind != ExprKind::kCall) error("expected call", out.line);
  out.bodies.push_back(macro_body(*out.macro, "endcall"));
  return out;
}

Stmt Parser::filter_statement() {
  Stmt out{StmtKind::kFilterBlock, take().line};
  out.exprs.push_back(filters(nullptr, true));
  out.bodies.push_back(block_to("endfilter"));
  return out;
}

Stmt Parser::with_statement() {
  Stmt out{StmtKind::kWith, take().line};
  while (current().kind != Tok::kTagEnd && current().kind != Tok::kEnd) {
    if (!out.targets.empty()) expect_op(",");
    out.targets.push_back(target(false, {}));
    expect_op("=");
    out.exprs.push_back(expression());
  }
  out.bodies.push_back(block_to("endwith"));
  return out;
}

Stmt Parser::print_statement() {
  Stmt out{StmtKind::kPrint, take().line};
  while (current().kind != Tok::kTagEnd && current().kind != Tok::kEnd) {
    if (!out.exprs.empty()) expect_op(",");
    out.exprs.push_back(expression());
  }
  return out;
}

Stmt Parser::scope_statement(const std::string& tag) {
  Stmt out{StmtKind::kScope, take().line};
  if (tag == "block") {
    const std::string name = expect(Tok::kName, "a block name").text;
    skip_name("scoped");
    skip_name("required");
    out.bodies.push_back(block_to("endblock"));
    skip_name(name);
  } else {
    out.bodies.push_back(block_to("endgeneration"));
  }
  return out;
}

}  // namespace attune::text::jinja
