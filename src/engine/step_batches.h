// A StepPlan's rows as the arrays that kernels read, grouped into the batches that attention
// backends serve: decode rows are one, prefill rows are one, or for an MLA model one for each path
// (docs/selection-rules.md, M1 to M7). Everything is reused step after step; one object per step in
// flight. On the engine's thread.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/route.h"
#include "device/device.h"
#include "engine/staging.h"
#include "model/decoder.h"
#include "sched/step_plan.h"

namespace attune::engine {

// Makes plans of the router's backends. Each backend's scratch is shared by all of its plans, since
// the runs of one stream follow each other.
class PlanMaker {
 public:
  // `pages` bounds calls over the pool, `rows` those over dense rows.
  PlanMaker(device::Device& device, const attention::Limits& pages, const attention::Limits& rows)
      : device_(device), limits_{pages, rows} {}
  // Errors: resource_exhausted.
  Result<std::unique_ptr<attention::Plan>> make(const attention::Choice& choice, bool rows);

 private:
  device::Device& device_;
  std::array<attention::Limits, 2> limits_;
  std::array<std::vector<device::Buffer>, 2> scratch_;  // by the router's index
};

class StepBatches {
 public:
  struct Config {
    int32_t page_size = 0;
    bool mla = false;
    attention::MlaPolicy mla_policy;
    bool deterministic = false;
  };
  explicit StepBatches(const Config& config) : config_(config) {}

  // The arrays of a plan; a decode row's id is -1 - its place, since only the device knows the last
  // token of that place. A step of decode rows alone is filled up to `decode_rows` of them: a row
  // more reads the padding slot, and writes nowhere.
  void fill(const sched::StepPlan& plan, int32_t decode_rows = 0);
  // Puts the calls' arrays where the device reads them; between fill() and route(), and only on a
  // device that does not read the host's.
  void stage(Staging& staging);
  // Chooses every group's backend and plans its calls. Errors: those of Router::route and of
  // Backend::plan; the step then cannot be launched.
  Status route(attention::Router& router, PlanMaker& maker, device::Stream& stream);

  // The device part of the planning, on the stream's thread; then what Decoder::forward takes.
  std::vector<model::AttentionGroup> plan_on(device::Stream& stream);
  // The backend that route() chose for the first group, and its index.
  const attention::Choice& first_choice() const { return groups_[0].choice; }
  bool runs_any_of(std::span<const std::string> backends) const;  // in this step

  std::vector<int32_t> ids, positions;  // [tokens]
  std::vector<int64_t> slot_mapping;    // [tokens] slot * page_size + offset
  std::vector<int32_t> first_token;     // [rows of the plan]; groups may reorder rows

 private:
  // One attention call and its arrays.
  struct Call {
    std::vector<int32_t> q_indptr, kv_len, page_indptr, page_slots, kv_start;
    std::vector<int64_t> gather;
    const int64_t* gather_on_device = nullptr;  // null: `gather` itself
    int32_t first_token = 0;                    // relative to the group
    attention::Batch batch;
    // Over pages and over rows, by the router's index; made on first use.
    std::array<std::vector<std::unique_ptr<attention::Plan>>, 2> plans;
    attention::Plan* plan = nullptr;

    void clear();
    void add_sequence(int32_t q_len, int32_t kv_len);
    Status plan_for(const attention::Choice& choice, PlanMaker& maker, device::Stream& stream);
  };
  struct Group {
    attention::Phase phase = attention::Phase::kPrefill;
    attention::Path path = attention::Path::kPaged;
    int32_t first_token = 0, num_tokens = 0;
    std::vector<Call> calls;  // of which the first num_calls are in use
    size_t num_calls = 0;
    attention::Choice choice;
    std::vector<model::MlaPiece> pieces;

    Call& next_call();
  };
  using Rows = std::vector<const sched::StepRow*>;

  void add_group(attention::Phase phase, attention::Path path, const Rows& rows);
  void add_tokens(const sched::StepRow& row);
  void add_padding(int32_t rows);
  void add_paged_call(Group& group, const Rows& rows) const;
  void add_new_call(Group& group, const Rows& rows, bool with_prefix) const;
  void add_prefix_calls(Group& group, const Rows& rows) const;
  void gather(Call& call, const sched::StepRow& row, int32_t begin, int32_t end) const;
  void finish(const Group& group, Call& call, bool causal) const;

  Config config_;
  const sched::StepRow* first_row_ = nullptr;  // of the plan, during fill()
  std::vector<Group> groups_;                  // of which the first num_groups_ are in use
  size_t num_groups_ = 0;
};

}  // namespace attune::engine
