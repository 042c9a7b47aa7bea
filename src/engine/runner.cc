#include "engine/runner.h"

#include <algorithm>

#include "model/geometry.h"

namespace attune::engine {

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
  return {limits(model::paged_shape(model), config.geometry.page_size, config.num_slots),
          limits(model::rows_shape(model),
                 std::max<int64_t>(config.max_tokens, config.mla_policy.capacity), 1)};
}

}  // namespace attune::engine
