// From a model's files to VocabData. The results view into what they were made from.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "attune/status.h"
#include "formats/gguf.h"
#include "formats/json.h"
#include "text/vocab_data.h"

namespace attune::text {

// From tokenizer.ggml.* and tokenizer.chat_template (ggml's docs/gguf.md). Errors: not_found (no
// tokenizer in the file), data_loss (with the key), unsupported (model or pre-tokenizer, by name).
Result<VocabData> vocab_from_gguf(const formats::GgufFile& file);

// From tokenizer.json; `config` is tokenizer_config.json or null. Errors as above, with the JSON
// path.
Result<VocabData> vocab_from_hf(const formats::Json& tokenizer, const formats::Json& config);

// GPT-2's alphabet: each byte has a printable character (openai/gpt-2 encoder.py's
// bytes_to_unicode).
const std::array<char32_t, 256>& byte_alphabet();
// The bytes of a token spelled in it; none when a character is outside the alphabet.
std::optional<std::string> bytes_of_spelling(std::string_view spelling);
// The byte of "<0x41>", or -1.
int byte_of_fallback_token(std::string_view spelling);

}  // namespace attune::text
