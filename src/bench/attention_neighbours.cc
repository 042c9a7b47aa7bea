#include "bench/attention_neighbours.h"

#include <algorithm>
#include <random>

#include "tensor/half.h"

namespace attune::bench {
namespace {

using tensor::DType;

constexpr int64_t kBeyondL2 = 128 << 20;
// DeepSeek's: the rotated part of a query, a whole one, and a head's values.
constexpr int32_t kMlaRope = 64, kMlaQuery = 192, kMlaValue = 128;

struct Product {
  int32_t n, k, count;
};

Product product_of(const AttentionHeads& h) {
  if (h.mla) return {kMlaValue, h.v_dim, h.q};
  return {h.q * h.v_dim, h.q * h.v_dim, 1};
}

// Small, so that sums stay finite however often they are added to.
std::vector<uint16_t> random_bf16(int64_t count) {
  std::mt19937 random(3);
  std::vector<uint16_t> values(std::min<int64_t>(count, 1 << 20));
  for (uint16_t& v : values)
    v = tensor::f32_to_bf16((float(random() >> 8) * 0x1p-23f - 1) * 0x1p-8f);
  values.resize(count);
  for (int64_t at = 1 << 20; at < count; at *= 2)
    std::copy_n(values.begin(), std::min(at, count - at), values.begin() + at);
  return values;
}

}  // namespace

Result<OutputWeights> OutputWeights::create(const AttentionHeads& heads, device::Device& device,
                                            device::Stream& stream) {
  const Product p = product_of(heads);
  const int64_t elems = int64_t{p.n} * p.k, bytes = 2 * elems * p.count;
  const std::vector<uint16_t> values = random_bf16(elems);
  const tensor::TensorView view{values.data(), DType::kBF16, tensor::Shape{p.n, p.k}};
  OutputWeights out;
  out.copies.resize(std::max<int64_t>(2, (kBeyondL2 + bytes - 1) / bytes));
  for (auto& copy : out.copies)
    for (int32_t i = 0; i < p.count; ++i) {
      ATTUNE_ASSIGN_OR_RETURN(ops::PackedWeight weight,
                              ops::pack_weight({view}, DType::kBF16, device, stream));
      copy.push_back(std::move(weight));
    }
  return out;
}

Result<std::unique_ptr<Neighbours>> Neighbours::create(const AttentionCase& what,
                                                       const std::vector<int64_t>& slots,
                                                       const OutputWeights& weights,
                                                       device::Device& device,
                                                       device::Stream& stream) {
  std::unique_ptr<Neighbours> n(
      new Neighbours(what, weights, ops::op_table(device.info()), stream));
  const AttentionHeads& h = what.heads;
  const int64_t rows = what.seqs;
  const int64_t half = (h.mla ? kMlaRope : h.qk_dim) / 2;
  const int64_t input_bytes =
      h.mla ? rows * h.q * kMlaQuery * 4 : rows * (h.q + 2 * h.kv) * h.qk_dim * 2;
  ATTUNE_ASSIGN_OR_RETURN(n->inputs_, device.allocate(input_bytes, "what comes before"));
  ATTUNE_ASSIGN_OR_RETURN(n->cos_, device.allocate(rows * half * 4, "cosines"));
  ATTUNE_ASSIGN_OR_RETURN(n->sin_, device.allocate(rows * half * 4, "sines"));
  ATTUNE_ASSIGN_OR_RETURN(n->slots_, device.allocate(rows * 8, "slots"));
  const Product p = product_of(h);
  ATTUNE_ASSIGN_OR_RETURN(n->y_, device.allocate(rows * p.n * p.count * 4, "what comes after"));
  std::mt19937 random(4);
  std::uniform_real_distribution<float> uniform(-1, 1);
  const std::vector<float> ones(rows * half, 1.0f);
  stream.copy(n->cos_.data(), ones.data(), n->cos_.bytes());
  std::vector<float> wide(h.mla ? input_bytes / 4 : 0);
  std::vector<uint16_t> narrow(h.mla ? 0 : input_bytes / 2);
  for (float& v : wide) v = uniform(random);
  for (uint16_t& v : narrow) v = tensor::f32_to_bf16(uniform(random));
  stream.copy(n->inputs_.data(), h.mla ? static_cast<const void*>(wide.data()) : narrow.data(),
              input_bytes);
  stream.copy(n->slots_.data(), slots.data(), rows * 8);
  stream.synchronize();
  ATTUNE_RETURN_IF_ERROR(stream.status());
  return n;
}

void Neighbours::before(const kv::PagedKvView& kv, void* q) const {
  const AttentionHeads& h = case_.heads;
  if (h.mla) {
    ops_.rope({.x = inputs_.as<float>() + kMlaQuery - kMlaRope,
               .ldx = int64_t{h.q} * kMlaQuery,
               .head_stride = kMlaQuery,
               .tokens = case_.seqs,
               .heads = h.q,
               .rot_dim = kMlaRope,
               .style = ops::RopeStyle::kHalf,
               .cos = cos_.as<float>(),
               .sin = sin_.as<float>(),
               .out = static_cast<char*>(q) + 2 * h.v_dim,
               .out_dtype = DType::kBF16,
               .ldo = int64_t{h.q} * h.qk_dim,
               .out_head_stride = h.qk_dim},
              stream_);
    return;
  }
  ops_.rope_append({.qkv = inputs_.data(),
                    .dtype = DType::kBF16,
                    .ldqkv = int64_t{h.q + 2 * h.kv} * h.qk_dim,
                    .tokens = case_.seqs,
                    .q_heads = h.q,
                    .kv_heads = h.kv,
                    .head_dim = h.qk_dim,
                    .rot_dim = h.qk_dim,
                    .style = ops::RopeStyle::kHalf,
                    .cos = cos_.as<float>(),
                    .sin = sin_.as<float>(),
                    .q_norm = nullptr,
                    .k_norm = nullptr,
                    .norm_eps = 0,
                    .q_out = q,
                    .slot_mapping = slots_.as<int64_t>(),
                    .kv_base = kv.base,
                    .kv_dtype = kv.dtype,
                    .page_stride = kv.page_stride,
                    .head_stride = kv.k_head_stride,
                    .token_stride = kv.k_token_stride,
                    .v_offset = kv.v_offset,
                    .page_size = kv.page_size},
                   stream_);
}

void Neighbours::after(const void* out, int i) const {
  const Product p = product_of(case_.heads);
  items_.clear();
  for (int32_t head = 0; head < p.count; ++head)
    items_.push_back({.x = static_cast<const char*>(out) + int64_t{2} * head * p.k,
                      .x_dtype = DType::kBF16,
                      .ldx = int64_t{p.count} * p.k,
                      .m = case_.seqs,
                      .weight = &weights_.copies[i % weights_.copies.size()][head],
                      .bias = nullptr,
                      .y = y_.as<float>() + int64_t{head} * p.n,
                      .y_dtype = DType::kF32,
                      .ldy = int64_t{p.count} * p.n,
                      .accumulate = !case_.heads.mla,  // MHA's is the residual stream
                      .deterministic = false});
  if (p.count == 1) {
    ops_.linear(items_[0], stream_);
  } else {
    ops_.linear_group(items_.data(), p.count, stream_);
  }
}

}  // namespace attune::bench
