// Flags, the resolver, the router and two CPU backends as one: each batch is computed by the
// backend that its phase's list names, and by no other.
#include <map>

#include "../resolve/explain.h"
#include "attention/route.h"
#include "runner.h"

namespace attune::attention::test {
namespace {

struct Composed {
  const char* model;
  Shape shape;
};

std::vector<Composed> composed() {
  return {{"smollm2", {.q_heads = 9, .kv_heads = 3, .qk_dim = 64, .v_dim = 64}},
          {"deepseek-v2-lite", absorbed(16, 512, 64)}};
}

// The sequences of a phase: prompts, decoding ones, trees of 7 and 9 tokens, drafts.
std::vector<Seq> seqs_of(Phase phase) {
  switch (phase) {
    case Phase::kPrefill:
      return {{20, 20, 1}, {33, 70, 2}};
    case Phase::kDecode:
      return {{1, 100, 3}, {1, 1, 4}, {1, 33, 5}};
    case Phase::kVerify:
      return {{7, 70, 6}, {9, 9 + 130, 7}};
    case Phase::kDraftExtend:
      return {{3, 40, 8}, {1, 17, 9}};
  }
  return {};
}

Problem problem_of(const Shape& shape, Phase phase) {
  Problem p(shape, seqs_of(phase));
  if (phase != Phase::kVerify) return p;
  std::vector<uint64_t> words = tree_words({-1, 0, 0, 1, 1, 2, 5});
  for (uint64_t w : tree_words({-1, 0, 1, 1, 0, 4, 4, 4, 2})) words.push_back(w);
  p.set_tree(std::move(words));
  return p;
}

class Composition {
 public:
  Composition(const Composed& what, const std::string& flags)
      : resolution_(resolve::explain("cpu", what.model, flags)), shape_(what.shape) {
    EXPECT_TRUE(resolution_.conflicts.empty()) << resolve::to_table(resolution_);
    shape_.page_size = resolution_.page_size;
    auto router = Router::create(resolution_.order(), runner_.device());
    EXPECT_TRUE(router.ok()) << router.status().message();
    router_ = std::move(*router);
  }

  // Routed, planned and run by whom the route chose.
  Output run(Phase phase) {
    const Problem p = problem_of(shape_, phase);
    const auto choice = router_->route(p.batch(phase));
    EXPECT_TRUE(choice.ok()) << choice.status().message();
    const Limits limits = p.limits(runner_.threads());
    auto workspace = runner_.device().allocate(choice->backend->workspace_bytes(limits), "a test");
    const auto plan = choice->backend->make_plan(limits, workspace->data());
    const Status planned = choice->backend->plan(p.batch(phase), *plan, runner_.stream());
    EXPECT_TRUE(planned.ok()) << planned.message();
    Output o;
    o.out.resize(size_t(p.tokens()) * shape_.q_heads * shape_.v_dim);
    o.lse.resize(size_t(p.tokens()) * shape_.q_heads);
    const Io io{.q = p.q().data(),
                .q_stride = int64_t{shape_.q_heads} * shape_.qk_dim,
                .out = o.out.data(),
                .out_stride = int64_t{shape_.q_heads} * shape_.v_dim,
                .lse = o.lse.data()};
    runner_.stream().launch([&] {
      choice->backend->plan_on(*plan, runner_.stream());
      choice->backend->run(*plan, p.layer(), p.view(), io, runner_.stream());
    });
    runner_.stream().synchronize();
    return o;
  }

  // "verify/reference 1": what the counters say was run.
  std::vector<std::string> counted() const {
    std::vector<std::string> lines;
    for (const RouteCount& c : router_->counts())
      if (c.count > 0)
        lines.push_back(std::string(phase_name(c.phase)) + "/" + c.backend + " " +
                        std::to_string(c.count) + (c.fallback ? " fallback" : ""));
    return lines;
  }
  const Shape& shape() const { return shape_; }

 private:
  const resolve::Resolution resolution_;
  Shape shape_;
  const Runner runner_{"reference", "auto", 2};  // its device and stream
  std::unique_ptr<Router> router_;
};

// S1, S3: verify of a token tree and draft extend go where --speculative-attention-mode says. The
// outputs are the chosen backend's to the bit, and the other one's to rounding.
TEST(Composition, EachPhaseIsComputedByItsOwnBackendAndItsCounterSaysSo) {
  std::map<std::string, Runner> alone;
  for (const char* name : {"cpu", "reference"}) alone.try_emplace(name, name, "auto", 2);
  for (const Composed& what : composed()) {
    for (const bool by_decode : {false, true}) {
      for (const bool swapped : {false, true}) {
        const std::string prefill = swapped ? "reference" : "cpu";
        const std::string decode = swapped ? "cpu" : "reference";
        const std::string spec = by_decode ? decode : prefill;
        Composition both(what, "--prefill-attention-backend " + prefill +
                                   " --decode-attention-backend " + decode +
                                   " --speculative-eagle-topk 4 --speculative-attention-mode " +
                                   (by_decode ? "decode" : "prefill"));
        const std::map<Phase, std::string> by = {{Phase::kPrefill, prefill},
                                                 {Phase::kDecode, decode},
                                                 {Phase::kVerify, spec},
                                                 {Phase::kDraftExtend, spec}};
        std::vector<std::string> wanted;
        for (Phase phase : kAllPhases) {
          const std::string name = by.at(phase);
          const std::string other = name == "cpu" ? "reference" : "cpu";
          const std::string told = std::string(what.model) + ", " + phase_name(phase);
          const Problem p = problem_of(both.shape(), phase);
          const Output got = both.run(phase);
          expect_same_bits(got, alone.at(name).run(p, phase), told + " by " + name);
          expect_close(got, alone.at(other).run(p, phase), 5e-5, 5e-5, told + " by " + other);
          wanted.push_back(std::string(phase_name(phase)) + "/" + name + " 1");
        }
        EXPECT_EQ(both.counted(), wanted);
      }
    }
  }
}

// Else the test above would pass without the mask.
TEST(Composition, ATreeIsNotAChain) {
  const Runner cpu("cpu", "auto", 2);
  for (const Composed& what : composed()) {
    Problem chain(what.shape, seqs_of(Phase::kVerify));
    const Output tree = cpu.run(problem_of(what.shape, Phase::kVerify), Phase::kVerify);
    EXPECT_NE(tree.out, cpu.run(chain, Phase::kVerify).out) << what.model;
  }
}

}  // namespace
}  // namespace attune::attention::test
