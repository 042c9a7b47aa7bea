// The contract of an attention backend. Planning is apart from running; the caller owns all memory;
// a backend keeps nothing of a batch: that is in its Plan, one per batch in flight.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention/capabilities.h"
#include "attune/status.h"
#include "device/device.h"
#include "kv/layout/layout.h"

namespace attune::attention {

// The sequences of one phase in a step, on the host; the arrays outlive the step. Sequence s owns
// query rows [q_indptr[s], q_indptr[s+1]) of the batch and its last query sits at position
// kv_len[s]-1: its query i sees keys [0, kv_len[s] - q_len + i] (causal from the end). A sequence
// may have no rows, and a row may see no key (q_len > kv_len): it gives output 0 and LSE -inf.
// What a page has beyond kv_len never matters; nobody but who declares reads_past_end reads it.
//
// For graphs (F8): a captured step reads these arrays where they were at capture; the caller keeps
// them in place, and a step of fewer sequences is padded with others: of no rows, or of one row and
// one key on a page that no request owns, whose result nobody reads.
struct Batch {
  Phase phase = Phase::kPrefill;
  Path path = Path::kPaged;
  int32_t num_seqs = 0, num_tokens = 0;
  int32_t max_q_len = 0, max_kv_len = 0;
  const int32_t* q_indptr = nullptr;     // [num_seqs + 1]
  const int32_t* kv_len = nullptr;       // [num_seqs], tokens in the cache with this step's own
  const int32_t* page_indptr = nullptr;  // [num_seqs + 1]
  const int32_t* page_slots = nullptr;   // [page_indptr[num_seqs]], device slots in order
  int32_t page_size = 0;
  // Paths that read rows: keys of sequence s are the view's rows [kv_start[s], + kv_len[s]), and
  // there are no pages. [num_seqs]
  const int32_t* kv_start = nullptr;
  // false: every query sees keys [0, kv_len), less the window's past (a chunk of a prefix).
  bool causal = true;
  bool deterministic = false;  // batch-invariant results are asked for
  // Verify with a token tree: bit j of word i says whether query i of a sequence sees its query j;
  // every query sees the whole prefix of kv_len - q_len keys. null: causal. [num_tokens] words,
  // q_len <= 64. A query's position, for windows, is its depth: prefix + (bits of its word) - 1.
  const uint64_t* tree_mask = nullptr;
  // The same arrays in device memory, where the host's are not the device's: complete before what
  // the step launches. Nulls on the CPU.
  struct Arrays {
    const int32_t *q_indptr = nullptr, *kv_len = nullptr, *page_indptr = nullptr,
                  *page_slots = nullptr, *kv_start = nullptr;
    const uint64_t* tree_mask = nullptr;
  };
  Arrays on_device;
};

// What varies by layer.
struct LayerParams {
  int32_t q_heads = 0, kv_heads = 0;
  float scale = 0;     // of q.k, usually 1/sqrt(qk_dim)
  int32_t window = 0;  // 0: all; w: a query sees the last w keys, its own included
  float soft_cap = 0;  // 0: none; c: c * tanh(s / c), before the mask
  // [q_heads] or null: a logit per head that only adds to the denominator (and so to the LSE); of
  // partial results to be merged one may have it.
  const float* sinks = nullptr;
};

// On a GPU rows of q and out begin at multiples of 16 bytes.
struct Io {
  const void* q = nullptr;  // [num_tokens, q_heads, qk_dim], token stride q_stride elements
  tensor::DType q_dtype = tensor::DType::kF32;
  int64_t q_stride = 0;
  void* out = nullptr;  // [num_tokens, q_heads, v_dim], token stride out_stride elements
  tensor::DType out_dtype = tensor::DType::kF32;
  int64_t out_stride = 0;
  // [num_tokens, q_heads], natural log of the denominator, or null.
  float* lse = nullptr;
};

// A call of run() before there is one: its pointers say only whether they will be null.
struct Call {
  LayerParams layer;
  kv::PagedKvView kv;
  Io io;
};

// The largest step a plan must serve; fixes workspace sizes once. Heads and dims are those of every
// layer; num_slots is the pool's, and bounds the page slots of every batch. For a path that reads
// rows, page_size is their number and num_slots 1 (kv::make_ragged_view).
struct Limits {
  int32_t max_seqs = 0, max_tokens = 0, max_kv_len = 0;
  int32_t q_heads = 0, kv_heads = 0, qk_dim = 0, v_dim = 0, page_size = 0, num_slots = 0,
          threads = 1;
  Tuning tuning;
  // The calls that will come, each kind once, for backends that make something for each: what such
  // a one cannot do, plan() refuses. Another call it may make ready when it comes, which takes time
  // and cannot be captured.
  std::vector<Call> calls;
};

class Plan {
 public:
  virtual ~Plan() = default;
};

// Yes, or the reasons why not.
struct Support {
  std::vector<std::string> reasons;
  bool ok() const { return reasons.empty(); }
};

// Thread-compatible; one instance per engine and backend.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const Capabilities& capabilities() const = 0;
  // Only what varies by batch; static capability is checked once, by the resolver. No batch ({})
  // asks whether it can run on this machine at all (registry.h: unavailable_on).
  virtual Support supports(const Batch& batch) const = 0;
  // Bytes of scratch that any batch within the limits needs while run() works on it. Plans whose
  // runs follow each other on one stream may share it; what a plan keeps from plan() to run() lies
  // in memory of its own, allocated by make_plan().
  virtual int64_t workspace_bytes(const Limits& limits) const = 0;
  // A plan object to be reused step after step; `workspace` has workspace_bytes(limits) bytes.
  virtual std::unique_ptr<Plan> make_plan(const Limits& limits, void* workspace) const = 0;
  // The host part, once per step, outside the layers and outside any graph. Never allocates device
  // memory. What it computes for the device it may copy on `stream`, from pinned memory of the
  // plan's that is not written again before the next call but one: two steps may be in flight.
  // Errors: check_batch's (attention/check.h); unsupported: a library has nothing for this shape,
  // so that another backend has to take the batch. The plan then serves no batch.
  virtual Status plan(const Batch& batch, Plan& plan, device::Stream& stream) const = 0;
  // The device part, once per step, recorded in the graph.
  virtual void plan_on(Plan& plan, device::Stream& stream) const = 0;
  // Launches one layer; on the CPU inside Stream::launch, and done when it returns.
  virtual void run(Plan& plan, const LayerParams& layer, const kv::PagedKvView& kv, const Io& io,
                   device::Stream& stream) const = 0;
};

}  // namespace attune::attention
