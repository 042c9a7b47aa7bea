// Finds stop strings in text that arrives in pieces.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace attune::text {

// One per stream; not thread-safe.
//
// The match that ends first wins; of those that end at the same byte, the longest. So the result
// depends on the text alone, never on how it was cut into pieces. Only the longest tail of the text
// that is itself the beginning of a stop string is held back, and nothing handed out is ever taken
// back.
class StopMatcher {
 public:
  struct Output {
    std::string text;      // to be shown now; may be empty
    bool stopped = false;  // a stop string is complete; later text is dropped
    int which = -1;        // its index in the list given
  };

  StopMatcher() = default;
  // Empty stop strings never match. keep_stop: the matched string stays in the text (no_stop_trim).
  explicit StopMatcher(std::vector<std::string> stops, bool keep_stop = false);

  Output push(std::string_view text);
  // What is still held back: the text ends here.
  std::string finish();

  bool stopped() const { return which_ >= 0; }
  int which() const { return which_; }
  const std::vector<std::string>& stops() const { return stops_; }
  // Bytes held back now.
  size_t pending_bytes() const { return pending_.size(); }

 private:
  std::vector<std::string> stops_;
  std::vector<std::vector<size_t>> failure_;  // Knuth-Morris-Pratt, per stop string
  std::vector<size_t> matched_;               // bytes of each stop string that the text ends with
  std::string pending_;
  bool keep_stop_ = false;
  int which_ = -1;
};

}  // namespace attune::text
