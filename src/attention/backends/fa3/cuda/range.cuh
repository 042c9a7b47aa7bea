// Which keys the queries of a block see; the plan cuts them, the kernels mask by them.
#pragma once

#include <cstdint>

#include "attention/backends/fa3/work.h"

namespace attune::attention::fa3 {

// x / group, rounded down, of 0 <= x < group.divides_below().
__device__ __forceinline__ int32_t divided(int32_t x, Group group) {
  return group.size == 1 ? x : static_cast<int32_t>(__umulhi(x, group.inverse));
}

struct KeyRange {
  int32_t begin, end;
};

// Of some rows of a sequence. A token tree's queries stand at their depths, in any order.
struct BlockRows {
  int32_t q_len, kv_len, first_row, rows;
  Group group;
  bool causal, tree;

  __device__ int32_t prefix() const { return kv_len - q_len; }
  __device__ int32_t first_query() const { return divided(first_row, group); }
  __device__ int32_t last_query() const { return divided(first_row + rows - 1, group); }

  // Keys that some row may see: none outside. Empty: [0, 0).
  __device__ KeyRange seen(int32_t window) const {
    int32_t end = kv_len, begin = 0;
    if (causal && !tree) end = min(kv_len, prefix() + last_query() + 1);
    if (window > 0)
      begin = max(0, tree ? prefix() - window : prefix() + first_query() - window + 1);
    return begin < end ? KeyRange{begin, end} : KeyRange{0, 0};
  }
  // Keys that every row sees.
  __device__ KeyRange seen_by_all(int32_t window) const {
    const int32_t end = tree ? prefix() : causal ? prefix() + first_query() + 1 : kv_len;
    if (window <= 0) return {0, end};
    return {tree ? prefix() + 64 - window : prefix() + last_query() - window + 1, end};
  }
};

// What one row sees: keys [begin, end); of a tree the prefix, and its own tokens by `word`.
struct RowRange {
  int32_t begin = 0, end = 0;
  uint64_t word = 0;

  RowRange() = default;
  __device__ RowRange(const BlockRows& b, int32_t row, int32_t window, const uint64_t* words) {
    if (row >= b.rows) return;
    const int32_t query = divided(b.first_row + row, b.group);
    int32_t position = b.prefix() + query;
    end = b.causal ? min(b.kv_len, position + 1) : b.kv_len;
    if (b.tree) {
      word = words[query];
      position = b.prefix() + __popcll(word) - 1;
      if (!b.causal) word = ~uint64_t{0};
      end = b.prefix();
    }
    if (window > 0) begin = position - window + 1;
  }

  __device__ bool sees(const BlockRows& b, int32_t key, int32_t window,
                       const uint64_t* words) const {
    if (!b.tree || key < b.prefix()) return key >= begin && key < end;
    if (key >= b.kv_len || !(word >> (key - b.prefix()) & 1)) return false;
    return window <= 0 || b.prefix() + __popcll(words[key - b.prefix()]) - 1 >= begin;
  }
};

}  // namespace attune::attention::fa3
