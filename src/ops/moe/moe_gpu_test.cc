#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <random>

#include "ops/cuda_kernels.h"
#include "ops/gpu_test_util.h"

namespace attune::ops {
namespace {

using test::random_floats;

class CudaMoe : public test::GpuTest {
 protected:
  // Ids as on the CPU, weights as on the CPU to a few units in the last place.
  void check_route(MoeRouteParams p, const std::vector<float>& logits,
                   const std::vector<float>& bias = {}) {
    const auto chosen = static_cast<size_t>(p.tokens) * p.top_k;
    std::vector<int32_t> ids(chosen);
    std::vector<float> weights(chosen);
    p.logits = logits.data();
    p.bias = bias.empty() ? nullptr : bias.data();
    p.ids = ids.data();
    p.weights = weights.data();
    run_on_cpu(cpu_table().moe_route, p);
    p.logits = upload(logits);
    p.bias = bias.empty() ? nullptr : upload(bias);
    p.ids = output<int32_t>(chosen);
    p.weights = output<float>(chosen);
    run(cuda::moe_route, p);
    ASSERT_EQ(download(p.ids, chosen), ids);
    const auto got = download(p.weights, chosen);
    for (size_t i = 0; i < chosen; ++i) {
      if (std::isnan(weights[i])) {
        ASSERT_TRUE(std::isnan(got[i])) << i;
      } else {
        ASSERT_NEAR(got[i], weights[i], 2e-6 * std::abs(weights[i])) << i;
      }
    }
  }
  void check_sort(int32_t tokens, int32_t top_k, int32_t experts, int32_t used) {
    const auto pairs = static_cast<size_t>(tokens) * top_k;
    std::mt19937 rng(tokens);
    std::vector<int32_t> ids(pairs), offsets(experts + 1), token_of_row(pairs), row_of_pair(pairs);
    for (auto& id : ids) id = static_cast<int32_t>(rng() % used);
    run_on_cpu(cpu_table().moe_sort,
               MoeSortParams{ids.data(), tokens, top_k, experts, offsets.data(),
                             token_of_row.data(), row_of_pair.data()});
    MoeSortParams p{upload(ids),
                    tokens,
                    top_k,
                    experts,
                    output<int32_t>(experts + 1),
                    output<int32_t>(pairs),
                    output<int32_t>(pairs)};
    run(cuda::moe_sort, p);
    EXPECT_EQ(download(p.offsets, experts + 1), offsets);
    EXPECT_EQ(download(p.token_of_row, pairs), token_of_row);
    EXPECT_EQ(download(p.row_of_pair, pairs), row_of_pair);
  }
};

TEST_F(CudaMoe, RouteChoosesAsTheCpu) {
  for (bool sigmoid : {false, true}) {
    for (bool normalize : {false, true}) {
      for (const auto& [experts, top_k] :
           {std::pair{8, 2}, {60, 4}, {64, 6}, {128, 8}, {256, 8}, {40, 40}, {1, 1}}) {
        for (int32_t tokens : {0, 1, 5, 333}) {
          MoeRouteParams p{};
          p.tokens = tokens;
          p.experts = experts;
          p.top_k = top_k;
          p.sigmoid = sigmoid;
          p.groups = p.top_groups = 1;
          p.normalize = normalize;
          p.scale = 2.5f;
          const auto logits = random_floats(static_cast<size_t>(tokens) * experts, experts, 2);
          check_route(p, logits);
          check_route(p, logits, random_floats(experts, 7, 0.3f));
        }
      }
    }
  }
}

TEST_F(CudaMoe, RouteGroups) {
  for (bool sigmoid : {false, true}) {
    for (bool top2 : {false, true}) {
      for (const auto& [experts, groups, top_groups, top_k] :
           {std::array{256, 8, 4, 8},
            {160, 8, 3, 6},
            {12, 4, 1, 3},
            {12, 12, 3, 3},
            {12, 4, 1, 5}}) {  // the last: more than the groups have
        MoeRouteParams p{};
        p.tokens = 257;
        p.experts = experts;
        p.top_k = top_k;
        p.sigmoid = sigmoid;
        p.groups = groups;
        p.top_groups = top_groups;
        p.group_top2 = top2;
        p.normalize = true;
        p.scale = 1;
        check_route(p, random_floats(static_cast<size_t>(p.tokens) * experts, groups, 2),
                    random_floats(experts, 8, 0.3f));
      }
    }
  }
}

TEST_F(CudaMoe, RouteTiesAndNumbersThatAreNone) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              inf = std::numeric_limits<float>::infinity();
  for (bool sigmoid : {false, true}) {
    for (int32_t groups : {1, 4}) {
      MoeRouteParams p{};
      p.experts = 64;
      p.tokens = 8;
      p.top_k = 6;
      p.sigmoid = sigmoid;
      p.groups = groups;
      p.top_groups = groups == 1 ? 1 : 2;
      p.group_top2 = true;
      p.normalize = true;
      p.scale = 1;
      std::vector<float> logits(8 * 64, 0.5f);                       // token 0: all equal
      for (int e = 0; e < 64; ++e) logits[64 + e] = float(e % 3);    // 1: many equal
      for (int e = 0; e < 64; ++e) logits[128 + e] = -float(e / 5);  // 2
      logits[3 * 64 + 40] = nan;
      logits[4 * 64] = nan;
      logits[5 * 64 + 63] = inf;
      for (int e = 0; e < 64; ++e) logits[6 * 64 + e] = e == 9 ? 1.0f : -inf;
      for (int e = 0; e < 64; ++e) logits[7 * 64 + e] = -inf;
      check_route(p, logits);
    }
  }
}

TEST_F(CudaMoe, SortIsStable) {
  check_sort(0, 8, 16, 16);
  check_sort(1, 1, 1, 1);
  check_sort(1, 8, 256, 256);
  check_sort(7, 3, 20, 20);
  check_sort(64, 8, 256, 256);
  check_sort(1000, 6, 64, 3);  // most experts have none
  check_sort(8192, 8, 256, 256);
  check_sort(8192, 8, 256, 1);
  check_sort(8191, 7, 160, 160);
  check_sort(333, 5, 1500, 1500);
}

TEST_F(CudaMoe, CopyRows) {
  for (int64_t bytes : {int64_t{1}, int64_t{7}, int64_t{12}, int64_t{256}, int64_t{8192}}) {
    for (int64_t gap : {0, 1, 16}) {
      const int32_t count = 23;
      std::vector<uint8_t> x(static_cast<size_t>(10 * (bytes + gap)));
      for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint8_t>(i * 31 + i / 256);
      std::vector<int32_t> rows(count);
      for (int32_t i = 0; i < count; ++i) rows[i] = (i * 3) % 10;
      uint8_t* out = output<uint8_t>(static_cast<size_t>(count * bytes));
      run(cuda::copy_rows, CopyRowsParams{upload(x), bytes + gap, upload(rows), count, bytes, out});
      run(cuda::copy_rows, CopyRowsParams{nullptr, bytes, nullptr, 0, bytes, out});
      const auto got = download(out, static_cast<size_t>(count * bytes));
      for (int32_t r = 0; r < count; ++r)
        for (int64_t i = 0; i < bytes; ++i)
          ASSERT_EQ(got[r * bytes + i], x[rows[r] * (bytes + gap) + i]);
    }
  }
}

TEST_F(CudaMoe, CombineAddsInOrder) {
  for (int32_t n : {1, 33, 2048, 2052}) {
    for (int32_t tokens : {0, 1, 65}) {
      const int32_t top_k = 6, gap = n % 4;
      const int64_t ldo = n + 4 + gap;
      const auto pairs = static_cast<size_t>(tokens) * top_k;
      const auto y = random_floats(pairs * n, 3), weights = random_floats(pairs, 4);
      const auto start = random_floats(static_cast<size_t>(tokens * ldo), 5);
      std::vector<int32_t> rows(pairs);
      std::iota(rows.begin(), rows.end(), 0);
      std::shuffle(rows.begin(), rows.end(), std::mt19937(6));
      float* out = output(start, start.size());
      run(cuda::moe_combine,
          MoeCombineParams{upload(y), upload(rows), upload(weights), tokens, top_k, n, out, ldo});
      const auto got = download(out, start.size());
      for (int32_t t = 0; t < tokens; ++t) {
        for (int32_t i = 0; i < ldo; ++i) {
          float want = start[t * ldo + i];
          for (int32_t j = 0; j < top_k && i < n; ++j)
            want = std::fma(weights[t * top_k + j],
                            y[static_cast<size_t>(rows[t * top_k + j]) * n + i], want);
          ASSERT_EQ(got[t * ldo + i], want) << t << " " << i;  // the same operations
        }
      }
    }
  }
}

}  // namespace
}  // namespace attune::ops
