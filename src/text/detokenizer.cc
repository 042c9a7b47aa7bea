#include "text/detokenizer.h"

#include "text/unicode.h"

namespace attune::text {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, DetokenizeOptions options)
    : tokenizer_(tokenizer), options_(options) {}

std::string Detokenizer::push(std::span<const TokenId> ids) {
  std::string out;
  for (TokenId id : ids) {
    if (options_.skip_special && tokenizer_.is_special(id)) continue;
    std::string_view bytes = tokenizer_.token_bytes(id);
    if (bytes.empty()) continue;
    if (at_start_) {
      at_start_ = false;
      const bool strip = options_.strip_leading_space && tokenizer_.strips_leading_space();
      if (strip && bytes.front() == ' ') bytes.remove_prefix(1);
    }
    append_lossy(pending_, bytes, out);
  }
  return out;
}

std::string Detokenizer::finish() {
  const bool cut_short = !pending_.empty();
  pending_.clear();
  at_start_ = true;
  return cut_short ? std::string(kReplacement) : std::string();
}

}  // namespace attune::text
