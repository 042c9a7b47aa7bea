// Scores are exponents of 2, which is what an instruction takes.
#pragma once

#include <numbers>

namespace attune::attention::fa3 {

inline constexpr float kLog2E = std::numbers::log2e_v<float>, kLn2 = std::numbers::ln2_v<float>;

}  // namespace attune::attention::fa3
