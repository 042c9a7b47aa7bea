#include "bench/attention_peers.h"

namespace attune::bench {
namespace {

struct Measured {
  const char* shape;
  int32_t page_size;
  PeerSpeeds speeds;
};

// Where times were told, of small batches, the speeds are their reciprocals (a million over us).
constexpr Measured kMeasured[] = {
    {"decode 32/8 128/128 1x1024", 64, {1e6 / 8.6, 1e6 / 9.5}},
    {"decode 32/8 128/128 4x1024", 64, {1e6 / 13.0, 1e6 / 11.3}},
    {"decode 32/8 128/128 16x2048", 64, {1e6 / 40.7, 1e6 / 37.6}},
    {"decode 32/8 128/128 1x8192", 64, {1966, 2155}},
    {"decode 32/8 128/128 1x8192", 16, {1872, 2064}},
    {"decode 32/8 128/128 1x8192", 1, {1815, 2040}},
    {"decode 32/8 128/128 1x32768", 64, {3340, 3338}},
    {"decode 32/8 128/128 8x4096", 64, {3317, 3489}},
    {"decode 32/8 128/128 64x4096", 64, {4324, 4288}},
    {"decode 32/8 128/128 64x4096", 16, {4270, 4250}},
    {"decode 32/8 128/128 64x4096", 1, {4219, 4178}},
    {"decode 32/8 128/128 128x2048", 64, {4198, 4157}},
    {"decode 32/8 128/128 256x1024", 64, {4065, 3926}},
    {"decode 32/8 128/128 256x1024", 16, {4034, 3883}},
    {"decode 32/8 128/128 256x1024", 1, {3918, 3786}},
    {"decode 32/8 128/128 64x1..8192", 64, {3767, 4387}},
    {"decode 32/8 128/128 64x1..8192", 16, {3685, 4334}},
    {"decode 32/8 128/128 64x1..8192", 1, {3509, 4226}},
    {"decode 64/8 128/128 64x4096", 64, {4292, 4250}},
    // FlashInfer without tensor cores, as the backend has it where no query heads share keys.
    {"decode 32/32 128/128 64x2048", 64, {4504, 4389}},
    {"prefill 32/8 128/128 16x1024", 64, {312, 379, 421}},
    {"prefill 32/8 128/128 16x1024", 16, {315, 369, 421}},
    {"prefill 32/8 128/128 16x1024", 1, {313, 366, 421}},
    {"prefill 32/8 128/128 4x4096", 64, {441, 520, 557}},
    {"prefill 32/8 128/128 4x4096", 16, {454, 514, 557}},
    {"prefill 32/8 128/128 4x4096", 1, {447, 510, 557}},
    {"prefill 32/8 128/128 1x16384", 64, {520, 573, 623}},
    {"prefill 32/8 128/128 1x16384", 16, {523, 567, 623}},
    {"prefill 32/8 128/128 1x16384", 1, {525, 566, 623}},
    {"prefill 32/8 128/128 8x512+8192", 64, {505, 554}},
    {"prefill 32/8 128/128 8x512+8192", 16, {498, 548}},
    {"prefill 32/8 128/128 8x512+8192", 1, {485, 542}},
    {"prefill 16/16 192/128 4x4096", 0, {578, 574, 578}},
};

}  // namespace

PeerSpeeds find_peers(const AttentionCase& c) {
  if (c.kv_dtype != tensor::DType::kBF16 || c.tree) return {};
  const std::string shape = shape_name(c);
  PeerSpeeds found;
  for (const Measured& m : kMeasured) {
    if (shape != m.shape) continue;
    if (m.page_size == c.page_size) return m.speeds;
    if (m.page_size == 64) found = m.speeds;
  }
  found.other_page = found.flashinfer > 0;
  return found;
}

}  // namespace attune::bench
