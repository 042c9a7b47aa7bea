// Two attention results over disjoint sets of keys become the one over their union, weighted by
// exp(lse) (online softmax: Milakov & Gimelshein, arXiv:1805.02867).
#pragma once

#include <cstdint>

namespace attune::attention {

struct Partial {
  const float* out = nullptr;  // [tokens, heads, v_dim], dense
  const float* lse = nullptr;  // [tokens, heads], natural log; -inf: saw no key, `out` is not read
};

// Merges `count` partials in their order; out and lse may be those of one of them. All partials
// empty: out 0, lse -inf. All but one empty: that one, bit for bit.
void merge_partials(const Partial* partials, int count, int64_t tokens, int32_t heads,
                    int32_t v_dim, float* out, float* lse);

// The same for one more partial, in place: out and lse become the union with `part`.
void merge_into(const float* part, const float* part_lse, int64_t tokens, int32_t heads,
                int32_t v_dim, float* out, float* lse);

}  // namespace attune::attention
