#include "sched/admission.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace attune::sched {
namespace {

// The same by brute force: every token's time.
int32_t peak_by_steps(const std::vector<PageNeed>& needs, int32_t page_size, int32_t now) {
  int32_t longest = 0, peak = now;
  for (const PageNeed& n : needs) longest = std::max(longest, n.tokens);
  for (int32_t t = 0; t <= longest; ++t) {
    int32_t pages = 0;
    for (const PageNeed& n : needs)
      pages += t <= n.tokens ? n.now + (t + page_size - 1) / page_size : -n.held;
    peak = std::max(peak, pages);
  }
  return peak;
}

TEST(PageForecast, EqualsASimulation) {
  std::mt19937 rng(3);
  for (int round = 0; round < 2000; ++round) {
    const auto page_size = static_cast<int32_t>(1 + rng() % 5);
    PageForecast forecast(page_size);
    std::vector<PageNeed> needs;
    const auto random_need = [&](bool fresh) {
      return PageNeed{static_cast<int32_t>(rng() % 30), fresh ? static_cast<int32_t>(rng() % 9) : 0,
                      fresh ? 0 : static_cast<int32_t>(rng() % 9)};
    };
    for (size_t i = rng() % 8; i > 0; --i) {
      needs.push_back(random_need(false));
      forecast.add(needs.back());
    }
    const PageNeed candidate = random_need(true);
    needs.push_back(candidate);
    ASSERT_EQ(forecast.peak_with(candidate), peak_by_steps(needs, page_size, candidate.now));
  }
}

TEST(PageForecast, RequestsThatEndEarlyMakeRoom) {
  PageForecast forecast(1);
  forecast.add({10, 0, 100});  // ends after 10 tokens and gives 100 pages back
  // A plain sum would ask for 10 + 50 + 2; but when the second has 50, the first is long over.
  EXPECT_EQ(forecast.peak_with({50, 2, 0}), 2 + 10 + 10);
}

TEST(OutputGuess, FallsWithTimeAndJumpsAtARetraction) {
  OutputGuess guess(1.0);
  EXPECT_EQ(guess.tokens(100), 70);
  EXPECT_EQ(guess.tokens(1000000), 2868);  // no more than 4096 of one request
  for (int i = 0; i < 1000; ++i) guess.on_step();
  EXPECT_EQ(guess.tokens(1000), 98);
  guess.on_retraction(500, 1000, 5);
  EXPECT_NEAR(guess.ratio(), 0.6, 1e-9);
  guess.on_retraction(5000, 1000, 5);
  EXPECT_EQ(guess.ratio(), 1.0);
}

TEST(BugG09, TheGuessRecoversAfterARetraction) {
  for (const double conservativeness : {0.0, 0.5, 1.0, 2.0}) {
    OutputGuess guess(conservativeness);
    for (int i = 0; i < 1000; ++i) guess.on_step();
    const double before = guess.ratio();
    guess.on_retraction(1000, 1000, 1);
    for (int i = 0; i < 1000; ++i) guess.on_step();
    EXPECT_NEAR(guess.ratio(), before, 1e-9) << conservativeness;
  }
}

}  // namespace
}  // namespace attune::sched
