// Text to token ids and back. One immutable object per model, shared by every request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attune/request.h"
#include "attune/status.h"

namespace attune::formats {
class GgufFile;
}

namespace attune::text {

struct VocabData;

struct EncodeOptions {
  // True: the text of a special (control) token becomes that token. False: it stays text. Added
  // tokens that are not special (such as <tool_call> of Qwen2.5) always become tokens, as in
  // `tokenizers`.
  bool parse_special = true;
  // True: what the model's own tokenizer puts around a text (BOS, seldom EOS) is added. A text that
  // already begins with the BOS token gets no second one. False for what a chat template rendered.
  bool add_special_tokens = true;
  // 0: none. Else encoding may stop once there are more ids than this: the result then has more,
  // but not all. For a text that is of no use beyond so many; saves the time of the rest.
  size_t max_tokens = 0;
};

// Bytes [begin, end) of a text.
struct ByteRange {
  size_t begin = 0, end = 0;
};

// Thread-safe: every method is const and may be called from any thread.
//
// Text that is not valid UTF-8 is read as if each maximal invalid part were U+FFFD (what Python's
// bytes.decode("utf-8", "replace") does); decoded text has U+FFFD where the ids' bytes are invalid.
class Tokenizer {
 public:
  // `path` is a .gguf file, a tokenizer.json, or a folder that holds one (tokenizer_config.json and
  // chat_template.jinja beside it are read too). Errors: not_found,
  // io_error, data_loss (malformed, with the field), unsupported (a tokenizer model, pre-tokenizer
  // or normaliser that is not known, by name, with the list of the known ones).
  static Result<std::shared_ptr<const Tokenizer>> load(const std::string& path);
  static Result<std::shared_ptr<const Tokenizer>> from_gguf(const formats::GgufFile& file);
  // The texts of tokenizer.json and tokenizer_config.json (may be empty).
  static Result<std::shared_ptr<const Tokenizer>> from_hf(std::string_view tokenizer_json,
                                                          std::string_view tokenizer_config_json);
  static Result<std::shared_ptr<const Tokenizer>> create(VocabData data);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  std::vector<TokenId> encode(std::string_view text, EncodeOptions options = {}) const;
  // As above; a special token is recognised only where it overlaps none of `literal` (sorted,
  // disjoint): the parts of a rendered chat template that came from message content.
  std::vector<TokenId> encode(std::string_view text, EncodeOptions options,
                              std::span<const ByteRange> literal) const;

  // Valid UTF-8. Ids outside the vocabulary give no text. For a SentencePiece vocabulary the one
  // space that encoding puts in front of a text is taken off again.
  std::string decode(std::span<const TokenId> ids, bool skip_special = true) const;

  // The bytes the token stands for: "▁the" is " the", <0x0A> is "\n", a special token its own
  // text. Empty for ids outside the vocabulary. Valid as long as the tokenizer.
  std::string_view token_bytes(TokenId id) const;
  // The same as valid UTF-8, with U+FFFD where a character is not whole. What decode() would give,
  // but a space in front stays.
  std::string token_string(TokenId id) const;
  // The token as its vocabulary spells it ("Ġthe", "▁the", "<0x0A>").
  std::string_view token_text(TokenId id) const;
  // A control token: not text; decode(skip_special) leaves it out.
  bool is_special(TokenId id) const;
  // The id of a special or added token by its exact text.
  std::optional<TokenId> find_special(std::string_view text) const;
  // The id of any token by its vocabulary spelling (token_text).
  std::optional<TokenId> find_token(std::string_view text) const;

  int32_t vocab_size() const;  // largest id + 1
  std::optional<TokenId> bos_id() const;
  std::optional<TokenId> eos_id() const;
  std::optional<TokenId> pad_id() const;
  std::optional<TokenId> unk_id() const;
  // Every id that ends a turn: eos, and the file's (or, for GGUF, the well-known) end-of-turn
  // tokens.
  const std::vector<TokenId>& eos_ids() const;
  bool add_bos() const;  // encode(add_special_tokens) puts BOS in front
  // decode() takes one leading space off (SentencePiece vocabularies).
  bool strips_leading_space() const;
  // How many bytes one token can stand for at most.
  size_t max_token_bytes() const;

  // The model's chat template, or empty. A named one ("tool_use") or empty.
  const std::string& chat_template() const;
  const std::string& chat_template(std::string_view name) const;

  // "byte-level BPE, pre-tokenizer smollm, 49152 tokens, 17 special"
  std::string describe() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace attune::text
