#include "formats/fingerprint.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <vector>

#include "base/thread_pool.h"

namespace attune::formats {
namespace {

using tensor::TensorView;

// Tensors are hashed in pieces of this size, so that one tensor keeps every thread busy.
constexpr int64_t kPiece = 4 << 20;

// Fields with their lengths, so that no bytes of one can pass for another's.
class Fields {
 public:
  Fields() { XXH3_128bits_reset(&state_); }
  void add(std::string_view text) { add_bytes(text.data(), text.size()); }
  template <typename T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void add(T value) {
    uint64_t bits = 0;
    if constexpr (std::is_floating_point_v<T>) {
      const double wide = value;
      std::memcpy(&bits, &wide, sizeof bits);
    } else {
      bits = static_cast<uint64_t>(static_cast<int64_t>(value));
    }
    add_number(bits);
  }
  template <typename T>
  void add(const std::vector<T>& list) {
    add_number(list.size());
    for (const T item : list) add(item);
  }
  template <typename... Ts>
  requires(sizeof...(Ts) > 1) void add(const Ts&... fields) { (add(fields), ...); }
  XXH128_canonical_t digest() const {
    XXH128_canonical_t out;
    XXH128_canonicalFromHash(&out, XXH3_128bits_digest(&state_));
    return out;
  }

 private:
  void add_number(uint64_t value) {
    std::array<uint8_t, 8> le;
    for (size_t i = 0; i < 8; ++i) le[i] = static_cast<uint8_t>(value >> (8 * i));
    XXH3_128bits_update(&state_, le.data(), le.size());
  }
  void add_bytes(const void* data, size_t bytes) {
    add_number(bytes);
    XXH3_128bits_update(&state_, data, bytes);
  }

  XXH3_state_t state_;
};

// The bindings name every member, so that a new one does not compile until it is here.
void add_rope(const RopeConfig& rope, Fields& out) {
  const auto& [theta, dim, style, scaling, factor, original_max, low, high, beta_fast, beta_slow,
               truncate, attention_factor, freq_factors] = rope;
  out.add(theta, dim, style, scaling, factor, original_max, low, high, beta_fast, beta_slow,
          truncate, attention_factor, freq_factors);
}

void add_mla(const MlaConfig& mla, Fields& out) {
  const auto& [kv_lora_rank, q_lora_rank, nope_dim, split_kv_b] = mla;
  out.add(kv_lora_rank, q_lora_rank, nope_dim, split_kv_b);
}

void add_moe(const MoeConfig& moe, Fields& out) {
  const auto& [num_experts, layers, experts_per_token, intermediate, shared_experts, sigmoid,
               correction_bias, num_groups, groups_per_token, group_top2, normalize, routed_scale] =
      moe;
  out.add(num_experts, layers, experts_per_token, intermediate, shared_experts, sigmoid,
          correction_bias, num_groups, groups_per_token, group_top2, normalize, routed_scale);
}

// What decides keys and values. Not: how long a text may be, where it ends, how tokens are drawn,
// and layers that are not read.
void add_config(const ModelConfig& config, Fields& out) {
  const auto& [architecture, vocab, hidden, intermediate, layers, heads, kv_heads, head_dim,
               v_head_dim, eps, act, mla, moe, nextn_layers, rope, windows, max_positions,
               max_model_len, qkv_bias, o_bias, mlp_bias, qk_norm, tied, attention_scale,
               attn_softcap, final_softcap, bos, pad, eos, sampling, dtype, initializer_range] =
      config;
  out.add(architecture, vocab, hidden, intermediate, layers, heads, kv_heads, head_dim, v_head_dim,
          eps, act);
  add_mla(mla, out);
  add_moe(moe, out);
  add_rope(rope, out);
  out.add(windows, max_positions, qkv_bias, o_bias, mlp_bias, qk_norm, tied, attention_scale,
          attn_softcap, final_softcap, dtype, initializer_range);
}

// The digest of each piece of each tensor, in order.
std::vector<XXH128_canonical_t> hash_pieces(const std::vector<TensorView>& views, int threads) {
  struct Piece {
    const char* data;
    size_t bytes;
  };
  std::vector<Piece> pieces;
  for (const TensorView& view : views)
    for (int64_t at = 0; at < view.bytes(); at += kPiece)
      pieces.push_back({static_cast<const char*>(view.data) + at,
                        static_cast<size_t>(std::min(kPiece, view.bytes() - at))});
  std::vector<XXH128_canonical_t> digests(pieces.size());
  base::ThreadPool pool(std::max(1, threads));
  pool.parallel_for(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
      XXH128_canonicalFromHash(&digests[i], XXH3_128bits(pieces[i].data, pieces[i].bytes));
  });
  return digests;
}

void add_weights(const WeightSource& weights, int threads, Fields& out) {
  std::vector<TensorView> views;
  for (const std::string& name : weights.names()) {
    views.push_back(*weights.find(name));
    const TensorView& view = views.back();
    out.add(name, std::string_view(tensor::dtype_name(view.dtype)));
    out.add(std::vector<int64_t>(view.shape.dims, view.shape.dims + view.shape.rank));
  }
  for (const XXH128_canonical_t& digest : hash_pieces(views, threads))
    out.add(std::string_view(reinterpret_cast<const char*>(digest.digest), sizeof digest.digest));
}

}  // namespace

Result<std::string> model_fingerprint(const LoadedModel& model, int threads) {
  Fields fields;
  fields.add(std::string_view("attune model 1"));
  add_config(model.config, fields);
  if (const auto seed = model.weights->seed())
    fields.add(std::string_view("dummy"), *seed);
  else
    add_weights(*model.weights, threads, fields);
  ATTUNE_RETURN_IF_ERROR(model.weights->check_intact());
  std::string hex;
  for (const uint8_t byte : fields.digest().digest) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

}  // namespace attune::formats
