// The objects that a running template makes.
#pragma once

#include <deque>

#include "text/jinja/interpreter.h"

namespace attune::text::jinja {

class MacroObject final : public Object {
 public:
  MacroObject(const Stmt& stmt, Scope* closure) : stmt(stmt), closure(closure) {}
  const char* type_name() const override { return "Macro"; }
  std::optional<Value> attribute(Interpreter& in, std::string_view name) override {
    if (name == "name") return in.str(stmt.macro->name, true);
    return std::nullopt;
  }
  Value call(Interpreter& in, CallArgs& args) override { return in.call_macro(*this, args); }

  const Stmt& stmt;
  Scope* closure;
};

// `loop`: knows what was, is and comes next. Items come one at a time, so that a loop's filter sees
// what the body did before, as in jinja2.
class LoopObject final : public Object {
 public:
  LoopObject(const Stmt& stmt, Scope* scope, List* source, int depth)
      : stmt(stmt), scope(scope), source(source), depth(depth) {}
  const char* type_name() const override { return "LoopContext"; }
  std::optional<Value> attribute(Interpreter& in, std::string_view name) override;
  Value call(Interpreter& in, CallArgs& args) override;

  bool advance(Interpreter& in, Value& out);  // false at the end
  bool peek(Interpreter& in);
  int64_t length(Interpreter& in);
  Value cycle(CallArgs& args) const;
  Value changed(Interpreter& in, CallArgs& args);

  const Stmt& stmt;
  Scope* scope;
  List* source;
  int depth;
  size_t next = 0;  // in source
  int64_t index0 = -1;
  Value current, before;    // missing when there is none
  std::deque<Value> ahead;  // already taken out of source
  std::vector<Value> last_changed;
  bool changed_called = false;
};

// `value.method` that is not called at once.
class BoundMethod final : public Object {
 public:
  BoundMethod(Value self, std::string name) : self(std::move(self)), name(std::move(name)) {}
  const char* type_name() const override { return "builtin_function_or_method"; }
  Value call(Interpreter& in, CallArgs& args) override { return call_method(in, self, name, args); }
  Value self;
  std::string name;
};

class Function final : public Object {
 public:
  using Body = Value (*)(Interpreter&, CallArgs&);
  explicit Function(Body body) : body(body) {}
  const char* type_name() const override { return "function"; }
  Value call(Interpreter& in, CallArgs& args) override { return body(in, args); }
  Body body;
};

// A method of an object of ours: loop.cycle, cycler.next.
template <typename T>
class MemberFunction final : public Object {
 public:
  using Body = Value (*)(Interpreter&, T&, CallArgs&);
  MemberFunction(T& self, Body body) : self(self), body(body) {}
  const char* type_name() const override { return "method"; }
  Value call(Interpreter& in, CallArgs& args) override { return body(in, self, args); }
  T& self;
  Body body;
};

}  // namespace attune::text::jinja
