#include "engine/runner.h"

#include <algorithm>

#include "model/geometry.h"

namespace attune::engine {
namespace {

// As model/mha.cc makes them: layers differ in their windows alone.
std::vector<attention::Call> paged_calls(const RunnerConfig& config,
                                         const formats::ModelConfig& m) {
  std::vector<int32_t> windows = m.windows;
  if (windows.empty()) windows = {0};
  std::sort(windows.begin(), windows.end());
  windows.erase(std::unique(windows.begin(), windows.end()), windows.end());
  std::vector<attention::Call> calls;
  for (int32_t window : windows)
    calls.push_back({.layer = {.q_heads = m.num_heads,
                               .kv_heads = m.num_kv_heads,
                               .scale = static_cast<float>(m.attention_scale),
                               .window = window,
                               .soft_cap = static_cast<float>(m.attn_logit_softcap)},
                     .kv = kv::make_view(config.geometry, nullptr, config.num_slots),
                     .io = {.q_dtype = config.act,
                            .q_stride = int64_t{m.num_heads} * m.head_dim,
                            .out_dtype = config.act,
                            .out_stride = int64_t{m.num_heads} * m.v_head_dim}});
  return calls;
}

}  // namespace

std::array<attention::Limits, 2> attention_limits(const RunnerConfig& config,
                                                  const formats::ModelConfig& model, int threads) {
  const auto limits = [&](const model::AttentionShape& shape, int64_t page_size, int32_t slots) {
    return attention::Limits{.max_seqs = config.max_seqs,
                             .max_tokens = config.max_tokens,
                             .max_kv_len = config.max_model_len,
                             .q_heads = shape.q_heads,
                             .kv_heads = shape.kv_heads,
                             .qk_dim = shape.qk_dim,
                             .v_dim = shape.v_dim,
                             .page_size = static_cast<int32_t>(page_size),
                             .num_slots = slots,
                             .threads = threads,
                             .tuning = config.tuning};
  };
  attention::Limits pages =
      limits(model::paged_shape(model), config.geometry.page_size, config.num_slots);
  if (!model.has_mla()) pages.calls = paged_calls(config, model);
  return {pages, limits(model::rows_shape(model),
                        std::max<int64_t>(config.max_tokens, config.mla_policy.capacity), 1)};
}

}  // namespace attune::engine
