// How a step's rows become batches: the arrays, read back as a backend gets them.
#include "engine/step_batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace attune::engine {
namespace {

using attention::Path;
using attention::Phase;
using sched::RowKind;
using sched::StepPlan;
using Ints = std::vector<int32_t>;

struct RecordedPlan final : attention::Plan {
  attention::Batch batch;
};

// Keeps what it is asked to plan.
class RecordingBackend final : public attention::Backend {
 public:
  RecordingBackend() {
    capabilities_.name = "recording";
    capabilities_.extend_paths = {Path::kRagged, Path::kOneShot, Path::kChunked, Path::kAbsorbed};
    capabilities_.lse_out = true;
  }
  const attention::Capabilities& capabilities() const override { return capabilities_; }
  attention::Support supports(const attention::Batch&) const override { return {}; }
  int64_t workspace_bytes(const attention::Limits&) const override { return 64; }
  std::unique_ptr<attention::Plan> make_plan(const attention::Limits& limits,
                                             void* workspace) const override {
    plans_made += 1;
    EXPECT_NE(workspace, nullptr);
    EXPECT_EQ(limits.num_slots, limits.page_size == 4 ? 100 : 1);
    return std::make_unique<RecordedPlan>();
  }
  Status plan(const attention::Batch& batch, attention::Plan& plan,
              device::Stream&) const override {
    static_cast<RecordedPlan&>(plan).batch = batch;
    return {};
  }
  void plan_on(attention::Plan&, device::Stream&) const override {}
  void run(attention::Plan&, const attention::LayerParams&, const kv::PagedKvView&,
           const attention::Io&, device::Stream&) const override {}

  mutable int plans_made = 0;

 private:
  attention::Capabilities capabilities_;
};

const attention::Batch& batch_of(const attention::Plan* plan) {
  return static_cast<const RecordedPlan*>(plan)->batch;
}

class StepBatchesTest : public ::testing::Test {
 protected:
  StepBatchesTest() {
    auto made = device::create_cpu_device(1, "auto");
    EXPECT_TRUE(made.ok());
    device_ = std::move(made).value();
    stream_ = device_->create_stream();
    auto backend = std::make_unique<RecordingBackend>();
    backend_ = backend.get();
    std::vector<std::unique_ptr<attention::Backend>> all;
    all.push_back(std::move(backend));
    const attention::PhaseOrder mine = {.backends = {"recording"}};
    router_ = std::make_unique<attention::Router>(
        std::move(all), attention::BackendOrder{{mine, mine, mine, mine}});
    maker_ =
        std::make_unique<PlanMaker>(*device_, attention::Limits{.page_size = 4, .num_slots = 100},
                                    attention::Limits{.page_size = 64, .num_slots = 1});
  }

  // A sequence whose page i is slot 10 * `base` + i.
  static sched::StepRow row(RowKind kind, int32_t start, int32_t num_tokens, int32_t base) {
    sched::StepRow r;
    r.kind = kind;
    r.place = sched::SeqPlace{7};
    r.start = start;
    r.num_tokens = num_tokens;
    for (int32_t i = 0; kind == RowKind::kPrefill && i < num_tokens; ++i)
      r.tokens.push_back(1000 * base + start + i);
    for (int32_t i = 0; i * 4 < start + num_tokens; ++i)
      r.pages.push_back(kv::DeviceSlot{10 * base + i});
    return r;
  }

  std::vector<model::AttentionGroup> run(StepBatches& batches, const StepPlan& plan) {
    batches.fill(plan);
    EXPECT_TRUE(batches.route(*router_, *maker_, *stream_).ok());
    return batches.plan_on(*stream_);
  }

  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  RecordingBackend* backend_ = nullptr;
  std::unique_ptr<attention::Router> router_;
  std::unique_ptr<PlanMaker> maker_;
};

TEST_F(StepBatchesTest, AnMhaStepIsAPrefillAndADecodeBatch) {
  StepBatches batches({.page_size = 4});
  StepPlan plan;
  plan.rows = {row(RowKind::kPrefill, 3, 3, 1), row(RowKind::kPrefill, 0, 2, 2),
               row(RowKind::kDecode, 8, 1, 3)};
  const auto groups = run(batches, plan);
  EXPECT_EQ(batches.ids, (Ints{1003, 1004, 1005, 2000, 2001, -8}));
  EXPECT_EQ(batches.positions, (Ints{3, 4, 5, 0, 1, 8}));
  EXPECT_EQ(batches.slot_mapping, (std::vector<int64_t>{43, 44, 45, 80, 81, 128}));
  EXPECT_EQ(batches.first_token, (Ints{0, 3, 5}));
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_TRUE(groups[0].pieces.empty());
  const attention::Batch& prefill = batch_of(groups[0].plan);
  EXPECT_EQ(prefill.phase, Phase::kPrefill);
  EXPECT_EQ(Ints(prefill.q_indptr, prefill.q_indptr + 3), (Ints{0, 3, 5}));
  EXPECT_EQ(Ints(prefill.kv_len, prefill.kv_len + 2), (Ints{6, 2}));
  EXPECT_EQ(Ints(prefill.page_slots, prefill.page_slots + 3), (Ints{10, 11, 20}));
  EXPECT_EQ(prefill.max_q_len, 3);
  EXPECT_EQ(prefill.max_kv_len, 6);
  EXPECT_EQ(groups[1].first_token, 5);
  EXPECT_EQ(batch_of(groups[1].plan).phase, Phase::kDecode);
  EXPECT_EQ(batch_of(groups[1].plan).path, Path::kPaged);
}

TEST_F(StepBatchesTest, AnMlaStepIsOneGroupForEachPath) {
  StepBatches batches(
      {.page_size = 4, .mla = true, .mla_policy = {.capacity = 8, .absorb_below = 3}});
  StepPlan plan;
  plan.rows = {row(RowKind::kPrefill, 5, 4, 1),   // chunked
               row(RowKind::kPrefill, 0, 2, 2),   // ragged
               row(RowKind::kPrefill, 5, 3, 3),   // one shot
               row(RowKind::kPrefill, 9, 2, 4),   // absorbed
               row(RowKind::kPrefill, 10, 3, 5),  // chunked
               row(RowKind::kDecode, 2, 1, 6)};
  const auto groups = run(batches, plan);
  ASSERT_EQ(groups.size(), 5u);
  EXPECT_EQ(batches.first_token, (Ints{5, 0, 2, 12, 9, 14}));
  int32_t covered = 0;
  for (const model::AttentionGroup& g : groups) {
    EXPECT_EQ(g.first_token, covered);
    covered += g.num_tokens;
  }
  EXPECT_EQ(covered, static_cast<int32_t>(batches.ids.size()));

  EXPECT_EQ(groups[0].path, Path::kRagged);
  ASSERT_EQ(groups[0].pieces.size(), 1u);
  EXPECT_TRUE(groups[0].pieces[0].gather.empty());

  EXPECT_EQ(groups[1].path, Path::kOneShot);
  ASSERT_EQ(groups[1].pieces.size(), 1u);
  EXPECT_EQ(
      std::vector<int64_t>(groups[1].pieces[0].gather.begin(), groups[1].pieces[0].gather.end()),
      (std::vector<int64_t>{120, 121, 122, 123, 124, 125, 126, 127}));
  EXPECT_EQ(batch_of(groups[1].pieces[0].plan).kv_len[0], 8);

  EXPECT_EQ(groups[2].path, Path::kChunked);
  ASSERT_EQ(groups[2].pieces.size(), 3u);  // new tokens; 15 keys of prefix in 8 and 7
  const attention::Batch& fresh = batch_of(groups[2].pieces[0].plan);
  EXPECT_TRUE(fresh.causal);
  EXPECT_EQ(Ints(fresh.kv_start, fresh.kv_start + 2), (Ints{0, 4}));
  const attention::Batch& first = batch_of(groups[2].pieces[1].plan);
  EXPECT_FALSE(first.causal);
  EXPECT_EQ(first.num_seqs, 2);
  EXPECT_EQ(Ints(first.kv_len, first.kv_len + 2), (Ints{5, 3}));
  EXPECT_EQ(Ints(first.kv_start, first.kv_start + 2), (Ints{0, 5}));
  EXPECT_EQ(groups[2].pieces[1].gather[5], 200);
  const model::MlaPiece& last = groups[2].pieces[2];
  EXPECT_EQ(last.first_token, 4);  // of the second sequence alone
  EXPECT_EQ(last.num_tokens, 3);
  EXPECT_EQ(last.gather.size(), 7u);
  EXPECT_EQ(last.gather[0], 203);

  EXPECT_EQ(groups[3].path, Path::kAbsorbed);
  EXPECT_EQ(batch_of(groups[3].plan).phase, Phase::kPrefill);
  EXPECT_EQ(groups[4].path, Path::kAbsorbed);
  EXPECT_EQ(batch_of(groups[4].plan).phase, Phase::kDecode);
}

// Whatever the batch, a step that is filled up has the bucket's length in every array, whole prefix
// sums, its own rows first, and rows more that read the padding slot and write nowhere.
TEST_F(StepBatchesTest, BugC09PaddingComesBeforeTheMetadata) {
  std::mt19937 random(9);
  for (const bool mla : {false, true}) {
    StepBatches batches({.page_size = 4, .mla = mla});
    for (int trial = 0; trial < 200; ++trial) {
      const auto rows = static_cast<int32_t>(1 + random() % 20);
      const auto size = rows + static_cast<int32_t>(random() % 13);
      StepPlan plan;
      for (int32_t i = 0; i < rows; ++i)
        plan.rows.push_back(
            row(RowKind::kDecode, static_cast<int32_t>(random() % 39), 1, static_cast<int32_t>(i)));
      batches.fill(plan, size);
      ASSERT_TRUE(batches.route(*router_, *maker_, *stream_).ok());
      const auto groups = batches.plan_on(*stream_);
      ASSERT_EQ(std::ssize(batches.ids), size);
      ASSERT_EQ(std::ssize(batches.positions), size);
      ASSERT_EQ(std::ssize(batches.slot_mapping), size);
      ASSERT_EQ(groups.size(), 1u);
      EXPECT_EQ(groups[0].num_tokens, size);
      const attention::Batch& b = batch_of(groups[0].plan);
      ASSERT_EQ(b.num_seqs, size);
      ASSERT_EQ(b.num_tokens, size);
      ASSERT_EQ(b.page_indptr[0], 0);
      int32_t longest = 0;
      for (int32_t i = 0; i < size; ++i) {
        const int32_t pages = b.page_indptr[i + 1] - b.page_indptr[i];
        EXPECT_EQ(b.q_indptr[i], i);
        EXPECT_EQ(pages, (b.kv_len[i] + 3) / 4) << "sequence " << i;
        EXPECT_EQ(b.kv_len[i], i < rows ? plan.rows[i].start + 1 : 1);
        EXPECT_EQ(batches.slot_mapping[i] < 0, i >= rows);
        for (int32_t p = 0; p < pages; ++p)
          EXPECT_EQ(b.page_slots[b.page_indptr[i] + p],
                    i < rows ? plan.rows[i].pages[p].value : kv::kPaddingSlot.value);
        longest = std::max(longest, b.kv_len[i]);
      }
      EXPECT_EQ(b.q_indptr[size], size);
      EXPECT_EQ(b.max_q_len, 1);
      EXPECT_EQ(b.max_kv_len, longest);
    }
  }
}

// Plans are kept: a second step of the same kind makes none.
TEST_F(StepBatchesTest, PlansAreMadeOnce) {
  StepBatches batches(
      {.page_size = 4, .mla = true, .mla_policy = {.capacity = 8, .absorb_below = 1}});
  StepPlan plan;
  plan.rows = {row(RowKind::kPrefill, 9, 4, 1), row(RowKind::kDecode, 2, 1, 2)};
  run(batches, plan);
  const int made = backend_->plans_made;
  EXPECT_EQ(made, 4);  // new tokens, two chunks, decode
  run(batches, plan);
  EXPECT_EQ(backend_->plans_made, made);
  // What served dense rows cannot serve pages.
  plan.rows = {row(RowKind::kDecode, 2, 1, 2)};
  const auto groups = run(batches, plan);
  EXPECT_EQ(backend_->plans_made, made + 1);
  EXPECT_EQ(batch_of(groups[0].plan).page_size, 4);
}

}  // namespace
}  // namespace attune::engine
