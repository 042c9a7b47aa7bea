// For tests: partial results whose union is known in float64.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/ops.h"
#include "ops/test_stream.h"
#include "tensor/half.h"

namespace attune::ops::test {

struct MergeCase {
  int32_t tokens, heads, v_dim;
  std::vector<float> part, part_lse, out, lse;  // before
  std::vector<double> want, want_lse;           // after
  std::vector<bool> exact;                      // rows of which one side saw no key

  int64_t rows() const { return int64_t{tokens} * heads; }
};

// Every mix of rows that saw no key (their outputs NaN) and rows that did, LSEs far apart and large
// among them. bf16: of numbers that are of that type.
inline MergeCase merge_case(int32_t tokens, int32_t heads, int32_t v_dim, bool bf16 = false) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  MergeCase c{tokens, heads, v_dim};
  const int64_t rows = c.rows();
  c.part = random_floats(rows * v_dim, 1);
  c.out = random_floats(rows * v_dim, 2);
  if (bf16)
    for (std::vector<float>* all : {&c.part, &c.out})
      for (float& x : *all) x = tensor::bf16_to_f32(tensor::f32_to_bf16(x));
  c.part_lse = random_floats(rows, 3, 4.0f);
  c.lse = random_floats(rows, 4, 4.0f);
  c.exact.resize(rows);
  for (int64_t r = 0; r < rows; ++r) {
    if (r % 11 == 3) c.part_lse[r] += 200;
    if (r % 13 == 4) c.lse[r] -= 90;
    const bool no_part = r % 5 == 1 || r % 7 == 2, no_out = r % 5 == 2 || r % 7 == 2;
    if (no_part) c.part_lse[r] = -kInf;
    if (no_out) c.lse[r] = -kInf;
    for (int32_t d = 0; d < v_dim; ++d) {
      float &a = c.out[r * v_dim + d], &b = c.part[r * v_dim + d];
      if (no_part) b = kNaN;
      if (no_out && !no_part) a = kNaN;
      const double top = std::max(c.lse[r], c.part_lse[r]);
      const double wa = no_out ? 0 : std::exp(c.lse[r] - top),
                   wb = no_part ? 0 : std::exp(c.part_lse[r] - top);
      c.want.push_back(no_part ? a : no_out ? b : (a * wa + b * wb) / (wa + wb));
      if (d == 0) c.want_lse.push_back(no_part && no_out ? -double(kInf) : top + std::log(wa + wb));
    }
    c.exact[r] = no_part || no_out;
  }
  return c;
}

// `rounding`: relative, of the results.
inline void expect_merged(const MergeCase& c, double rounding = 0) {
  for (int64_t r = 0; r < c.rows(); ++r) {
    ASSERT_EQ(std::isinf(c.lse[r]), std::isinf(c.want_lse[r])) << "row " << r;
    if (c.exact[r]) {
      ASSERT_EQ(double(c.lse[r]), c.want_lse[r]) << "row " << r;
    } else {
      ASSERT_NEAR(c.lse[r], c.want_lse[r], 2e-7 * (8 + std::abs(c.want_lse[r]))) << "row " << r;
    }
    for (int64_t d = r * c.v_dim; d < (r + 1) * c.v_dim; ++d) {
      if (c.exact[r]) {
        ASSERT_EQ(double(c.out[d]), c.want[d]) << "row " << r;
      } else {
        ASSERT_NEAR(c.out[d], c.want[d], 1e-5 + rounding * std::abs(c.want[d])) << "row " << r;
      }
    }
  }
}

}  // namespace attune::ops::test
