#include "attention/backends/reference/reference_backend.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/backends/reference/reference_cuda.h"
#include "attention/check.h"
#include "base/check.h"
#include "tensor/half.h"

namespace attune::attention::reference {
namespace {

using tensor::DType;

float read(const void* base, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(base)[i];
    case DType::kBF16:
      return tensor::bf16_to_f32(static_cast<const uint16_t*>(base)[i]);
    case DType::kF16:
      return tensor::f16_to_f32(static_cast<const uint16_t*>(base)[i]);
    case DType::kF8E4M3:
      return tensor::f8e4m3_to_f32(static_cast<const uint8_t*>(base)[i]);
    case DType::kF8E5M2:
      return tensor::f8e5m2_to_f32(static_cast<const uint8_t*>(base)[i]);
    default:
      ATTUNE_CHECK(!"a dtype that the capabilities name");
  }
}

// n elements from element `at` on.
std::vector<float> read_row(const void* base, DType dtype, int64_t at, int32_t n) {
  std::vector<float> row(n);
  for (int32_t d = 0; d < n; ++d) row[d] = read(base, dtype, at + d);
  return row;
}

void write(void* base, DType dtype, int64_t i, float value) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(base)[i] = value;
      return;
    case DType::kBF16:
      static_cast<uint16_t*>(base)[i] = tensor::f32_to_bf16(value);
      return;
    case DType::kF16:
      static_cast<uint16_t*>(base)[i] = tensor::f32_to_f16(value);
      return;
    default:
      ATTUNE_CHECK(!"an output dtype that the capabilities name");
  }
}

struct ReferencePlan final : Plan {
  Limits limits;
  Batch batch;
};

// One layer of one batch.
struct Job {
  const Batch& batch;
  const LayerParams& layer;
  const kv::PagedKvView& kv;
  const Io& io;

  // Query i of sequence s stands at this key position; in a token tree at its depth.
  int64_t position(int32_t s, int32_t i) const {
    const int64_t prefix = batch.kv_len[s] - q_len(s);
    if (!batch.tree_mask) return prefix + i;
    return prefix + std::popcount(batch.tree_mask[batch.q_indptr[s] + i]) - 1;
  }
  int32_t q_len(int32_t s) const { return batch.q_indptr[s + 1] - batch.q_indptr[s]; }

  bool visible(int32_t s, int32_t i, int32_t key) const {
    const int64_t prefix = batch.kv_len[s] - q_len(s);
    const bool in_tree = batch.tree_mask && key >= prefix;
    const int64_t key_position =
        in_tree ? position(s, static_cast<int32_t>(key - prefix)) : int64_t{key};
    if (layer.window > 0 && position(s, i) - key_position >= layer.window) return false;
    if (!batch.causal) return true;
    if (in_tree) return (batch.tree_mask[batch.q_indptr[s] + i] >> (key - prefix)) & 1;
    return key_position <= position(s, i);
  }

  // Byte address of token `key` of a sequence inside K (or V, by its offset and strides).
  const char* at(int32_t s, int32_t key, int64_t head_bytes, int64_t token_stride) const {
    const char* base = static_cast<const char*>(kv.base) + head_bytes;
    if (reads_rows(batch.path)) return base + (int64_t{batch.kv_start[s]} + key) * token_stride;
    const int32_t page = key / kv.page_size, offset = key % kv.page_size;
    const int64_t slot = batch.page_slots[batch.page_indptr[s] + page];
    return base + slot * kv.page_stride + int64_t{offset} * token_stride;
  }

  // Of one query head's row with one key.
  double score(const std::vector<float>& q, int32_t s, int32_t h, int32_t key) const {
    const int32_t kv_head = h / (layer.q_heads / layer.kv_heads);
    const char* at_key = at(s, key, kv_head * kv.k_head_stride, kv.k_token_stride);
    const std::vector<float> k = read_row(at_key, kv.dtype, 0, kv.k_dim);
    double dot = 0;
    for (int32_t d = 0; d < kv.k_dim; ++d) dot += double(q[d]) * k[d];
    dot *= layer.scale;
    if (layer.soft_cap > 0) dot = layer.soft_cap * std::tanh(dot / layer.soft_cap);
    return dot;
  }

  void row(int32_t s, int32_t i, int32_t h) const {
    const int32_t token = batch.q_indptr[s] + i;
    const double inf = std::numeric_limits<double>::infinity();
    const std::vector<float> q =
        read_row(io.q, io.q_dtype, token * io.q_stride + int64_t{h} * kv.k_dim, kv.k_dim);
    std::vector<int32_t> keys;
    std::vector<double> scores;
    double top = layer.sinks ? double(layer.sinks[h]) : -inf;
    for (int32_t key = 0; key < batch.kv_len[s]; ++key) {
      if (!visible(s, i, key)) continue;
      keys.push_back(key);
      scores.push_back(score(q, s, h, key));
      top = scores.back() > top ? scores.back() : top;
    }
    double sum = layer.sinks && top != -inf ? std::exp(layer.sinks[h] - top) : 0;
    std::vector<double> out(kv.v_dim, 0.0);
    const int32_t kv_head = h / (layer.q_heads / layer.kv_heads);
    for (size_t n = 0; n < keys.size(); ++n) {
      const char* at_key =
          at(s, keys[n], kv.v_offset + kv_head * kv.v_head_stride, kv.v_token_stride);
      const std::vector<float> v = read_row(at_key, kv.dtype, 0, kv.v_dim);
      const double weight = std::exp(scores[n] - top);
      sum += weight;
      for (int32_t d = 0; d < kv.v_dim; ++d) out[d] += weight * v[d];
    }
    const int64_t to = token * io.out_stride + int64_t{h} * kv.v_dim;
    for (int32_t d = 0; d < kv.v_dim; ++d)
      write(io.out, io.out_dtype, to + d, sum == 0 ? 0.0f : float(out[d] / sum));
    if (io.lse)
      io.lse[int64_t{token} * layer.q_heads + h] = float(sum == 0 ? -inf : top + std::log(sum));
  }
};

class ReferenceBackend final : public Backend {
 public:
  explicit ReferenceBackend(device::Kind kind) : kind_(kind) {}
  const Capabilities& capabilities() const override { return capabilities_; }
  Support supports(const Batch&) const override { return {}; }
  int64_t workspace_bytes(const Limits&) const override { return 0; }
  std::unique_ptr<Plan> make_plan(const Limits& limits, void*) const override {
    auto plan = std::make_unique<ReferencePlan>();
    plan->limits = limits;
    return plan;
  }
  Status plan(const Batch& batch, Plan& plan, device::Stream&) const override {
    auto& p = static_cast<ReferencePlan&>(plan);
    p.batch = {};
    ATTUNE_RETURN_IF_ERROR(check_batch(batch, p.limits));
    if (kind_ == device::Kind::kCuda) ATTUNE_RETURN_IF_ERROR(check_on_device(batch));
    p.batch = batch;
    return {};
  }
  void plan_on(Plan&, device::Stream&) const override {}
  void run(Plan& plan, const LayerParams& layer, const kv::PagedKvView& kv, const Io& io,
           device::Stream& stream) const override {
    const Batch& batch = static_cast<ReferencePlan&>(plan).batch;
    ATTUNE_CHECK(layer.kv_heads > 0 && layer.q_heads % layer.kv_heads == 0);
    if (kind_ == device::Kind::kCuda) return run_on_gpu(batch, layer, kv, io, stream);
    const Job job{batch, layer, kv, io};
    for (int32_t s = 0; s < batch.num_seqs; ++s) {
      const int64_t rows = int64_t{job.q_len(s)} * layer.q_heads;
      stream.pool().parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
          job.row(s, static_cast<int32_t>(r / layer.q_heads),
                  static_cast<int32_t>(r % layer.q_heads));
      });
    }
  }

 private:
  const device::Kind kind_;
  const Capabilities capabilities_ = reference::capabilities();
};

}  // namespace

Capabilities capabilities() {
  Capabilities c;
  c.name = "reference";
  c.archs = {Arch::kCpu, Arch::kSm80, Arch::kSm89, Arch::kSm90, Arch::kSm100};
  c.kinds = {AttentionKind::kMha, AttentionKind::kMla};
  c.extend_paths = {Path::kRagged, Path::kOneShot, Path::kChunked, Path::kAbsorbed};
  c.phases = {Phase::kPrefill, Phase::kDecode, Phase::kVerify, Phase::kDraftExtend};
  c.max_head_dim = 1024;
  c.q_dtypes = {DType::kF32, DType::kBF16, DType::kF16};
  c.kv_dtypes = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2};
  c.window = c.soft_cap = c.sinks = c.tree_mask = c.lse_out = true;
  c.batch_invariant = true;
  c.tolerates_host_copies = true;
  c.oracle = true;
  return c;
}

std::unique_ptr<Backend> create(device::Kind kind) {
  return std::make_unique<ReferenceBackend>(kind);
}

}  // namespace attune::attention::reference
