// What FlashAttention-3 and FlashInfer reached side by side in one run: by the ratio of the two,
// what FlashAttention-3, which is not in the build, would take is estimated where FlashInfer is
// timed.
#pragma once

#include "bench/attention.h"

namespace attune::bench {

// FlashAttention-3 of sglang-kernel 0.4.4, FlashInfer 0.6.12; graph replays, cold L2, medians.
inline constexpr const char* kPeersMeasured = "one H200, 2026-11-29";

// Speeds, all of a row in one unit: GB/s of KV or TFLOP/s.
struct PeerSpeeds {
  double flashinfer = 0;
  double fa3 = 0;           // with precomputed metadata or without, whichever is better
  double contiguous = 0;    // prefill: the best of all on keys that lie contiguous; else 0
  bool other_page = false;  // measured with pages of 64, not with the case's
};

// All 0: nothing of this shape was measured.
PeerSpeeds find_peers(const AttentionCase& c);

}  // namespace attune::bench
