// The conformance suite's fixture: one target for each backend that this build can run, at every
// level of the machine. What a backend does not declare is not asked of it; a test of which nothing
// is left is skipped, with what was missing.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "runner.h"

namespace attune::attention::test {

struct Target {
  std::string backend, isa;
};
void PrintTo(const Target& target, std::ostream* out);  // what test names end with
std::vector<Target> targets();

// What `c` lacks for such a run; empty: nothing.
std::string missing(const Capabilities& c, const Shape& shape, Phase phase,
                    const LayerParams& layer, bool tree);

class Suite : public ::testing::TestWithParam<Target> {
 protected:
  Suite() : runner_(GetParam().backend, GetParam().isa, 2) {}
  void TearDown() override;

  const Capabilities& caps() const { return runner_.backend().capabilities(); }
  // The shape in types, dims and pages that the backend declares, as far as it does not declare the
  // given ones: a kernel for two head sizes is tested with those.
  Shape adapt(Shape shape) const;
  bool serves_page(int32_t page_size) const;
  // Whether the backend declares all of this; counts for TearDown.
  bool serves(const Shape& shape, Phase phase, const LayerParams& layer, bool tree = false);
  bool serves(const Shape& shape, Phase phase = Phase::kPrefill);

  // Poisoned pools against the reference on a clean one, in the adapted shape. Without params: the
  // layer that Problem gives.
  void check(const Shape& shape, const std::vector<Seq>& seqs, const std::string& what,
             Phase phase = Phase::kPrefill, const LayerParams* params = nullptr,
             const std::vector<uint64_t>& tree = {});
  // Of outputs: rounding of what a backend computes with.
  double tolerance(const Shape& shape) const;

  Runner runner_;
  const Runner reference_{"reference", "auto", 2};

 private:
  int ran_ = 0;
  std::string missing_;
};

std::string text(const char* name, int64_t value);

#define ATTUNE_SUITE(name)                                                 \
  INSTANTIATE_TEST_SUITE_P(Backends, name, ::testing::ValuesIn(targets()), \
                           [](const auto& info) { return ::testing::PrintToString(info.param); })

}  // namespace attune::attention::test
