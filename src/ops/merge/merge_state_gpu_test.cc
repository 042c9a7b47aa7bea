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
  const auto copy = [&](const auto& from) {
    const auto bytes = static_cast<int64_t>(from.size() * sizeof(from[0]));
    auto buffer = device.allocate(bytes, "a test");
    EXPECT_TRUE(buffer.ok());
    if (!from.empty()) stream->copy(buffer->data(), from.data(), bytes);
    return std::move(*buffer);
  };
  const auto as_bf16 = [](const std::vector<float>& from) {
    std::vector<uint16_t> to;
    for (float x : from) to.push_back(tensor::f32_to_bf16(x));
    return to;
  };
  for (bool bf16 : {false, true})
    for (auto [tokens, heads, v_dim] :
         {std::array{1, 1, 1}, {0, 4, 8}, {7, 3, 13}, {130, 16, 128}}) {
      MergeCase c = merge_case(tokens, heads, v_dim, bf16);
      std::vector<uint16_t> merged = as_bf16(c.out);
      const auto part = bf16 ? copy(as_bf16(c.part)) : copy(c.part);
      const auto out = bf16 ? copy(merged) : copy(c.out);
      const auto part_lse = copy(c.part_lse), lse = copy(c.lse);
      const MergeStateParams params{
          part.data(), part_lse.as<float>(), tokens,          heads,
          v_dim,       out.data(),           lse.as<float>(), bf16 ? DType::kBF16 : DType::kF32};
      stream->launch([&] { cuda::merge_state(params, *stream); });
      if (bf16) {
        stream->copy(merged.data(), out.data(), out.bytes());
      } else {
        stream->copy(c.out.data(), out.data(), out.bytes());
      }
      stream->copy(c.lse.data(), lse.data(), lse.bytes());
      stream->synchronize();
      ASSERT_TRUE(stream->status().ok()) << stream->status().to_string();
      if (bf16)
        for (size_t i = 0; i < merged.size(); ++i) c.out[i] = tensor::bf16_to_f32(merged[i]);
      expect_merged(c, bf16 ? 0x1p-8 : 0);
    }
}

}  // namespace
}  // namespace attune::ops::test
