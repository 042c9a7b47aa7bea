// How many requests may run at once: a guess of the pages they will need.
//
// Choices there are: (a) set aside the longest possible output of each request: never retracts, but
// most requests stop early and the pool stands half empty; (b) SGLang's: free pages less the sum of
// all expected outputs, each max_new_tokens times a ratio that falls while all goes well and jumps
// up at a retraction; (c) the highest point in time of what is held. Taken: (c) with (b)'s ratio.
// Requests do not all end at the same moment: when the longest has written its last token, the
// pages of the shorter ones are back. So (b)'s plain sum refuses requests that would have fitted.
#pragma once

#include <cstdint>
#include <vector>

namespace attune::sched {

// Adapts to how much of max_new_tokens requests really write.
class OutputGuess {
 public:
  explicit OutputGuess(double conservativeness);
  // Tokens still to come of a request that may write `remaining` more.
  int32_t tokens(int32_t remaining) const;
  void on_step();  // a step with decode rows and no retraction
  // `generated` and `allowed` (max_new_tokens) summed over the requests that keep running.
  void on_retraction(int64_t generated, int64_t allowed, int32_t running);
  double ratio() const { return ratio_; }

 private:
  double ratio_, floor_;
};

struct PageNeed {
  int32_t tokens = 0;  // output still to come, guessed
  int32_t now = 0;     // pages it takes at once
  int32_t held = 0;    // pages that come back when it ends
};

// The running requests' needs over time.
class PageForecast {
 public:
  explicit PageForecast(int32_t page_size) : page_size_(page_size) {}
  void add(const PageNeed& need);
  // The most pages, beyond those held today, that all of them and `candidate` will have at a time.
  int32_t peak_with(const PageNeed& candidate) const;

 private:
  int32_t page_size_;
  std::vector<PageNeed> needs_;  // most tokens first
};

}  // namespace attune::sched
