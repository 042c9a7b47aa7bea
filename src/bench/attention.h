// `attune bench attention`: every backend that can run here over a grid of shapes. Each case is
// repeated over pools that no cache holds together, as a graph; beside it stands a bulk read of the
// same bytes, timed in the same way: what the memory allows.
//
// On a GPU a call is timed in one of two ways (Timing). In a step: a chain of decode calls between
// their neighbours (bench/attention_neighbours.h), less the same chain without them, so that a
// kernel which cannot overlap the others has that counted: what a model pays. Alone: a chain of the
// calls and nothing else: how good the kernels are, and what others publish. In both a device plan
// is made anew for each 32 calls, as a model of 32 layers does. Calls follow each other under
// programmatic dependent launch (but for --pdl=false), the bulk reads too, so a start may hide
// behind the end of the call before. Only decode is timed in a step: of the others the neighbours'
// ends are little.
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
  int32_t page_size = 16;                   // 0: dense rows, MLA's path `ragged`
  tensor::DType kv_dtype = tensor::DType::kBF16;
  bool tree = false;  // verify: the q_len tokens are a binary tree, else a chain

  bool dense_rows() const { return page_size == 0; }
};

enum class Timing : uint8_t { kStep, kAlone };

struct AttentionConfig {
  std::vector<std::string> backends;  // empty: all that can run here, but the oracle
  std::vector<std::string> phases;    // "decode", "prefill", "verify"; empty: all
  std::vector<std::string> cases;     // what the names of cases have in them; empty: all
  std::vector<int32_t> page_sizes = {16, 64};
  std::vector<std::string> kv_dtypes;  // empty: the device's usual one, and some of FP8
  bool mla = true;                     // MLA's shapes too
  bool alone = false;                  // GPU: decode alone, not in a step
  int32_t repeats = 5;                 // medians are told
  bool pdl = true;                     // GPU: dependent launch
  attention::Tuning tuning;            // who does not take what it names is not measured
};

struct AttentionRow {
  AttentionCase what;
  Timing timing = Timing::kAlone;
  std::string backend;
  double seconds = 0;       // of one layer, see above
  double read_seconds = 0;  // of a bulk read of the same bytes
  int64_t kv_bytes = 0;     // that one layer's call must read
  double flops = 0;
  std::string refused;  // why it cannot; then nothing was timed
};

// "decode 32/8 128/128 64x4096": phase, heads, their sizes, the batch: sequences x new tokens +
// those cached; of one new token, sequences x all tokens, "1.." before a bound.
std::string shape_name(const AttentionCase& c);
// "decode 32/8 128/128 64x4096 page 64 bfloat16": and pages ("rows": dense ones), the cache's type,
// "tree".
std::string case_name(const AttentionCase& c);

// The grid: shapes of well-known models, from one short sequence to batches that fill the device;
// of it what the config asks for. Errors: invalid_argument: a name that is none, or nothing left.
Result<std::vector<AttentionCase>> attention_grid(const AttentionConfig& config,
                                                  const device::DeviceInfo& device);
// Whether the case is of a kind (MHA, MLA) that the backend has.
bool serves_kind(const attention::Capabilities& c, const AttentionCase& a);
// Why a backend of the case's kind is not asked for it here; empty: it is.
std::string why_not(const attention::Capabilities& c, const AttentionCase& a,
                    const device::DeviceInfo& info);

// `told` hears each row as it is done; of backends of the other kind (MHA, MLA) there is none.
// Errors: attention_grid's; invalid_argument, unsupported: a backend that is none, or not here;
// resource_exhausted.
Status run_attention(const AttentionConfig& config, device::Device& device,
                     const std::function<void(const AttentionRow&)>& told);

}  // namespace attune::bench
