// Many products at once are those products one by one.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/gemm/gemm_test_util.h"
#include "ops/ops.h"
#include "ops/test_stream.h"

namespace attune::ops {
namespace {

using test::DType;
using test::TestStream;

constexpr float kPoison = 12345.0f;

struct Config {
  device::CpuIsa isa;
  DType act;
};
void PrintTo(const Config& c, std::ostream* out) {
  *out << device::cpu_isa_name(c.isa) << " " << tensor::dtype_name(c.act);
}

std::vector<Config> configs() {
  std::vector<Config> all;
  for (int i = 0; i <= static_cast<int>(device::detect_cpu_isa()); ++i)
    all.push_back({static_cast<device::CpuIsa>(i), DType::kF32});
  if (device::detect_cpu_isa() >= device::CpuIsa::kAvx512Bf16)
    all.push_back({device::CpuIsa::kAvx512Bf16, DType::kBF16});
  return all;
}

struct Item {
  PackedWeight weight;
  std::vector<float> x;
  std::vector<uint16_t> x_half;
  std::vector<float> group, single;
};

class LinearGroup : public ::testing::TestWithParam<Config> {
 protected:
  Item item(DType dtype, int32_t n, int32_t k, int32_t m, uint32_t seed) {
    auto raw = test::random_weight(dtype, n, k, seed);
    auto packed = pack_weight({raw.view}, GetParam().act, stream_.device(), stream_.stream());
    EXPECT_TRUE(packed.ok()) << packed.status().to_string();
    Item item{.weight = std::move(packed).value(), .x = test::random_floats(m * (k + 3), seed + 1)};
    for (float f : item.x) item.x_half.push_back(tensor::f32_to_bf16(f));
    item.group.assign(m * (n + 5), kPoison);
    item.single = item.group;
    return item;
  }
  LinearParams params(Item& item, std::vector<float>& y, bool deterministic) const {
    const int32_t k = item.weight.k, n = item.weight.n;
    const bool half = GetParam().act == DType::kBF16;
    return {.x = half ? static_cast<const void*>(item.x_half.data()) : item.x.data(),
            .x_dtype = GetParam().act,
            .ldx = k + 3,
            .m = static_cast<int32_t>(item.x.size() / (k + 3)),
            .weight = &item.weight,
            .bias = nullptr,
            .y = y.data(),
            .ldy = n + 5,
            .accumulate = false,
            .deterministic = deterministic};
  }
  void check(std::vector<Item>& items, bool deterministic) {
    const OpTable& ops = cpu_ops(GetParam().isa);
    std::vector<LinearParams> all;
    for (Item& i : items) all.push_back(params(i, i.group, deterministic));
    stream_.stream().launch(
        [&] { ops.linear_group(all.data(), static_cast<int32_t>(all.size()), stream_.stream()); });
    stream_.stream().synchronize();
    for (Item& i : items) {
      stream_.run(ops.linear, params(i, i.single, deterministic));
      for (size_t j = 0; j < i.group.size(); ++j) {
        if (deterministic)
          ASSERT_EQ(i.group[j], i.single[j]) << j;
        else
          ASSERT_NEAR(i.group[j], i.single[j], 1e-4) << j;
      }
    }
  }

  TestStream stream_{2};
};

// Experts of a batch: row counts from none to more than a piece of rows holds.
TEST_P(LinearGroup, IsEachOneAlone) {
  for (bool deterministic : {false, true}) {
    for (DType dtype : test::kWeightTypes) {
      SCOPED_TRACE(tensor::dtype_name(dtype));
      std::vector<Item> items;
      uint32_t seed = 1;
      for (int32_t m : {1, 0, 3, 13, 12, 150, 300, 1})
        items.push_back(item(dtype, 40 + 24 * m % 200, 256, m, ++seed));
      check(items, deterministic);
    }
  }
}

TEST_P(LinearGroup, WideInputs) {
  std::vector<Item> items;
  items.push_back(item(DType::kQ8_0, 100, 20480, 70, 1));  // sums of x need several pieces
  items.push_back(item(DType::kQ8_0, 16, 20480, 12, 2));
  check(items, false);
  stream_.stream().launch(
      [&] { cpu_ops(GetParam().isa).linear_group(nullptr, 0, stream_.stream()); });
  stream_.stream().synchronize();
}

// More experts than a group takes, most of them without rows.
TEST_P(LinearGroup, ExpertsAreTheirProducts) {
  for (bool deterministic : {false, true}) {
    const int32_t experts = 150, n = 48, k = 256;
    std::vector<int32_t> offsets = {0};
    for (int32_t e = 0; e < experts; ++e)
      offsets.push_back(offsets.back() + (e % 7 == 0 ? e % 5 : e == 140 ? 40 : 0));
    std::vector<Item> items;
    std::vector<const PackedWeight*> weights;
    items.reserve(experts);
    for (int32_t e = 0; e < experts; ++e) {
      items.push_back(item(DType::kQ8_0, n, k, 0, 100 + e));
      weights.push_back(&items.back().weight);
    }
    auto gathered = gather_experts(weights, stream_.device(), stream_.stream());
    ASSERT_TRUE(gathered.ok()) << gathered.status().to_string();
    Item all = item(DType::kQ8_0, n, k, offsets.back(), 7);
    const LinearParams shape = params(all, all.group, deterministic);
    stream_.run(cpu_ops(GetParam().isa).expert_linear, {.x = shape.x,
                                                        .x_dtype = shape.x_dtype,
                                                        .ldx = shape.ldx,
                                                        .rows = offsets.back(),
                                                        .offsets = offsets.data(),
                                                        .weights = &*gathered,
                                                        .y = all.group.data(),
                                                        .y_dtype = DType::kF32,
                                                        .ldy = shape.ldy,
                                                        .deterministic = deterministic});
    const int64_t x_bytes = tensor::dtype_bytes(shape.x_dtype, 1);
    for (int32_t e = 0; e < experts; ++e) {
      LinearParams one = params(all, all.single, deterministic);
      one.x = static_cast<const char*>(one.x) + offsets[e] * one.ldx * x_bytes;
      one.y = all.single.data() + offsets[e] * one.ldy;
      one.m = offsets[e + 1] - offsets[e];
      one.weight = weights[e];
      stream_.run(cpu_ops(GetParam().isa).linear, one);
    }
    for (size_t j = 0; j < all.group.size(); ++j) ASSERT_NEAR(all.group[j], all.single[j], 1e-4);
  }
}

TEST_P(LinearGroup, ExpertsOfDifferentShapesAreRefused) {
  const Item a = item(DType::kQ8_0, 16, 256, 0, 1), b = item(DType::kQ8_0, 32, 256, 0, 2);
  EXPECT_EQ(
      gather_experts({&a.weight, &b.weight}, stream_.device(), stream_.stream()).status().code(),
      Code::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Levels, LinearGroup, ::testing::ValuesIn(configs()), [](const auto& info) {
  return std::string(device::cpu_isa_name(info.param.isa)) + "_" +
         tensor::dtype_name(info.param.act);
});

}  // namespace
}  // namespace attune::ops
