// Small vocabularies for tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/test_files.h"
#include "text/loaders.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace attune::text {

inline TokenId put_token(VocabData& data, std::string_view text,
                         TokenType type = TokenType::kNormal) {
  data.tokens.push_back(data.owned.emplace_back(text));
  data.types.push_back(type);
  const auto id = static_cast<TokenId>(data.tokens.size() - 1);
  const bool special = type == TokenType::kControl;
  if (special || type == TokenType::kUserDefined) {
    data.added.push_back({.id = id, .text = std::string(text), .special = special});
  }
  return id;
}

// The 256 bytes, a few merges, <|bos|> = 0, <|im_start|> = 1, <|im_end|> = 2 (EOS), <think> = 3 (no
// control token). Puts BOS in front.
inline VocabData byte_level_data() {
  VocabData data;
  data.byte_level = true;
  data.pre_tokenizer_name = "gpt-2";
  for (const char* special : {"<|bos|>", "<|im_start|>", "<|im_end|>"})
    put_token(data, special, TokenType::kControl);
  put_token(data, "<think>", TokenType::kUserDefined);
  for (char32_t c : byte_alphabet()) {
    std::string spelling;
    append_utf8(c, spelling);
    put_token(data, spelling);
  }
  using Pairs = std::vector<std::pair<std::string_view, std::string_view>>;
  for (const auto& [left, right] : Pairs{{"h", "e"},
                                         {"l", "l"},
                                         {"he", "ll"},
                                         {"hell", "o"},
                                         {"\u0120", "w"},
                                         {"o", "r"},
                                         {"\u0120w", "or"},
                                         {"a", "a"},
                                         {"aa", "aa"}}) {
    put_token(data, std::string(left) + std::string(right));
    data.merges.emplace_back(left, right);
  }
  data.splits.push_back({.kind = SplitStep::Kind::kWords, .words = WordPattern::kGpt2});
  data.bos = 0;
  data.eos = 2;
  data.prefix = {0};
  return data;
}

// <unk> = 0, <s> = 1, </s> = 2, the bytes from 3 on, then a few scored pieces. Puts BOS in front.
inline VocabData sentencepiece_data() {
  VocabData data;
  data.byte_fallback = data.fuse_unk = true;
  data.strip_leading_space = true;
  data.pre_tokenizer_name = "sentencepiece";
  data.normalizers = {{.kind = Rewrite::Kind::kPrepend, .to = std::string(kMarker)},
                      {.kind = Rewrite::Kind::kReplace, .from = " ", .to = std::string(kMarker)}};
  for (const char* special : {"<unk>", "<s>", "</s>"})
    put_token(data, special, TokenType::kControl);
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    put_token(data, text, TokenType::kByte);
  }
  for (const char* piece :
       {"he",        "ll",     "hell", "hello", "\u2581hello", "\u2581w", "or",
        "\u2581wor", "\u2581", "h",    "e",     "l",           "o",       "w",
        "r",         "d",      "<",    "s",     ">",           "<s",      "<s>x"}) {
    put_token(data, piece);
  }
  for (size_t i = 0; i < data.tokens.size(); ++i) data.scores.push_back(-static_cast<float>(i));
  data.unk = 0;
  data.bos = 1;
  data.eos = 2;
  data.prefix = {1};
  return data;
}

inline std::shared_ptr<const Tokenizer> make_tokenizer(VocabData data) {
  auto result = Tokenizer::create(std::move(data));
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  return result.ok() ? *result : nullptr;
}

// The metadata of a GGUF file with a tokenizer; each part can be left out or changed.
struct GgufVocab {
  std::string model = "gpt2";
  std::string pre = "gpt-2";
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  std::vector<float> scores;
  std::vector<std::string> merges;

  Result<std::shared_ptr<const Tokenizer>> load() const {
    const bool has[] = {!model.empty(), !pre.empty(),    !tokens.empty(),
                        !types.empty(), !scores.empty(), !merges.empty()};
    uint64_t entries = 0;
    for (bool h : has) entries += h;
    formats::GgufBytes bytes(0, entries);
    if (has[0]) bytes.text("tokenizer.ggml.model", model);
    if (has[1]) bytes.text("tokenizer.ggml.pre", pre);
    auto array = [&](std::string_view key, uint32_t elem, const auto& values, auto put) {
      if (values.empty()) return;
      bytes.key(key, 9).put(elem).put(uint64_t{values.size()});
      for (const auto& value : values) put(value);
    };
    array("tokenizer.ggml.tokens", 8, tokens, [&](auto& s) { bytes.str(s); });
    array("tokenizer.ggml.token_type", 5, types, [&](int32_t v) { bytes.put(v); });
    array("tokenizer.ggml.scores", 6, scores, [&](float v) { bytes.put(v); });
    array("tokenizer.ggml.merges", 8, merges, [&](auto& s) { bytes.str(s); });
    auto file = formats::GgufFile::parse(bytes.span(), "test.gguf");
    if (!file.ok()) return file.status();
    return Tokenizer::from_gguf(*file);
  }
};

inline GgufVocab gguf_vocab(const VocabData& data, std::string model) {
  GgufVocab out{.model = std::move(model)};
  out.tokens.assign(data.tokens.begin(), data.tokens.end());
  for (TokenType type : data.types) out.types.push_back(static_cast<int32_t>(type));
  out.scores = data.scores;
  for (const auto& [l, r] : data.merges)
    out.merges.push_back(std::string(l) + " " + std::string(r));
  return out;
}

}  // namespace attune::text
