// What the interpreter's units share and nobody else needs.
#pragma once

#include "text/jinja/interpreter.h"

namespace attune::text::jinja {

// Of nested evaluations: every level of an expression, block, macro call or recursive loop counts.
// The worst of them need 512 KiB of stack together, and less than 8 MiB with sanitizers and no
// optimisation.
constexpr int kMaxEvalDepth = 900;

struct Interpreter::Depth {
  explicit Depth(Interpreter& i) : in(i) {
    if (++in.depth_ > kMaxEvalDepth)
      fail_limit("the template recurses more than " + std::to_string(kMaxEvalDepth) +
                 " levels deep");
  }
  ~Depth() { --in.depth_; }
  Interpreter& in;
};

class Interpreter::ScopeLease {
 public:
  ScopeLease(Interpreter& in, Scope* parent) : scope(in.new_scope(parent)), in_(in) {}
  ~ScopeLease() { in_.release(scope); }
  ScopeLease(const ScopeLease&) = delete;
  Scope* const scope;

 private:
  Interpreter& in_;
};

inline void capture_scopes(Scope* scope) {
  for (; scope != nullptr && !scope->captured; scope = scope->parent) scope->captured = true;
}

}  // namespace attune::text::jinja
