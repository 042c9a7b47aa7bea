#include "attention/route.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "attention/registry.h"

namespace attune::attention {
namespace {

using ::testing::HasSubstr;

// Serves batches of up to `max_seqs`.
class PickyBackend final : public Backend {
 public:
  PickyBackend(std::string name, int32_t max_seqs, std::vector<Path> extend_paths = {})
      : max_seqs_(max_seqs) {
    capabilities_.name = std::move(name);
    capabilities_.extend_paths = std::move(extend_paths);
  }
  const Capabilities& capabilities() const override { return capabilities_; }
  Support supports(const Batch& batch) const override {
    if (batch.num_seqs <= max_seqs_) return {};
    return {{"more than " + std::to_string(max_seqs_) + " sequences"}};
  }
  int64_t workspace_bytes(const Limits&) const override { return 0; }
  std::unique_ptr<Plan> make_plan(const Limits&, void*) const override { return nullptr; }
  Status plan(const Batch&, Plan&, device::Stream&) const override { return {}; }
  void plan_on(Plan&, device::Stream&) const override {}
  void run(Plan&, const LayerParams&, const kv::PagedKvView&, const Io&,
           device::Stream&) const override {}

 private:
  Capabilities capabilities_;
  int32_t max_seqs_;
};

Router picky_router() {
  std::vector<std::unique_ptr<Backend>> backends;
  backends.push_back(std::make_unique<PickyBackend>("small", 1));
  backends.push_back(std::make_unique<PickyBackend>("medium", 4));
  return Router(std::move(backends), {{{.backends = {"small", "medium"}},
                                       {.backends = {"medium"}},
                                       {},
                                       {.backends = {"medium", "small"}}}});
}

// "backend/path count", and whether by fallback.
std::vector<std::string> counted(const Router& router, Phase phase) {
  std::vector<std::string> lines;
  for (const RouteCount& c : router.counts())
    if (c.phase == phase)
      lines.push_back(c.backend + "/" + path_name(c.path) + " " + std::to_string(c.count) +
                      (c.fallback ? " fallback" : ""));
  return lines;
}

Batch batch_of(Phase phase, int32_t seqs) {
  return {.phase = phase, .num_seqs = seqs};
}

std::string chosen(Router& router, Phase phase, int32_t seqs) {
  const Result<Choice> choice = router.route(batch_of(phase, seqs));
  if (!choice.ok()) return choice.status().message();
  EXPECT_EQ(&router.backend(choice->index), choice->backend);
  return choice->backend->capabilities().name;
}

TEST(Router, TakesTheFirstThatServesTheBatch) {
  Router router = picky_router();
  EXPECT_EQ(chosen(router, Phase::kPrefill, 1), "small");
  EXPECT_EQ(chosen(router, Phase::kPrefill, 3), "medium");
  // Rule M8, bug B-04: a fallback is the batch's, not the backend's, and no phase's list
  // is another's.
  EXPECT_EQ(chosen(router, Phase::kPrefill, 1), "small");
  EXPECT_EQ(chosen(router, Phase::kDecode, 1), "medium");
  EXPECT_EQ(chosen(router, Phase::kDraftExtend, 1), "medium");
}

// What a backend's library refuses when a batch is planned goes to the next, as a fallback; other
// failures are the step's.
TEST(Router, WhatCannotBePlannedGoesToTheNext) {
  Router router = picky_router();
  const Batch batch = batch_of(Phase::kPrefill, 1);
  std::vector<int> asked;
  const auto refusing = [&](const Choice& choice) {
    asked.push_back(choice.index);
    return choice.index == 0 ? unsupported("no kernel") : Status();
  };
  const Result<Choice> next = router.route(batch, refusing);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(next->index, 1);
  EXPECT_EQ(asked, (std::vector<int>{0, 1}));
  const auto counts = router.counts();
  EXPECT_EQ(counts[0].backend + std::to_string(counts[0].count), "small0");
  EXPECT_EQ(counts[1].backend + std::to_string(counts[1].count), "medium1");
  EXPECT_TRUE(counts[1].fallback);

  const Result<Choice> full =
      router.route(batch, [](const Choice&) { return resource_exhausted("no memory"); });
  EXPECT_EQ(full.status().code(), Code::kResourceExhausted);
  const Result<Choice> none =
      router.route(batch, [](const Choice&) { return unsupported("no kernel"); });
  EXPECT_EQ(none.status().code(), Code::kUnsupported);
  EXPECT_NE(none.status().message().find("small: no kernel, medium: no kernel"), std::string::npos)
      << none.status().message();
}

TEST(Router, CountsByPhaseAndBackend) {
  Router router = picky_router();
  for (int32_t seqs : {1, 1, 3, 9}) (void)router.route(batch_of(Phase::kPrefill, seqs));
  (void)router.route(batch_of(Phase::kDecode, 1));
  std::vector<std::string> lines;
  for (const RouteCount& c : router.counts())
    lines.push_back(std::string(phase_name(c.phase)) + "/" + c.backend + "/" + path_name(c.path) +
                    " " + std::to_string(c.count) + (c.fallback ? " fallback" : ""));
  EXPECT_EQ(lines,
            (std::vector<std::string>{"prefill/small/paged 2", "prefill/medium/paged 1 fallback",
                                      "decode/medium/paged 1", "draft_extend/medium/paged 0",
                                      "draft_extend/small/paged 0 fallback"}));
}

// S4: measured cells; what a cell does not name stays behind it.
TEST(Router, TakesTheOrderOfTheNearestCell) {
  std::vector<std::unique_ptr<Backend>> backends;
  for (const char* name : {"one", "many", "rest"})
    backends.push_back(std::make_unique<PickyBackend>(name, 1000));
  Router router(std::move(backends), {{{},
                                       {.backends = {"many", "one", "rest"},
                                        .sized = {{1, 4096, {"one"}}, {64, 4096, {"many", "one"}}}},
                                       {},
                                       {}}});
  for (const auto& [seqs, want] : {std::pair{1, "one"}, {4, "one"}, {16, "many"}, {200, "many"}})
    EXPECT_EQ(chosen(router, Phase::kDecode, seqs), want) << seqs;
  std::vector<std::string> lines;
  for (const RouteCount& c : router.counts())
    lines.push_back(c.backend + " " + std::to_string(c.count) + (c.fallback ? " fallback" : ""));
  EXPECT_EQ(lines, (std::vector<std::string>{"many 2", "one 2", "rest 0 fallback"}));
}

// M5, bug report 12361: whose backend has no absorbed extend does not get one; the next has it, as
// a fallback.
TEST(Router, APathThatABackendLacksGoesToTheNext) {
  std::vector<std::unique_ptr<Backend>> backends;
  backends.push_back(std::make_unique<PickyBackend>("ragged", 9, std::vector{Path::kRagged}));
  backends.push_back(
      std::make_unique<PickyBackend>("both", 9, std::vector{Path::kRagged, Path::kAbsorbed}));
  const PhaseOrder both = {.backends = {"ragged", "both"}};
  Router router(std::move(backends), {{both, both, both, both}});
  const auto name = [&](Phase phase, Path path) {
    const Result<Choice> choice = router.route({.phase = phase, .path = path, .num_seqs = 1});
    return choice.ok() ? choice->backend->capabilities().name : choice.status().message();
  };
  EXPECT_EQ(name(Phase::kPrefill, Path::kRagged), "ragged");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(name(Phase::kPrefill, Path::kAbsorbed), "both");
  EXPECT_EQ(name(Phase::kDecode, Path::kAbsorbed), "ragged");  // M8: only extends have paths
  EXPECT_EQ(counted(router, Phase::kPrefill),
            (std::vector<std::string>{"ragged/ragged 1", "both/absorbed 2 fallback"}));
  EXPECT_EQ(counted(router, Phase::kDecode),
            (std::vector<std::string>{"ragged/absorbed 1", "both/paged 0 fallback"}));
  // Nor a path of parts to be merged without the LSE that merges them.
  EXPECT_TRUE(takes_path({.extend_paths = {Path::kChunked}, .lse_out = true}, Path::kChunked));
  EXPECT_FALSE(takes_path({.extend_paths = {Path::kChunked}}, Path::kChunked));
  EXPECT_NE(name(Phase::kPrefill, Path::kChunked).find("both: has no chunked path"),
            std::string::npos);
}

// Each path's reason is logged, once.
TEST(Router, AFallbackOnOnePathDoesNotHideThatOnAnother) {
  std::vector<std::unique_ptr<Backend>> backends;
  backends.push_back(std::make_unique<PickyBackend>("ragged", 9, std::vector{Path::kRagged}));
  backends.push_back(
      std::make_unique<PickyBackend>("both", 9, std::vector{Path::kRagged, Path::kAbsorbed}));
  Router router(std::move(backends), {{{.backends = {"ragged", "both"}}, {}, {}, {}}});
  const auto logged = [&](Path path, const Router::PlanFn& plan) {
    ::testing::internal::CaptureStderr();
    EXPECT_TRUE(router.route({.phase = Phase::kPrefill, .path = path, .num_seqs = 1}, plan).ok());
    return ::testing::internal::GetCapturedStderr();
  };
  const auto refusing = [](const Choice& choice) {
    return choice.index == 0 ? unsupported("no kernel") : Status();
  };
  EXPECT_THAT(logged(Path::kAbsorbed, nullptr), HasSubstr("ragged: has no absorbed path"));
  EXPECT_THAT(logged(Path::kRagged, refusing), HasSubstr("ragged: no kernel"));
  EXPECT_EQ(logged(Path::kAbsorbed, nullptr), "");
  EXPECT_EQ(logged(Path::kRagged, refusing), "");
  EXPECT_EQ(counted(router, Phase::kPrefill),
            (std::vector<std::string>{"ragged/paged 0", "both/ragged 2 fallback",
                                      "both/absorbed 2 fallback"}));
}

// B-12: every refusal with its reason.
TEST(BugB12, NobodyServesSoEveryReasonIsNamed) {
  Router router = picky_router();
  const std::string all = chosen(router, Phase::kPrefill, 9);
  EXPECT_NE(all.find("small: more than 1 sequences"), std::string::npos) << all;
  EXPECT_NE(all.find("medium: more than 4 sequences"), std::string::npos) << all;
  EXPECT_NE(chosen(router, Phase::kVerify, 1).find("verify"), std::string::npos);
}

TEST(Router, CreateKnowsTheRegistryAndSharesInstances) {
  auto device = device::create_cpu_device(1, "auto");
  ASSERT_TRUE(device.ok());
  const BackendOrder order = {
      {{.backends = {"cpu", "reference"}}, {.backends = {"cpu"}}, {.backends = {"reference"}}, {}}};
  auto router = Router::create(order, **device);
  ASSERT_TRUE(router.ok()) << router.status().to_string();
  EXPECT_EQ((*router)->num_backends(), 2);
  auto unknown = Router::create({{{.backends = {"fa4"}}, {}, {}, {}}}, **device);
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().code(), Code::kNotFound);
  EXPECT_NE(unknown.status().message().find("reference"), std::string::npos);
}

// Nothing links a backend by name: the table must hold every folder.
TEST(Registry, HoldsEveryBackend) {
  std::vector<std::string> names;
  for (const BackendEntry& e : backends()) {
    names.push_back(e.capabilities.name);
    EXPECT_EQ(e.unavailable.empty(), e.create != nullptr) << e.capabilities.name;
    EXPECT_EQ(find_backend(e.capabilities.name), &e);
    EXPECT_FALSE(e.capabilities.phases.empty() || e.capabilities.kv_dtypes.empty());
  }
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  for (const char* name : {"cpu", "reference"})
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
  EXPECT_EQ(find_backend("nobody"), nullptr);
}

}  // namespace
}  // namespace attune::attention
