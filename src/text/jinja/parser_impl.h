// The recursive-descent parser, in two units: statements in parser.cc, expressions in
// parser_expr.cc.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"
#include "text/jinja/parser.h"
#include "text/jinja/value.h"

namespace attune::text::jinja {

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens);
  Template run();

 private:
  // Guards against input that nests deeper than the stack is.
  struct Nesting {
    explicit Nesting(Parser& p) : parser(p) {
      if (++parser.nesting_ > kMaxNesting) {
        parser.error("nested more than " + std::to_string(kMaxNesting) + " deep", 0,
                     Code::kResourceExhausted);
      }
    }
    ~Nesting() { --parser.nesting_; }
    Parser& parser;
  };
  // Where a filter that does not exist is an error only when it is reached.
  struct Conditional {
    explicit Conditional(Parser& p) : parser(p) { ++parser.conditional_; }
    ~Conditional() { --parser.conditional_; }
    Parser& parser;
  };
  enum CondMode { kWithCond, kNoCond };

  [[noreturn]] void error(std::string message, int line = 0,
                          Code code = Code::kInvalidArgument) const;
  const Token& current() const { return tokens_[pos_]; }
  const Token& peek() const;
  Token take();
  bool is_name(std::string_view name) const {
    return current().kind == Tok::kName && current().text == name;
  }
  bool is_op(std::string_view op) const {
    return current().kind == Tok::kOp && current().text == op;
  }
  bool skip_name(std::string_view name);
  bool skip_op(std::string_view op);
  void expect_op(std::string_view op);
  Token expect(Tok kind, std::string_view what);
  NameId name_id(const std::string& name);

  Body body(std::span<const std::string_view> ends);
  Body block(std::span<const std::string_view> ends);
  Body block_to(std::string_view end);
  std::optional<Stmt> statement();
  Stmt if_statement();
  Stmt for_statement();
  Stmt set_statement();
  Stmt macro_statement();
  Stmt call_statement();
  Stmt filter_statement();
  Stmt with_statement();
  Stmt print_statement();
  Stmt scope_statement(const std::string& tag);
  void signature(MacroDef& macro);
  Body macro_body(MacroDef& macro, std::string_view end);
  void check_no_loop_target(const Expr& target);

  ExprPtr node(ExprKind kind, int line);
  void adopt(Expr& parent, ExprPtr child);  // child may be null
  ExprPtr with_children(ExprKind kind, int line, ExprPtr a, ExprPtr b = nullptr);
  ExprPtr target(bool with_namespace, std::string_view end);
  ExprPtr target_item(bool with_namespace);
  ExprPtr tuple(CondMode mode = kWithCond, std::string_view end = {}, bool parenthesised = false);
  ExprPtr expression(CondMode mode = kWithCond);
  ExprPtr or_expr();
  ExprPtr and_expr();
  ExprPtr not_expr();
  ExprPtr compare();
  ExprPtr additive();
  ExprPtr concat();
  ExprPtr multiplicative();
  ExprPtr power();
  ExprPtr unary(bool with_filter = true);
  ExprPtr primary();
  ExprPtr name_or_constant();
  ExprPtr list();
  ExprPtr dict();
  ExprPtr postfix(ExprPtr value);
  ExprPtr filters_and_tests(ExprPtr value);
  ExprPtr attribute(ExprPtr value);
  ExprPtr subscript(ExprPtr value);
  ExprPtr call(ExprPtr callee);
  ExprPtr filters(ExprPtr value, bool inline_first);
  ExprPtr test(ExprPtr value);
  std::unique_ptr<CallExprs> arguments(Expr& owner);
  std::string dotted_name(std::string_view what);

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int nesting_ = 0, conditional_ = 0, loops_ = 0;
  std::vector<MacroDef*> macros_;  // those around the current token
  std::unordered_map<std::string, NameId> name_ids_;
  Template out_;
};

}  // namespace attune::text::jinja
