// Runs a Template. One Interpreter renders once, on one thread; every failure is a RenderError.
//
// The language is jinja2's as transformers sets it up (sandboxed, trim_blocks, lstrip_blocks, loop
// controls, {% generation %}, its tojson, raise_exception, strftime_now). Where it differs:
// - integers have 64 bits; beyond them is an error;
// - lists and dicts may be changed (append, update, ...), which some templates need;
// - filters that give iterators run at once, not when iterated; like a generator's, their results
// are
//   always true, have no length and can be iterated once;
// - after |safe and |escape only + escapes, other string methods do not;
// - not there: include, import, extends, autoescape, lipsum, self, super, \N{...} in strings, the
//   filters filesizeformat, pprint, random, striptags, urlize, wordwrap, xmlattr;
// - str.isalpha and the like know ASCII and take other letters roughly.
#pragma once

#include <ctime>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace attune::text::jinja {

// Names of one block; lookups go on to the block around it.
struct Scope {
  Scope* parent = nullptr;
  bool captured = false;  // a macro or recursive loop may still read it after its block ended
  std::vector<std::pair<NameId, Value>> names;

  Value* find_here(NameId name) {
    for (auto& entry : names) {
      if (entry.first == name) return &entry.second;
    }
    return nullptr;
  }
  void set(NameId name, Value value) {
    if (Value* old = find_here(name)) {
      *old = std::move(value);
    } else {
      names.emplace_back(name, std::move(value));
    }
  }
};

struct Environment {
  std::tm now{};  // what strftime_now tells
  size_t max_output_bytes = 64u << 20;
};

class LoopObject;
class MacroObject;

class Interpreter {
 public:
  Interpreter(const Template& tmpl, Heap& heap, const Environment& environment);

  // Gives a variable its value; ignored when the template never names it.
  void define(std::string_view name, Value value);
  bool names(std::string_view name) const { return id_of(name) >= 0; }
  Text render();
  int line() const { return line_; }

  // For what templates call (filters, tests, methods, objects):
  Heap& heap;
  Meter& meter;
  const Environment& environment() const { return environment_; }
  Value call(const Value& callee, CallArgs& args);
  Value attribute(const Value& of, std::string_view name);  // of.name
  Value item(const Value& of, const Value& key);            // of[key]
  Value item(const Value& of, std::string_view key);
  Value call_macro(const MacroObject& macro, CallArgs& args);
  Value recurse(const LoopObject& loop, const Value& iterable);
  bool loop_next(LoopObject& loop, Value& out);
  Value apply_filter(std::string_view name, const Value& input, CallArgs& args);
  bool apply_test(std::string_view name, const Value& input, CallArgs& args);
  bool contains(const Value& container, const Value& item);
  Value binary(char op, const Value& a, const Value& b);
  Value str(Text text) { return heap.str(std::move(text)); }
  Value str(std::string text, bool trusted) { return heap.str(std::move(text), trusted); }
  Value list(std::vector<Value> items, ListKind kind = ListKind::kList);
  Text text_of(const Value& v) { return to_text(v, meter); }

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  struct Depth;
  class ScopeLease;

  NameId id_of(std::string_view name) const;
  Scope* new_scope(Scope* parent);
  void release(Scope* scope);
  void count_written(size_t bytes);
  void write(const Text& text);
  Text capture(const Body& body, Scope* scope);

  Flow run(const Body& body, Scope* scope);
  Flow run(const Stmt& stmt, Scope* scope);
  void print(const Stmt& stmt, Scope* scope);
  Flow run_if(const Stmt& stmt, Scope* scope);
  Flow run_for(const Stmt& stmt, Scope* scope, const Value& iterable, int depth);
  Flow run_with(const Stmt& stmt, Scope* scope);
  void run_set_block(const Stmt& stmt, Scope* scope);
  void run_call_block(const Stmt& stmt, Scope* scope);
  void run_filter_block(const Stmt& stmt, Scope* scope);
  void assign(const Expr& target, Value value, Scope* scope);
  MacroObject* make_macro(const Stmt& stmt, Scope* scope);

  Value eval(const Expr& e, Scope* scope);
  Value eval_string(const Expr& e);
  Value eval_name(const Expr& e, Scope* scope);
  Value eval_list(const Expr& e, Scope* scope);
  Value eval_dict(const Expr& e, Scope* scope);
  Value eval_slice(const Expr& e, Scope* scope);
  Value eval_call(const Expr& e, Scope* scope, CallArgs args);
  Value eval_filter(const Expr& e, Scope* scope, const Value* input);
  bool eval_test(const Expr& e, Scope* scope);
  Value eval_unary(const Expr& e, Scope* scope);
  Value eval_concat(const Expr& e, Scope* scope);
  bool eval_compare(const Expr& e, Scope* scope);
  bool compare(CompareOp op, const Value& a, const Value& b);
  Value eval_cond(const Expr& e, Scope* scope);
  CallArgs eval_args(const CallExprs* args, Scope* scope);

  const Template& template_;
  const Environment& environment_;
  std::deque<Scope> scopes_;  // every scope of this render
  std::vector<Scope*> free_scopes_;
  Scope* root_;
  NameId loop_name_, varargs_name_, kwargs_name_, caller_name_;
  std::vector<Value> literals_;  // by Expr::constant, made when first read
  Text* out_ = nullptr;
  size_t written_ = 0;
  int line_ = 0;
  int depth_ = 0;
};

// --- What a template can name, each in a unit of its own.

// Whether values of this type have the method; calling it. call_method is only for names that
// exist.
bool has_method(const Value& self, std::string_view name);
Value call_method(Interpreter& in, const Value& self, std::string_view name, CallArgs& args);
// range, dict, namespace, cycler, joiner, raise_exception, strftime_now; missing for other names.
Value global_function(Heap& heap, std::string_view name);

// `name(args)` bound to parameters as Python does it; fails when they don't fit.
class Bound {
 public:
  // The first `required` parameters must be given.
  Bound(const char* what, std::initializer_list<std::string_view> names, size_t required,
        CallArgs& args);
  const Value& operator[](size_t i) const { return values_[i]; }
  bool given(size_t i) const { return !values_[i].missing(); }
  bool flag(size_t i, bool otherwise) const { return given(i) ? truthy(values_[i]) : otherwise; }
  int64_t integer(size_t i, int64_t otherwise) const;  // fails when it is no integer
  Text text(size_t i) const;                           // fails when it is no string

 private:
  const char* what_;
  std::vector<Value> values_;
};

// printf-style `format % values`, and str.format.
Text format_percent(Interpreter& in, const Text& format, const Value& values);
Text format_braces(Interpreter& in, const Text& format, const CallArgs& args);

// A slice's positions as Python has them. Missing bounds are missing values.
struct SliceBounds {
  int64_t begin, end, step;
};
// Nothing when a bound is no integer.
std::optional<SliceBounds> slice_bounds(const Value& begin, const Value& end, const Value& step,
                                        int64_t length);

}  // namespace attune::text::jinja
