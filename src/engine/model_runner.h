// Runs StepPlans on the CPU: turns a plan into the arrays that kernels read, routes its batches to
// attention backends, launches the layers and the sampling, and fills a StepResult. It knows
// nothing of queues, prefixes or clients. Called on the engine's thread; the work runs on the
// device's stream.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "attention/route.h"
#include "device/device.h"
#include "engine/kv_pool.h"
#include "engine/runner.h"
#include "engine/step_batches.h"
#include "kv/layout/layout.h"
#include "model/decoder.h"
#include "ops/sample/sample.h"
#include "sched/step_plan.h"

namespace attune::engine {

class ModelRunner final : public Runner {
 public:
  static Result<std::unique_ptr<ModelRunner>> create(const RunnerConfig& config,
                                                     std::unique_ptr<model::Decoder> decoder,
                                                     attention::Router& router,
                                                     device::Device& device,
                                                     device::Stream& stream);
  ~ModelRunner() override;

  Result<std::shared_ptr<sched::StepResult>> launch(sched::StepPlan plan,
                                                    std::shared_ptr<kv::LayerGate> loads) override;
  std::span<const kv::PagedKvView> kv() const override { return kv_pool_.views; }

 private:
  // What a sequence keeps on the device between steps.
  struct Place {
    RequestId request = 0;
    SamplingParams sampling;
    TokenId last_token = -1;
    int32_t output_tokens = 0;
    bool penalised = false;
    std::vector<TokenId> forbidden_early;  // before min_new_tokens: end-of-sequence and stop ids
    std::vector<ops::TokenCount> counts;
    std::unordered_map<TokenId, int32_t> count_index;
    void count(TokenId token, bool output);
  };

  ModelRunner() = default;
  void execute(const sched::StepPlan& plan, StepBatches& batches,
               const std::shared_ptr<kv::LayerGate>& loads, sched::StepResult& result);
  void fail(const sched::StepPlan& plan, const std::string& error, sched::StepResult& result);
  void admit(const sched::Admission& admission);
  void sample_rows(const sched::StepPlan& plan, const std::vector<int32_t>& last_tokens,
                   sched::StepResult& result);
  void sample_one(const sched::StepRow& row, float* logits, ops::Sampler& sampler,
                  sched::RowResult& out);
  void prompt_logprobs(const sched::StepRow& row, int32_t first_token, sched::RowResult& out);

  RunnerConfig config_;
  std::unique_ptr<model::Decoder> decoder_;
  attention::Router* router_ = nullptr;
  device::Device* device_ = nullptr;
  device::Stream* stream_ = nullptr;
  KvPool kv_pool_;
  device::Buffer logits_;  // [max_logit_rows, vocab]
  std::vector<Place> places_;
  std::vector<ops::Sampler> samplers_;  // one per worker
  std::optional<PlanMaker> plan_maker_;
  std::vector<StepBatches> batches_;  // [kInFlight], by the step's number
};

}  // namespace attune::engine
