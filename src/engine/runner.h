// What runs StepPlans, as the step loop sees it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/route.h"
#include "device/device.h"
#include "engine/step_batches.h"
#include "kv/layout/layout.h"
#include "kv/transfer/transfer.h"
#include "model/decoder.h"
#include "sched/step_plan.h"

namespace attune::engine {

struct RunnerConfig {
  kv::KvGeometry geometry;
  int32_t num_slots = 0;   // device pages, the padding page included
  int32_t max_seqs = 0;    // places
  int32_t max_tokens = 0;  // of one step
  int32_t max_model_len = 0;
  attention::MlaPolicy mla_policy;          // of MLA models
  tensor::DType act = tensor::DType::kF32;  // of queries and attention outputs
  attention::Tuning tuning;
  bool deterministic = false;
  int32_t max_graph_size = 0;  // GPU: decode sequences of the largest CUDA graph; 0: none
};

// What the step loop asks of it. Called on the engine's thread.
class Runner {
 public:
  static constexpr int kInFlight = 2;
  virtual ~Runner() = default;
  // The result is complete once the stream's work so far is done (Stream::notify). At most
  // kInFlight steps may be launched and not done. Errors are of this step, nothing of which will
  // run: no backend serves one of its batches, or has no memory for it. What fails while it runs is
  // an error of its result's rows.
  // `loads`: what the plan has loaded, null if nothing.
  virtual Result<std::shared_ptr<sched::StepResult>> launch(
      sched::StepPlan plan, std::shared_ptr<kv::LayerGate> loads) = 0;
  // The device pool, one view per layer.
  virtual std::span<const kv::PagedKvView> kv() const = 0;
  // `transfer` copies beside the steps, but waits while a step of one of these backends runs, which
  // do not tolerate it (H5).
  void hold_copies(kv::Transfer* transfer, std::vector<std::string> beside) {
    copies_ = transfer;
    held_beside_ = std::move(beside);
  }
  uint64_t held_steps() const { return held_steps_; }

 protected:
  // Around what a step gives to the stream.
  class Hold {
   public:
    Hold(Runner& runner, const StepBatches& batches)
        : copies_(batches.runs_any_of(runner.held_beside_) ? runner.copies_ : nullptr) {
      if (!copies_) return;
      copies_->hold();
      ++runner.held_steps_;
    }
    ~Hold() {
      if (copies_) copies_->resume();
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    kv::Transfer* copies_;
  };

 private:
  kv::Transfer* copies_ = nullptr;
  std::vector<std::string> held_beside_;
  std::atomic<uint64_t> held_steps_{0};
};

// What a forward pass waits for before each layer, if for anything.
inline std::function<void(int32_t)> before_layer(const std::shared_ptr<kv::LayerGate>& loads,
                                                 device::Stream& stream) {
  if (!loads) return {};
  return [loads, &stream](int32_t layer) { loads->wait(layer, stream); };
}

// Ids that a request cannot draw before its min_new_tokens: the model's ends and its own stops.
inline std::vector<TokenId> early_stops(const formats::ModelConfig& model,
                                        const SamplingParams& sampling) {
  if (sampling.min_new_tokens <= 0) return {};
  std::vector<TokenId> ids = model.eos_token_ids;
  ids.insert(ids.end(), sampling.stop_token_ids.begin(), sampling.stop_token_ids.end());
  return ids;
}
// Of a step, over pages and over rows (MLA's).
std::array<attention::Limits, 2> attention_limits(const RunnerConfig& config,
                                                  const formats::ModelConfig& model, int threads);
// Positions of the prompt whose ids' log-probabilities a row gives (StepRow::prompt_logprob_start).
struct PromptRange {
  int32_t begin = 0, end = 0;
};
inline PromptRange prompt_range(const sched::StepRow& row) {
  return {std::max(row.prompt_logprob_start, row.start + 1),
          row.start + row.num_tokens + (row.next_token >= 0 ? 1 : 0)};
}
inline constexpr char kNotFinite[] =
    "the model's logits are not finite: the weights or the KV cache hold NaN or Inf";

}  // namespace attune::engine
