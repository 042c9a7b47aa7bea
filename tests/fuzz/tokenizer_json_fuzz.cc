// Any bytes as tokenizer.json, and after a zero byte a text: refused, or a tokenizer that keeps its
// promises about that text.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

using namespace attune;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t cut = all.find('\0');
  const std::string_view json = all.substr(0, cut);
  std::string text(cut == std::string_view::npos ? "It's 12 <s>\xC3\xA9\xFF" : all.substr(cut + 1));
  if (text.size() > 512) text.resize(512);

  const auto loaded = text::Tokenizer::from_hf(json, "");
  if (!loaded.ok()) {
    if (loaded.status().message().empty()) std::abort();
    return 0;
  }
  const text::Tokenizer& tokenizer = **loaded;
  (void)tokenizer.describe();
  const auto ids = tokenizer.encode(text);
  for (TokenId id : ids) {
    if (id < 0 || id >= tokenizer.vocab_size()) std::abort();
  }
  for (bool skip : {true, false}) {
    text::Detokenizer stream(tokenizer, {.skip_special = skip});
    std::string streamed;
    for (TokenId id : ids) streamed += stream.push(id);
    streamed += stream.finish();
    if (streamed != tokenizer.decode(ids, skip) || !text::is_valid_utf8(streamed)) std::abort();
  }
  (void)tokenizer.encode(text, {.parse_special = false, .add_special_tokens = false});
  return 0;
}
