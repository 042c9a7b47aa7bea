#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "formats/gguf_tokens.h"
#include "text/loaders.h"
#include "text/unicode.h"

namespace attune::text {
namespace {

using formats::GgufFile;

constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
constexpr std::string_view kTypes = "tokenizer.ggml.token_type";
constexpr std::string_view kScores = "tokenizer.ggml.scores";
constexpr std::string_view kMerges = "tokenizer.ggml.merges";

Status read_tokens(const GgufFile& file, VocabData& data) {
  ATTUNE_ASSIGN_OR_RETURN(const auto tokens, file.get_strings(kTokens));
  data.tokens.assign(tokens.begin(), tokens.end());
  data.types.assign(tokens.size(), TokenType::kNormal);
  if (file.find(kTypes) == nullptr) return {};
  ATTUNE_ASSIGN_OR_RETURN(const auto types, file.get_ints(kTypes));
  if (types.size() != tokens.size()) {
    return data_loss(
        base::cat(kTypes, " has ", types.size(), " entries for ", tokens.size(), " tokens"));
  }
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] < 1 || types[i] > 6) {
      return data_loss(base::cat(kTypes, "[", i, "] is ", types[i], ", not 1 to 6"));
    }
    data.types[i] = static_cast<TokenType>(types[i]);
  }
  return {};
}

// Converters fill ids that the model has but the vocabulary does not with "[PAD123]".
bool is_filler(std::string_view token, size_t id) {
  return token.starts_with("[PAD") && token == base::cat("[PAD", id, "]");
}

void collect_added(VocabData& data) {
  for (size_t i = 0; i < data.tokens.size(); ++i) {
    if (data.types[i] == TokenType::kUserDefined && is_filler(data.tokens[i], i)) {
      data.types[i] = TokenType::kUnused;
    }
    const TokenType type = data.types[i];
    const bool special = type == TokenType::kControl || type == TokenType::kUnknown;
    if (!special && type != TokenType::kUserDefined) continue;
    if (!is_valid_utf8(data.tokens[i])) continue;
    data.added.push_back(
        {.id = static_cast<TokenId>(i), .text = std::string(data.tokens[i]), .special = special});
  }
}

Result<TokenId> read_id(const GgufFile& file, std::string_view key, const VocabData& data) {
  ATTUNE_ASSIGN_OR_RETURN(const int64_t id, file.get_int_or(key, -1));
  // All ones is how some writers say "none".
  if (id == -1 || id == 0xFFFFFFFF) return TokenId{-1};
  if (id < 0 || id >= static_cast<int64_t>(data.tokens.size())) {
    return data_loss(
        base::cat(key, " is ", id, "; the vocabulary has ", data.tokens.size(), " tokens"));
  }
  return static_cast<TokenId>(id);
}

Status read_ids(const GgufFile& file, VocabData& data) {
  struct Named {
    std::string_view key;
    TokenId* id;
  };
  TokenId eot = -1, eom = -1;
  for (const auto& [key, id] :
       {Named{"tokenizer.ggml.bos_token_id", &data.bos},
        Named{"tokenizer.ggml.eos_token_id", &data.eos},
        Named{"tokenizer.ggml.padding_token_id", &data.pad},
        Named{"tokenizer.ggml.unknown_token_id", &data.unk},
        Named{"tokenizer.ggml.eot_token_id", &eot}, Named{"tokenizer.ggml.eom_token_id", &eom}}) {
    ATTUNE_ASSIGN_OR_RETURN(*id, read_id(file, key, data));
  }
  for (TokenId id : {eot, eom}) {
    if (id >= 0) data.end_of_turn.push_back(id);
  }
  const std::vector<TokenId> ends = formats::turn_end_tokens(file);
  data.end_of_turn.insert(data.end_of_turn.end(), ends.begin(), ends.end());
  return {};
}

Status read_framing(const GgufFile& file, VocabData& data, bool bos_by_default) {
  ATTUNE_ASSIGN_OR_RETURN(const bool bos,
                          file.get_bool_or("tokenizer.ggml.add_bos_token", bos_by_default));
  ATTUNE_ASSIGN_OR_RETURN(const bool eos, file.get_bool_or("tokenizer.ggml.add_eos_token", false));
  if (bos && data.bos >= 0) data.prefix.push_back(data.bos);
  if (eos && data.eos >= 0) data.suffix.push_back(data.eos);
  return {};
}

// Some files name the wrong kind of vocabulary; its spelling of spaces tells.
Status check_spelling(const VocabData& data, bool byte_level, std::string_view model) {
  size_t markers = 0, byte_spaces = 0;
  for (std::string_view token : data.tokens) {
    markers += token.starts_with(kMarker);
    byte_spaces += token.starts_with("\xC4\xA0");  // U+0120, the byte 0x20
  }
  if (byte_level ? markers <= byte_spaces : byte_spaces <= markers) return {};
  return data_loss(base::cat("tokenizer.ggml.model is \"", model, "\", but ",
                             byte_level ? markers : byte_spaces, " tokens spell a space as ",
                             byte_level ? "U+2581 (model \"llama\")" : "U+0120 (model \"gpt2\")",
                             " and only ", byte_level ? byte_spaces : markers, " as ",
                             byte_level ? "U+0120" : "U+2581"));
}

Status read_merges(const GgufFile& file, VocabData& data) {
  ATTUNE_ASSIGN_OR_RETURN(const auto merges, file.get_strings(kMerges));
  data.merges.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const size_t space = merges[i].find(' ', 1);
    if (space == std::string_view::npos) {
      return data_loss(base::cat(kMerges, "[", i, "] is \"", merges[i], "\", not two tokens"));
    }
    data.merges.emplace_back(merges[i].substr(0, space), merges[i].substr(space + 1));
  }
  return {};
}

Status read_byte_level(const GgufFile& file, VocabData& data) {
  if (file.find(kMerges) == nullptr) {
    return data_loss(base::cat("tokenizer.ggml.model is \"gpt2\", but the file has no ", kMerges,
                               "; convert it again, with the merges"));
  }
  ATTUNE_RETURN_IF_ERROR(check_spelling(data, true, "gpt2"));
  ATTUNE_RETURN_IF_ERROR(read_merges(file, data));
  if (data.merges.empty()) return data_loss(base::cat(kMerges, " is empty"));
  ATTUNE_ASSIGN_OR_RETURN(const auto pre, file.get_string_or("tokenizer.ggml.pre", ""));
  const PreTokenizerPreset* preset = find_pre_tokenizer_preset(pre);
  if (preset == nullptr) {
    return unsupported(base::cat("tokenizer.ggml.pre is ",
                                 pre.empty() ? "missing" : base::cat('"', pre, '"'),
                                 "; known: ", pre_tokenizer_preset_names()));
  }
  data.byte_level = true;
  data.ignore_merges = preset->ignore_merges;
  data.pre_tokenizer_name = preset->name;
  if (preset->nfc) data.normalizers.push_back({.kind = Rewrite::Kind::kNfc});
  for (const std::string& regex : preset->regexes) {
    ATTUNE_ASSIGN_OR_RETURN(SplitStep step, split_by_regex(regex));
    data.splits.push_back(std::move(step));
  }
  return read_framing(file, data, preset->add_bos);
}

Status read_sentencepiece(const GgufFile& file, VocabData& data) {
  if (file.find(kScores) == nullptr) {
    return data_loss(base::cat("tokenizer.ggml.model is \"llama\", but the file has no ", kScores));
  }
  ATTUNE_RETURN_IF_ERROR(check_spelling(data, false, "llama"));
  ATTUNE_ASSIGN_OR_RETURN(data.scores, file.get_floats(kScores));
  if (data.scores.size() != data.tokens.size()) {
    return data_loss(base::cat(kScores, " has ", data.scores.size(), " entries for ",
                               data.tokens.size(), " tokens"));
  }
  if (std::any_of(data.scores.begin(), data.scores.end(), [](float s) { return std::isnan(s); })) {
    return data_loss(base::cat(kScores, " holds a NaN"));
  }
  data.byte_fallback = true;
  data.fuse_unk = true;
  data.pre_tokenizer_name = "sentencepiece";
  ATTUNE_ASSIGN_OR_RETURN(const bool prefix,
                          file.get_bool_or("tokenizer.ggml.add_space_prefix", true));
  if (prefix)
    data.normalizers.push_back({.kind = Rewrite::Kind::kPrepend, .to = std::string(kMarker)});
  data.normalizers.push_back(
      {.kind = Rewrite::Kind::kReplace, .from = " ", .to = std::string(kMarker)});
  data.strip_leading_space = prefix;
  return read_framing(file, data, true);
}

Status read_templates(const GgufFile& file, VocabData& data) {
  constexpr std::string_view kKey = "tokenizer.chat_template";
  ATTUNE_ASSIGN_OR_RETURN(const auto text, file.get_string_or(kKey, ""));
  data.chat_template = text;
  for (const auto& entry : file.metadata()) {
    if (!entry.key.starts_with(kKey) || entry.key.size() < kKey.size() + 2 ||
        entry.key[kKey.size()] != '.')
      continue;
    const std::string_view* named = std::get_if<std::string_view>(&entry.value.value);
    if (named != nullptr)
      data.named_templates.emplace_back(entry.key.substr(kKey.size() + 1), *named);
  }
  return {};
}

}  // namespace

Result<VocabData> vocab_from_gguf(const GgufFile& file) {
  VocabData data;
  data.source = file.path();
  auto model = file.get_string("tokenizer.ggml.model");
  if (!model.ok()) return model.status();
  if (*model != "gpt2" && *model != "llama") {
    return unsupported(base::cat("tokenizer.ggml.model is \"", *model,
                                 "\"; known: gpt2 (byte-level BPE), llama (SentencePiece BPE)"));
  }
  ATTUNE_RETURN_IF_ERROR(read_tokens(file, data));
  ATTUNE_RETURN_IF_ERROR(read_ids(file, data));
  collect_added(data);
  ATTUNE_RETURN_IF_ERROR(*model == "gpt2" ? read_byte_level(file, data)
                                          : read_sentencepiece(file, data));
  ATTUNE_RETURN_IF_ERROR(read_templates(file, data));
  return data;
}

}  // namespace attune::text
