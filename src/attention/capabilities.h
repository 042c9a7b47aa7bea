// What an attention backend can do, as plain, printable data. The resolver reads nothing else of a
// backend.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace attune::attention {

enum class Phase : uint8_t { kPrefill, kDecode, kVerify, kDraftExtend };
inline constexpr int kNumPhases = 4;
const char* phase_name(Phase phase);  // "prefill", "decode", "verify", "draft_extend"

enum class Arch : uint8_t { kCpu, kSm80, kSm89, kSm90, kSm100 };
enum class AttentionKind : uint8_t { kMha /* and GQA, MQA */, kMla };

struct HeadDims {
  int32_t qk = 0, v = 0;
  bool operator==(const HeadDims&) const = default;
};

struct Capabilities {
  std::string name;  // "cpu", "reference", "fa3", ...
  std::vector<Arch> archs;
  std::vector<AttentionKind> kinds;
  std::vector<Phase> phases;
  std::vector<HeadDims> head_dims;  // empty: any up to max_head_dim
  int32_t max_head_dim = 0;
  int32_t max_gqa_group = 0;  // query heads per KV head; 0: any
  std::vector<tensor::DType> q_dtypes, kv_dtypes;
  std::vector<int32_t> page_sizes;  // empty: any
  bool causal = true, window = false, soft_cap = false, sinks = false, tree_mask = false,
       lse_out = false;
  bool graph_safe = true;
  bool batch_invariant =
      false;  // a row's bits do not depend on its batch mates, chunking or page size
  bool tolerates_host_copies = false;  // SM-side copies to host memory may run beside it
};

}  // namespace attune::attention
