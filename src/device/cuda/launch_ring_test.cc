#include "device/cuda/launch_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace attune::device {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(LaunchRing, TellsGridBlockAndArgumentsNewestFirst) {
  LaunchRing ring;
  EXPECT_EQ(ring.describe(), "nothing was launched");
  ring.record("norm", {4, 1, 1}, {256, 1, 1}, {{"rows", 4}, {"dim", 4096}});
  ring.record("copy", {0, 0, 0}, {0, 0, 0}, {{"bytes", -1}});
  ring.record("attend", {1, 2, 1}, {8, 1, 3}, {});
  EXPECT_EQ(ring.describe(),
            "last launches, newest first: attend<<<1x2, 8x1x3>>>(), copy(bytes=-1), "
            "norm<<<4, 256>>>(rows=4, dim=4096)");
}

TEST(LaunchRing, KeepsTheLastOnes) {
  LaunchRing ring;
  const int64_t launches = 3 * LaunchRing::kLaunches + 1;
  for (int64_t i = 0; i < launches; ++i) ring.record("k", {1, 1, 1}, {1, 1, 1}, {{"i", i}});
  EXPECT_EQ(ring.count(), launches);
  const std::string text = ring.describe();
  EXPECT_THAT(text, HasSubstr("first: k<<<1, 1>>>(i=24)"));
  EXPECT_THAT(text, HasSubstr("(i=17)"));
  EXPECT_THAT(text, Not(HasSubstr("(i=16)")));
}

TEST(LaunchRing, CutsWhatIsTooLong) {
  LaunchRing ring;
  ring.record(
      std::string(200, 'x').c_str(), {1, 1, 1}, {1, 1, 1},
      {{"a", 1}, {"b", 2}, {"c", 3}, {"d", 4}, {"e", 5}, {"f", 6}, {"g", 7}, {"h", 8}, {"i", 9}});
  const std::string text = ring.describe();
  EXPECT_THAT(text, HasSubstr(std::string(LaunchRing::kNameBytes - 1, 'x') + "<<<"));
  EXPECT_THAT(text, Not(HasSubstr(std::string(LaunchRing::kNameBytes, 'x'))));
  EXPECT_THAT(text, HasSubstr("h=8)"));
}

}  // namespace
}  // namespace attune::device
