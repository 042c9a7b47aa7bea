// The conformance suite's fixture: one target for each backend that this build can run, on the CPU
// at every level of the machine (targets_cpu.cc), on the GPU once (targets_gpu.cc). The reference
// that they are held against is the CPU's always. What a backend does not declare is not asked of
// it; a test of which nothing is left is skipped, with what was missing.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "runner.h"

namespace attune::attention::test {

struct Target {
  std::string backend, isa;  // isa kCuda: the GPU
};
void PrintTo(const Target& target, std::ostream* out);  // what test names end with
std::vector<Target> targets();
// Of every backend the one that is best on this machine: where levels make no difference.
std::vector<Target> best_targets();

// What `c` lacks for such a run; empty: nothing.
std::string missing(const Capabilities& c, const Shape& shape, Phase phase,
                    const LayerParams& layer, bool tree);

class Suite : public ::testing::TestWithParam<Target> {
 protected:
  Suite();
  void SetUp() override;
  void TearDown() override;

  const Capabilities& caps() const { return runner_.backend().capabilities(); }
  // The shape in types, dims and pages that the backend declares, as far as it does not declare the
  // given ones: a kernel for two head sizes is tested with those.
  Shape adapt(Shape shape) const;
  bool serves_page(int32_t page_size) const;
  // Whether the backend declares all of this; counts for TearDown.
  bool serves(const Shape& shape, Phase phase, const LayerParams& layer, bool tree = false);
  bool serves(const Shape& shape, Phase phase = Phase::kPrefill);
  // Whether it takes the batch: some refuse rows that see no key, which no engine's step has.
  bool takes(const Problem& problem, Phase phase = Phase::kPrefill) const {
    return runner_.backend().supports(problem.batch(phase)).ok();
  }

  // Poisoned pools against the reference on a clean one, in the adapted shape. Without params: the
  // layer that Problem gives. Who does not take a batch is asked for that of its sequences that
  // have keys for all their rows.
  void check(const Shape& shape, const std::vector<Seq>& seqs, const std::string& what,
             Phase phase = Phase::kPrefill, const LayerParams* params = nullptr,
             const std::vector<uint64_t>& tree = {});
  // Of outputs, absolute and relative: rounding of what a backend computes with.
  double tolerance(const Shape& shape) const;
  // The same but at least what float32 sums in another order cost.
  double tolerance(const Shape& shape, double least) const;
  // Of the same rows in batches that differ: all bits, from a backend that is batch-invariant.
  void expect_same(const Output& got, const Output& want, const Shape& shape,
                   const std::string& what) const;
  // To be returned from the test, which TearDown then says was skipped.
  void skip_undeclared(const std::string& what);

  Runner runner_;
  const Runner reference_;

 private:
  int ran_ = 0;
  std::string missing_;
};

std::string text(const char* name, int64_t value);

#define ATTUNE_SUITE(name) ATTUNE_SUITE_OVER(name, targets())
#define ATTUNE_SUITE_OVER(name, all)                                 \
  INSTANTIATE_TEST_SUITE_P(Backends, name, ::testing::ValuesIn(all), \
                           [](const auto& info) { return ::testing::PrintToString(info.param); })

}  // namespace attune::attention::test
