// The kernels' contract: one tile is some queries of one sequence times some query heads that share
// a KV head. Its rows (query, head) walk the keys in blocks of kBlock at absolute positions, and in
// splits of kSplit whose results are merged in order. Both are fixed, and every sum runs in an
// order that depends on the key's position alone; so a row's bits are the same whatever tile,
// chunk, thread or split assignment it is computed in, in prefill as in decode. Only a user's
// num_splits above 1 gives that up: the split points then move with the sequence's length.
#pragma once

#include <cstdint>

#include "attention/backend.h"

namespace attune::attention::cpu {

inline constexpr int kBlock = 64;    // keys whose scores are computed together
inline constexpr int kSplit = 512;   // keys per partial result, unless tuned
inline constexpr int kMaxRows = 96;  // (query, head) pairs of a tile; MLA's 128 heads make two

struct Tile {
  int32_t first_token;  // the batch's row of the first query
  int32_t num_q;
  int32_t first_q;                         // the first query's place among the sequence's queries
  int32_t kv_len, q_len;                   // of the sequence
  int32_t kv_head, first_head, num_heads;  // query heads [first_head, +num_heads)
  const int32_t* slots;                    // the sequence's pages; null: dense rows
  int32_t first_row;                       // without pages: the row of key 0
  bool causal;
  const uint64_t* tree_mask;  // of the sequence's queries, or null
  int32_t split_keys;         // keys per partial result, a multiple of kBlock; kSplit if not tuned
  int32_t num_splits() const { return (kv_len + split_keys - 1) / split_keys; }
};

// What all tiles of a layer share.
struct Job {
  const LayerParams* layer;
  const kv::PagedKvView* kv;
  const Io* io;
};

struct Kernels {
  // Bytes of scratch for one thread, and floats of one split's partial result.
  int64_t (*scratch_bytes)(int32_t qk_dim, int32_t v_dim);
  int64_t (*partial_floats)(int32_t rows, int32_t v_dim);
  // A whole tile, written to io.
  void (*attend)(const Job&, const Tile&, void* scratch);
  // One split of a tile, into `partial`.
  void (*attend_split)(const Job&, const Tile&, int32_t split, float* partial, void* scratch);
  // All splits of a tile, from partials laid one after the other (and spoilt), written to io.
  void (*merge_splits)(const Job&, const Tile&, float* partials, void* scratch);
};

const Kernels& kernels_avx2();
const Kernels& kernels_avx512();

}  // namespace attune::attention::cpu
