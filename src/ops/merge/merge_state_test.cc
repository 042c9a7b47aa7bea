#include <gtest/gtest.h>

#include "ops/merge/merge_test_util.h"

namespace attune::ops::test {
namespace {

TEST(MergeState, IsTheUnionByFloat64) {
  for (int threads : {1, 3}) {
    TestStream stream(threads);
    for (auto [tokens, heads, v_dim] :
         {std::array{1, 1, 1}, {0, 4, 8}, {7, 3, 13}, {130, 16, 128}}) {
      MergeCase c = merge_case(tokens, heads, v_dim);
      stream.run(cpu_ops(device::CpuIsa::kAvx2).merge_state,
                 MergeStateParams{c.part.data(), c.part_lse.data(), tokens, heads, v_dim,
                                  c.out.data(), c.lse.data()});
      expect_merged(c);
    }
  }
}

}  // namespace
}  // namespace attune::ops::test
