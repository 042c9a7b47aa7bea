// The text side of one request's output: detokenization, stop strings, and where each token's text
// begins.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace attune::text {

struct TextStreamOptions {
  DetokenizeOptions detokenize;
  std::vector<std::string> stop;
  bool no_stop_trim = false;  // keep the matched stop string in the text
};

struct TextDelta {
  std::string text;  // to be sent now; may be empty (then send nothing)
  bool stopped =
      false;       // a stop string was completed by tokens[tokens_used - 1]: abort the request
  int which = -1;  // index of that stop string
  size_t tokens_used = 0;  // how many of the tokens pushed count as output; all, unless stopped
  // Per used token: the character (code point) of the whole text, stop strings and held-back text
  // counted, at which the token's text begins. A token inside a character has that character's
  // offset.
  std::vector<int64_t> offsets;
};

// One per stream; not thread-safe.
class TextStream {
 public:
  // `tokenizer` must outlive this.
  TextStream(const Tokenizer& tokenizer, TextStreamOptions options);

  // After a stop nothing more comes out, and tokens_used is 0.
  TextDelta push(std::span<const TokenId> tokens);
  // What was held back, when the stream ends for another reason than a stop string. May itself
  // report a stop (an incomplete character at the end); tokens_used is 0.
  TextDelta finish();

  bool stopped() const { return stops_.stopped(); }
  const std::string& stop_string() const;     // the one that matched, or empty
  int64_t tokens() const { return tokens_; }  // used so far

 private:
  Detokenizer detokenizer_;
  StopMatcher stops_;
  int64_t tokens_ = 0;
  int64_t characters_ = 0;
};

}  // namespace attune::text
