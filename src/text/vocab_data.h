// A vocabulary as both kinds of file carry it: what the loaders fill and Tokenizer::create() takes.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/added_tokens.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"

namespace attune::text {

enum class TokenType : uint8_t {  // numbered as in tokenizer.ggml.token_type
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,  // <0x00> to <0xFF>
};

// The views must stay valid until create() returns; `owned` can hold strings for them.
struct VocabData {
  std::string source;  // for messages: the file

  std::vector<std::string_view> tokens;  // by id; an empty one is a hole
  std::vector<TokenType> types;          // as many as tokens
  std::vector<std::pair<std::string_view, std::string_view>> merges;  // best first
  std::vector<float> scores;  // instead of merges: SentencePiece's, higher first; as many as tokens
  std::deque<std::string> owned;

  bool byte_level = false;     // spelled in GPT-2's alphabet of 256 characters for bytes
  bool byte_fallback = false;  // characters outside the vocabulary become <0xNN> tokens
  bool fuse_unk = false;
  bool ignore_merges = false;  // a piece that is a token is that token

  std::vector<Rewrite> normalizers;
  std::vector<Rewrite> pre_rewrites;  // after normalised added tokens were found, before `splits`
  std::vector<SplitStep> splits;
  std::vector<AddedToken> added;
  bool strip_leading_space = false;  // decode() takes one off
  std::string pre_tokenizer_name;    // for describe()

  TokenId bos = -1, eos = -1, pad = -1, unk = -1;
  std::vector<TokenId> end_of_turn;     // besides eos
  std::vector<TokenId> prefix, suffix;  // what add_special_tokens puts around a text

  std::string chat_template;
  std::vector<std::pair<std::string, std::string>> named_templates;
};

}  // namespace attune::text
