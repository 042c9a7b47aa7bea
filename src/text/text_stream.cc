#include "text/text_stream.h"

#include "text/unicode.h"

namespace attune::text {

TextStream::TextStream(const Tokenizer& tokenizer, TextStreamOptions options)
    : detokenizer_(tokenizer, options.detokenize),
      stops_(std::move(options.stop), options.no_stop_trim) {}

TextDelta TextStream::push(std::span<const TokenId> tokens) {
  TextDelta delta;
  if (stops_.stopped()) return {.stopped = true, .which = stops_.which()};
  delta.offsets.reserve(tokens.size());
  for (TokenId token : tokens) {
    delta.offsets.push_back(characters_);
    ++delta.tokens_used;
    ++tokens_;
    const std::string text = detokenizer_.push(token);
    characters_ += static_cast<int64_t>(count_characters(text));
    StopMatcher::Output out = stops_.push(text);
    delta.text += out.text;
    if (!out.stopped) continue;
    delta.stopped = true;
    delta.which = out.which;
    break;
  }
  return delta;
}

TextDelta TextStream::finish() {
  if (stops_.stopped()) return {.stopped = true, .which = stops_.which()};
  StopMatcher::Output out = stops_.push(detokenizer_.finish());
  TextDelta delta{.text = std::move(out.text), .stopped = out.stopped, .which = out.which};
  if (!out.stopped) delta.text += stops_.finish();
  return delta;
}

const std::string& TextStream::stop_string() const {
  static const std::string none;
  return stops_.stopped() ? stops_.stops()[static_cast<size_t>(stops_.which())] : none;
}

}  // namespace attune::text
