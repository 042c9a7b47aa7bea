// Runs StepPlans on a GPU without ever waiting for it: a step's arrays go up by one copy, sampled
// tokens feed the next step on the device, results come down by one copy and are read once the
// step is done. Steps of decode rows alone replay a CUDA graph of their size. Engine's thread.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/kv_pool.h"
#include "engine/runner.h"
#include "engine/staging.h"
#include "engine/step_batches.h"
#include "ops/sample/device_sampler.h"

namespace attune::engine {

class CudaRunner final : public Runner {
 public:
  // Errors: resource_exhausted; unsupported without a GPU.
  static Result<std::unique_ptr<CudaRunner>> create(const RunnerConfig& config,
                                                    std::unique_ptr<model::Decoder> decoder,
                                                    attention::Router& router,
                                                    device::Device& device, device::Stream& stream);
  ~CudaRunner() override;
  Result<std::shared_ptr<sched::StepResult>> launch(sched::StepPlan plan,
                                                    std::shared_ptr<kv::LayerGate> loads) override;
  std::span<const kv::PagedKvView> kv() const override { return kv_pool_.views; }

 private:
  // What the host reads of one step in flight.
  struct Lane {
    device::Buffer sampled;  // pinned [max rows]
    device::Buffer prompt;   // pinned, grown to what prompts asked for
    struct Row {
      int32_t sampled = -1;  // in `sampled`; -1: none
      int32_t prompt = -1;   // its first in `prompt`; -1: none
      int32_t top = 0;       // how many of a position's likeliest the request wants
      std::string error;     // why it was refused
    };
    std::vector<Row> rows;  // of the plan
  };
  // What the host knows of a place.
  struct Place {
    int32_t top_logprobs = -1;
    std::string error;  // the device has no room for what it asks
  };
  // A step's arrays on the device.
  struct Arrays {
    int32_t num_tokens = 0, num_samples = 0, num_prompt = 0;
    const int32_t *ids = nullptr, *positions = nullptr;
    const int64_t* slot_mapping = nullptr;
    // Of the rows that draw: their last token, place, and the position of the token to draw.
    const int32_t *last_tokens = nullptr, *places = nullptr, *draw_positions = nullptr;
    // Tokens whose logits give a prompt id's log-probability, and that id.
    const int32_t *prompt_tokens = nullptr, *prompt_ids = nullptr;
  };
  // Decode steps of one size and backend.
  struct Captured {
    std::unique_ptr<device::Graph> graph;
    int64_t steps = 0;
    bool failed = false;
  };

  CudaRunner() = default;
  void admit(const sched::Admission& admission);
  // Sequences that a decode step is filled up to; 0: it is launched as it is.
  int32_t graph_size(const sched::StepPlan& plan) const;
  Arrays stage(const sched::StepPlan& plan, int32_t size, Lane& lane);
  void run(const Arrays& arrays, Lane& lane, const std::shared_ptr<kv::LayerGate>& loads = nullptr);
  void run_graph(int32_t size, const Arrays& arrays, Lane& lane);
  void capture(int32_t size, const Arrays& arrays, Lane& lane, Captured& to);
  void prompt_logprobs(const Arrays& arrays, Lane& lane);
  void read(const sched::StepPlan& plan, const Lane& lane, sched::StepResult& result) const;

  RunnerConfig config_;
  std::unique_ptr<model::Decoder> decoder_;
  attention::Router* router_ = nullptr;
  device::Device* device_ = nullptr;
  device::Stream* stream_ = nullptr;
  KvPool kv_pool_;
  device::Buffer logits_;       // [max_logit_rows, vocab]
  device::Buffer prompt_rows_;  // [max_logit_rows] SampledRow
  std::unique_ptr<ops::DeviceSampler> sampler_;
  std::optional<PlanMaker> plan_maker_;
  // One for all steps: what the device needs of it is staged before launch() returns, so the plans
  // in it, which a graph's kernels point into, are the same for every step.
  std::optional<StepBatches> batches_;
  Staging staging_;
  std::vector<Place> places_;
  struct {
    std::vector<int32_t> last, places, positions, prompt, prompt_ids;
  } scratch_;  // of stage()
  std::array<Lane, kInFlight> lanes_;
  std::vector<int32_t> graph_sizes_;  // rising
  std::map<std::pair<int32_t, int>, Captured> graphs_;
};

}  // namespace attune::engine
