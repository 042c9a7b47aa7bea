// tokenizer.json of the `tokenizers` library, and tokenizer_config.json beside it.
#include <algorithm>

#include "base/log.h"
#include "text/hf_steps.h"
#include "text/loaders.h"

namespace attune::text {
namespace {

using formats::Json;

// Ids beyond this are hostile: the tables are laid out by id.
constexpr int64_t kMaxId = 1 << 21;

Status put_token(std::string_view token, const Json& id, std::string_view where, VocabData& data) {
  if (!id.is_int() || id.as_int() < 0 || id.as_int() >= kMaxId) {
    return data_loss(
        base::cat(where, ": the id of \"", token, "\" is ", id.dump(), ", not 0 to ", kMaxId - 1));
  }
  const auto i = static_cast<size_t>(id.as_int());
  if (i >= data.tokens.size()) {
    data.tokens.resize(i + 1);
    data.types.resize(i + 1, TokenType::kUnused);
  }
  if (!data.tokens[i].empty() && data.tokens[i] != token) {
    return data_loss(
        base::cat(where, ": id ", i, " is given to \"", data.tokens[i], "\" and \"", token, "\""));
  }
  data.tokens[i] = token;
  return {};
}

Status read_vocab(const Json& model, VocabData& data) {
  const Json* vocab = model.find("vocab");
  if (vocab == nullptr || !vocab->is_object())
    return data_loss("model.vocab is missing or no object");
  for (const auto& [token, id] : vocab->as_object()) {
    ATTUNE_RETURN_IF_ERROR(put_token(token, id, "model.vocab", data));
    auto& type = data.types[static_cast<size_t>(id.as_int())];
    type = data.byte_fallback && byte_of_fallback_token(token) >= 0 ? TokenType::kByte
                                                                    : TokenType::kNormal;
  }
  return {};
}

// Either "left right" or ["left", "right"].
Status read_merges(const Json& model, VocabData& data) {
  const Json* merges = model.find("merges");
  if (merges == nullptr || !merges->is_array() || merges->as_array().empty()) {
    return data_loss("model.merges is missing or empty: a BPE vocabulary needs its merges");
  }
  data.merges.reserve(merges->as_array().size());
  for (size_t i = 0; i < merges->as_array().size(); ++i) {
    const Json& merge = merges->as_array()[i];
    if (merge.is_array() && merge.as_array().size() == 2 && merge.as_array()[0].is_string() &&
        merge.as_array()[1].is_string()) {
      data.merges.emplace_back(merge.as_array()[0].as_string(), merge.as_array()[1].as_string());
      continue;
    }
    const size_t space = merge.is_string() ? merge.as_string().find(' ', 1) : std::string::npos;
    if (space == std::string::npos) {
      return data_loss(base::cat("model.merges[", i, "] is ", merge.dump(), ", not two tokens"));
    }
    const std::string_view text = merge.as_string();
    data.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return {};
}

Status read_added(const Json& root, VocabData& data) {
  const Json* added = root.find("added_tokens");
  if (added == nullptr || added->is_null()) return {};
  if (!added->is_array()) return data_loss("added_tokens is no array");
  for (size_t i = 0; i < added->as_array().size(); ++i) {
    const Json& entry = added->as_array()[i];
    const Json* content = entry.find("content");
    const Json* id = entry.find("id");
    if (content == nullptr || !content->is_string() || id == nullptr) {
      return data_loss(base::cat("added_tokens[", i, "] has no content or no id"));
    }
    if (content->as_string().empty()) continue;
    ATTUNE_RETURN_IF_ERROR(put_token(content->as_string(), *id, "added_tokens", data));
    AddedToken token{.id = static_cast<TokenId>(id->as_int()), .text = content->as_string()};
    ATTUNE_ASSIGN_OR_RETURN(token.special, json_flag(entry, "special", false));
    ATTUNE_ASSIGN_OR_RETURN(token.normalized, json_flag(entry, "normalized", !token.special));
    ATTUNE_ASSIGN_OR_RETURN(token.lstrip, json_flag(entry, "lstrip", false));
    ATTUNE_ASSIGN_OR_RETURN(token.rstrip, json_flag(entry, "rstrip", false));
    ATTUNE_ASSIGN_OR_RETURN(token.single_word, json_flag(entry, "single_word", false));
    TokenType& type = data.types[static_cast<size_t>(token.id)];
    // One that the model has too and that is not special stays one that merges may make.
    if (token.special) type = TokenType::kControl;
    if (!token.special && type == TokenType::kUnused) type = TokenType::kUserDefined;
    data.added.push_back(std::move(token));
  }
  return {};
}

// The id of a token by its spelling; -1: none.
TokenId find_id(const VocabData& data, std::string_view token) {
  const auto it = std::find(data.tokens.begin(), data.tokens.end(), token);
  return it == data.tokens.end() || token.empty() ? -1
                                                  : static_cast<TokenId>(it - data.tokens.begin());
}

Status read_model(const Json& root, VocabData& data) {
  const Json* model = root.find("model");
  if (model == nullptr || !model->is_object()) return data_loss("model is missing or no object");
  ATTUNE_ASSIGN_OR_RETURN(const std::string type, json_text(*model, "type", "BPE"));
  if (type != "BPE") return unsupported(base::cat("model.type is \"", type, "\"; known: BPE"));
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    ATTUNE_ASSIGN_OR_RETURN(const std::string text, json_text(*model, key, ""));
    if (!text.empty())
      return unsupported(base::cat("model.", key, " is \"", text, "\"; known: none"));
  }
  const Json* dropout = model->find("dropout");
  if (dropout != nullptr && dropout->is_number() && dropout->as_double() > 0) {
    return unsupported("model.dropout is above 0: it would make ids random");
  }
  ATTUNE_ASSIGN_OR_RETURN(data.byte_fallback, json_flag(*model, "byte_fallback", false));
  ATTUNE_ASSIGN_OR_RETURN(data.fuse_unk, json_flag(*model, "fuse_unk", false));
  ATTUNE_ASSIGN_OR_RETURN(data.ignore_merges, json_flag(*model, "ignore_merges", false));
  ATTUNE_RETURN_IF_ERROR(read_vocab(*model, data));
  ATTUNE_RETURN_IF_ERROR(read_merges(*model, data));
  ATTUNE_ASSIGN_OR_RETURN(const std::string unk, json_text(*model, "unk_token", ""));
  data.unk = find_id(data, unk);
  if (!unk.empty() && data.unk < 0) {
    return data_loss(base::cat("model.unk_token \"", unk, "\" is not in model.vocab"));
  }
  return {};
}

// A special token of tokenizer_config.json: its text, or an object with the text as `content`.
TokenId config_token(const Json& config, std::string_view key, const VocabData& data) {
  const Json* value = config.find(key);
  if (value != nullptr && value->is_object()) value = value->find("content");
  return value != nullptr && value->is_string() ? find_id(data, value->as_string()) : -1;
}

bool config_flag(const Json& config, std::string_view key, bool otherwise) {
  const Json* value = config.find(key);
  return value != nullptr && value->is_bool() ? value->as_bool() : otherwise;
}

// transformers rewrites the post-processor when the configuration says whether BOS and EOS are
// added.
void read_config(const Json& config, VocabData& data) {
  data.bos = config_token(config, "bos_token", data);
  data.eos = config_token(config, "eos_token", data);
  data.pad = config_token(config, "pad_token", data);
  if (data.unk < 0) data.unk = -1;
  auto set = [](std::vector<TokenId>& ids, TokenId id, bool wanted) {
    if (id < 0) return;
    std::erase(ids, id);
    if (wanted) ids.push_back(id);
  };
  const bool has_bos =
      std::find(data.prefix.begin(), data.prefix.end(), data.bos) != data.prefix.end();
  const bool has_eos =
      std::find(data.suffix.begin(), data.suffix.end(), data.eos) != data.suffix.end();
  set(data.prefix, data.bos, config_flag(config, "add_bos_token", has_bos));
  set(data.suffix, data.eos, config_flag(config, "add_eos_token", has_eos));
}

void read_templates(const Json& config, VocabData& data) {
  const Json* value = config.find("chat_template");
  if (value == nullptr) return;
  if (value->is_string()) {
    data.chat_template = value->as_string();
  } else if (value->is_array()) {
    for (const Json& entry : value->as_array()) {
      const Json *name = entry.find("name"), *text = entry.find("template");
      if (name == nullptr || text == nullptr || !name->is_string() || !text->is_string()) continue;
      if (name->as_string() == "default") data.chat_template = text->as_string();
      data.named_templates.emplace_back(name->as_string(), text->as_string());
    }
  }
}

}  // namespace

Result<VocabData> vocab_from_hf(const Json& root, const Json& config) {
  if (!root.is_object()) return data_loss("tokenizer.json is no object");
  VocabData data;
  ATTUNE_RETURN_IF_ERROR(read_model(root, data));
  ATTUNE_RETURN_IF_ERROR(read_added(root, data));
  ATTUNE_RETURN_IF_ERROR(read_normalizer(root.find("normalizer"), data));
  ATTUNE_RETURN_IF_ERROR(read_pre_tokenizer(root.find("pre_tokenizer"), data));
  ATTUNE_RETURN_IF_ERROR(read_decoder(root.find("decoder"), data));
  ATTUNE_RETURN_IF_ERROR(read_post_processor(root.find("post_processor"), data));
  read_config(config, data);
  read_templates(config, data);
  return data;
}

}  // namespace attune::text
