// Counts what operator new is asked for, by any thread, while counting() runs.
#pragma once

#include <cstdint>

namespace attune::attention::test {

int64_t allocations();  // since the program began
void count_allocations(bool on);

template <typename Fn>
auto counting(Fn&& fn) {
  struct Scope {
    Scope() { count_allocations(true); }
    ~Scope() { count_allocations(false); }
  } scope;
  return fn();
}

}  // namespace attune::attention::test
