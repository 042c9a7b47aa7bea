// `attune bench attention`: every backend that can run here over a grid of shapes. Each case is
// repeated over pools that no cache holds together, as a graph; beside it stands a bulk read of the
// same bytes, timed in the same way: what the memory allows. Decode on a GPU is timed as a step
// pays for it: a chain of it between its neighbours (bench/attention_neighbours.h), less the same
// chain without it, so that a kernel which cannot overlap the others has that counted. Prefill, in
// which the neighbours' ends are little, is timed alone.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "attune/status.h"
#include "device/device.h"

namespace attune::bench {

// One layer's heads. MLA: absorbed, one KV head whose V is the head of K.
struct AttentionHeads {
  int32_t q = 0, kv = 0, qk_dim = 0, v_dim = 0;
  bool mla = false;
  bool operator==(const AttentionHeads&) const = default;
};

struct AttentionCase {
  AttentionHeads heads;
  attention::Phase phase = attention::Phase::kDecode;
  int32_t seqs = 1, q_len = 1, kv_len = 1;  // kv_len with the q_len new ones
  bool ragged = false;                      // lengths uniform in [q_len, kv_len], else all kv_len
  int32_t page_size = 16;
  tensor::DType kv_dtype = tensor::DType::kBF16;
};

struct AttentionConfig {
  std::vector<std::string> backends;  // empty: all that can run here, but the oracle
  std::vector<std::string> phases;    // "decode", "prefill"; empty: both
  std::vector<int32_t> page_sizes = {16, 64};
  std::vector<std::string> kv_dtypes;  // empty: the device's usual one
  bool mla = true;                     // MLA's shapes too
  int32_t repeats = 5;                 // medians are told
  bool pdl = true;                     // GPU: dependent launch
};

struct AttentionRow {
  AttentionCase what;
  std::string backend;
  double seconds = 0;       // of one layer, see above
  double read_seconds = 0;  // of a bulk read of the same bytes
  int64_t kv_bytes = 0;     // that one layer's call must read
  double flops = 0;
  std::string refused;  // why it cannot; then nothing was timed
};

// The grid: shapes of well-known models, from one short sequence to batches that fill the device.
std::vector<AttentionCase> attention_grid(const AttentionConfig& config,
                                          const device::DeviceInfo& device);
// `told` hears each row as it is done. Errors: invalid_argument (names), resource_exhausted.
Status run_attention(const AttentionConfig& config, device::Device& device,
                     const std::function<void(const AttentionRow&)>& told);

std::string to_json(const AttentionRow& row, const device::DeviceInfo& device);  // one line
std::string attention_header();
std::string to_line(const AttentionRow& row);  // of a table

}  // namespace attune::bench
