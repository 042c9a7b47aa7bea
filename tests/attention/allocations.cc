#include "allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace attune::attention::test {
namespace {

std::atomic<bool> g_on{false};
std::atomic<int64_t> g_count{0};

}  // namespace

int64_t allocations() {
  return g_count.load();
}

void count_allocations(bool on) {
  g_on.store(on);
}

void* counted_malloc(std::size_t bytes) {
  if (g_on.load(std::memory_order_relaxed)) g_count.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes > 0 ? bytes : 1);
}

}  // namespace attune::attention::test

void* operator new(std::size_t bytes) {
  if (void* p = attune::attention::test::counted_malloc(bytes)) return p;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return attune::attention::test::counted_malloc(bytes);
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
void operator delete(void* p, const std::nothrow_t&) noexcept {
  std::free(p);
}
