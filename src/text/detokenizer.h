// Token ids to text as they arrive: only whole characters leave, and none is ever taken back.
#pragma once

#include <span>
#include <string>

#include "text/tokenizer.h"

namespace attune::text {

struct DetokenizeOptions {
  bool skip_special = true;
  // Take the one leading space of a SentencePiece vocabulary off, as decode() does. False when the
  // text goes on after a prompt.
  bool strip_leading_space = true;
};

// One per stream; not thread-safe. With the default options the texts of all push() calls and of
// finish(), joined, equal decode() of all ids.
class Detokenizer {
 public:
  // `tokenizer` must outlive this.
  explicit Detokenizer(const Tokenizer& tokenizer, DetokenizeOptions options = {});

  // Newly complete characters (maybe none). Bytes of a character that is not complete yet are kept
  // back; bytes that can no longer become one leave as U+FFFD.
  std::string push(std::span<const TokenId> ids);
  std::string push(TokenId id) { return push(std::span(&id, 1)); }
  // An incomplete character at the end becomes U+FFFD. The stream may then start anew.
  std::string finish();

  // Bytes kept back; at most 3.
  size_t pending_bytes() const { return pending_.size(); }

 private:
  const Tokenizer& tokenizer_;
  DetokenizeOptions options_;
  std::string pending_;
  bool at_start_ = true;
};

}  // namespace attune::text
