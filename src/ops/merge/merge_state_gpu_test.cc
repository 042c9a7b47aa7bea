#include <gtest/gtest.h>

#include "ops/cuda_kernels.h"
#include "ops/merge/merge_test_util.h"

namespace attune::ops::test {
namespace {

TEST(MergeStateOnGpu, IsTheUnionByFloat64) {
  auto made = device::create_cuda_device(0);
  if (!made.ok()) GTEST_SKIP() << made.status().message();
  device::Device& device = **made;
  const auto stream = device.create_stream();
  const auto copy = [&](const std::vector<float>& from) {
    auto buffer = device.allocate(std::ssize(from) * 4, "a test");
    EXPECT_TRUE(buffer.ok());
    if (!from.empty()) stream->copy(buffer->data(), from.data(), std::ssize(from) * 4);
    return std::move(*buffer);
  };
  for (auto [tokens, heads, v_dim] : {std::array{1, 1, 1}, {0, 4, 8}, {7, 3, 13}, {130, 16, 128}}) {
    MergeCase c = merge_case(tokens, heads, v_dim);
    const auto part = copy(c.part), part_lse = copy(c.part_lse), out = copy(c.out),
               lse = copy(c.lse);
    const MergeStateParams params{part.as<float>(), part_lse.as<float>(), tokens, heads, v_dim,
                                  out.as<float>(),  lse.as<float>()};
    stream->launch([&] { cuda::merge_state(params, *stream); });
    stream->copy(c.out.data(), out.data(), out.bytes());
    stream->copy(c.lse.data(), lse.data(), lse.bytes());
    stream->synchronize();
    ASSERT_TRUE(stream->status().ok()) << stream->status().to_string();
    expect_merged(c);
  }
}

}  // namespace
}  // namespace attune::ops::test
