// Shares of a GPU, each piece of work to the one with the least to do.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace attune::attention::flashinfer {

// Nothing is allocated after the largest reset().
class Balance {
 public:
  // `shares` of them, without work.
  void reset(int32_t shares) {
    heap_.clear();
    for (int32_t i = 0; i < shares; ++i) heap_.push_back({0, i});  // equals are a heap
  }

  // The share that has the least, the first of equals; it gets `cost` more.
  int32_t give(int64_t cost) {
    std::pop_heap(heap_.begin(), heap_.end(), has_more);
    Share& least = heap_.back();
    const int32_t index = least.index;
    least.cost += cost;
    std::push_heap(heap_.begin(), heap_.end(), has_more);
    return index;
  }

 private:
  struct Share {
    int64_t cost;
    int32_t index;
  };
  static bool has_more(const Share& a, const Share& b) {
    return a.cost != b.cost ? a.cost > b.cost : a.index > b.index;
  }

  std::vector<Share> heap_;
};

}  // namespace attune::attention::flashinfer
