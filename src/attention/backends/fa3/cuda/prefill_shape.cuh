// How the prefill kernel's CTAs lie in shared memory, and what their warps tell each other.
#pragma once

#include <type_traits>

#include "attention/backends/fa3/cuda/prefill_params.h"
#include "attention/backends/fa3/cuda/wgmma.cuh"

namespace attune::attention::fa3 {

// Kv: the caches' type. Keys and values of 8 bits are staged, and lie in the rings as binary16.
template <int kQkDim, int kVDim, typename Kv>
struct PrefillShape {
  static constexpr bool kF8 = std::is_same_v<Kv, __nv_fp8_e4m3>;
  static constexpr bool kF16 = kF8 || std::is_same_v<Kv, __half>;  // operands
  static constexpr int kQPieces = kQkDim / 64, kVPieces = kVDim / 64;
  static constexpr int kPieceBytes = kPrefillKeys * kPieceRow;
  static constexpr int kGroupPieceBytes = kGroupRows * kPieceRow;
  static constexpr int kGroupQBytes = kQPieces * kGroupPieceBytes;
  static constexpr int kQBytes = 2 * kGroupQBytes;
  static constexpr int kKBytes = kQPieces * kPieceBytes, kVBytes = kVPieces * kPieceBytes;
  static constexpr int kQStages = kQkDim > 128 ? 1 : 2;
  static constexpr int kKStages = kQkDim == 64 ? 4 : kQkDim == 128 && !kF8 ? 3 : 2;
  static constexpr int kVStages = kQkDim == 64 ? 4 : 2;
  // Producer warps: two each share the pieces of K and of V (of 8 bits: the rows), the first takes
  // the work too.
  static constexpr int kKWarps = kF8 || kQPieces > 1 ? 2 : 1, kVWarps = kF8 || kVPieces > 1 ? 2 : 1;
  // Results leave through the queries' place; where the next ones come there, through their own.
  static constexpr int kOutBytes = kQStages == 1 ? 8 * 16 * kPieceRow : 0;
  // Of 8 bits: each warp's half of a tile.
  static constexpr int kStagedBytes = kF8 ? kPrefillKeys / 2 * kQkDim : 0;
  static constexpr int kK = kQStages * kQBytes, kV = kK + kKStages * kKBytes,
                       kOut = kV + kVStages * kVBytes, kStaged = kOut + kOutBytes,
                       kBarriers = kStaged + 4 * kStagedBytes;
};

// What a CTA works on; no tiles: there is nothing more.
struct PrefillItem {
  PrefillBlock block;
  int32_t head = 0;  // of the launch's q_heads / tile_heads
  int32_t tiles = 0, last_tile = 0;
};

struct PrefillBarriers {
  uint64_t item_full[2], q_full[2], q_empty[2], k_full[4], k_empty[4], v_full[4], v_empty[4];
  PrefillItem items[2];
  uint32_t last[2];   // whether a warpgroup's part of a block was the last to come
  uint64_t q_raw[2];  // queries that are to be converted
};

template <int kQkDim, int kVDim, typename Kv>
inline constexpr int kPrefillShared = PrefillShape<kQkDim, kVDim, Kv>::kBarriers +
                                      static_cast<int>(sizeof(PrefillBarriers));

inline constexpr int kPrefillThreads = 384;

// A place in a ring of kStages and the parity that its barrier is waited for with.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// A warpgroup's row: token and head.
struct PrefillRow {
  int token, head;
  __device__ __forceinline__ PrefillRow(const PrefillParams& p, int row)
      : token(static_cast<int>(static_cast<uint32_t>(row) * p.token_factor >> 16)),
        head(row - token * p.tile_heads) {}
};

// Which tiles the queries of a block see, its part of them; at least one, which may be seen by
// none.
__device__ __forceinline__ PrefillItem prefill_item(const PrefillParams& p, int index, int heads) {
  PrefillItem item;
  const int4* from = reinterpret_cast<const int4*>(p.blocks + index / heads);
  int4* to = reinterpret_cast<int4*>(&item.block);
#pragma unroll
  for (int i = 0; i < 3; ++i) to[i] = __ldcg(from + i);
  const PrefillBlock& b = item.block;
  item.head = b.first_head + index % heads;
  const int end = p.causal ? min(b.position + b.tokens, b.kv_len) : b.kv_len;
  const int begin = p.window > 0 ? max(b.position - p.window + 1, 0) : 0;
  const int first = max(begin / kPrefillKeys, b.first_tile);
  const int past = min((max(end, 0) + kPrefillKeys - 1) / kPrefillKeys, b.end_tile);
  item.tiles = max(past - first, 1);
  item.last_tile = past > first ? past - 1 : b.first_tile;
  return item;
}

}  // namespace attune::attention::fa3
