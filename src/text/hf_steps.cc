#include "text/hf_steps.h"

#include "base/log.h"

namespace attune::text {
namespace {

using formats::Json;

// The regular expressions of Rust, which Whitespace uses, count joiners as word characters.
constexpr const char* kRustWords = R"([\w\x{200C}\x{200D}]+|[^\w\s\x{200C}\x{200D}]+)";
constexpr int kMaxNesting = 8;  // of Sequence in Sequence

bool absent(const Json* json) {
  return json == nullptr || json->is_null();
}

// Calls `each` for the object, or for each part of a Sequence, whose parts are under `key`.
template <typename Each>
Status for_each_part(const Json& json, const std::string& path, std::string_view key, int nesting,
                     const Each& each) {
  const Json* type = json.find("type");
  if (type == nullptr || !type->is_string()) return data_loss(base::cat(path, ".type is missing"));
  if (type->as_string() != "Sequence") return each(json, type->as_string(), path);
  if (nesting >= kMaxNesting) return data_loss(base::cat(path, ": sequences nest too deep"));
  const Json* parts = json.find(key);
  if (parts == nullptr || !parts->is_array())
    return data_loss(base::cat(path, ".", key, " is no array"));
  for (size_t i = 0; i < parts->as_array().size(); ++i) {
    ATTUNE_RETURN_IF_ERROR(for_each_part(
        parts->as_array()[i], base::cat(path, ".", key, "[", i, "]"), key, nesting + 1, each));
  }
  return {};
}

struct Pattern {
  std::string text;
  bool regex = false;
};
Result<Pattern> read_pattern(const Json& json, const std::string& path) {
  const Json* pattern = json.find("pattern");
  if (pattern != nullptr) {
    if (const Json* text = pattern->find("String"); text != nullptr && text->is_string()) {
      return Pattern{text->as_string(), false};
    }
    if (const Json* text = pattern->find("Regex"); text != nullptr && text->is_string()) {
      return Pattern{text->as_string(), true};
    }
  }
  return data_loss(base::cat(path, ".pattern is neither {\"String\": ...} nor {\"Regex\": ...}"));
}

// A regular expression that matches `text` itself.
std::string quoted(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (std::string_view("\\^$.[]|()?*+{}&-").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

Result<SplitBehavior> read_behavior(const Json& json, const std::string& path) {
  ATTUNE_ASSIGN_OR_RETURN(const std::string name, json_text(json, "behavior", "Isolated"));
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return unsupported(
      base::cat(path, ".behavior is \"", name,
                "\"; known: Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous"));
}

Status add_regex(const std::string& regex, SplitBehavior behavior, bool invert,
                 const std::string& path, VocabData& data) {
  auto step = split_by_regex(regex, behavior, invert);
  if (!step.ok()) return step.status().with_context(path);
  data.splits.push_back(std::move(step).value());
  return {};
}

Status add_split(const Json& json, const std::string& path, VocabData& data) {
  ATTUNE_ASSIGN_OR_RETURN(const Pattern pattern, read_pattern(json, path));
  ATTUNE_ASSIGN_OR_RETURN(const SplitBehavior behavior, read_behavior(json, path));
  ATTUNE_ASSIGN_OR_RETURN(const bool invert, json_flag(json, "invert", false));
  return add_regex(pattern.regex ? pattern.text : quoted(pattern.text), behavior, invert, path,
                   data);
}

// What changes text must come before what cuts it: later it would change each piece.
Status check_first(const VocabData& data, const std::string& path) {
  if (data.splits.empty()) return {};
  return unsupported(base::cat(
      path, " changes text after an earlier step has cut it; known: in the first place only"));
}

Status add_byte_level(const Json& json, const std::string& path, VocabData& data) {
  data.byte_level = true;
  ATTUNE_ASSIGN_OR_RETURN(const bool prefix, json_flag(json, "add_prefix_space", true));
  ATTUNE_ASSIGN_OR_RETURN(const bool use_regex, json_flag(json, "use_regex", true));
  if (prefix) {
    ATTUNE_RETURN_IF_ERROR(check_first(data, path));
    data.pre_rewrites.push_back({.kind = Rewrite::Kind::kSpacePrefix});
  }
  if (use_regex)
    data.splits.push_back({.kind = SplitStep::Kind::kWords, .words = WordPattern::kGpt2});
  return {};
}

Result<Rewrite::Scheme> read_scheme(const Json& json, const std::string& path) {
  // Older files have a flag instead.
  ATTUNE_ASSIGN_OR_RETURN(const bool old, json_flag(json, "add_prefix_space", true));
  ATTUNE_ASSIGN_OR_RETURN(const std::string name,
                          json_text(json, "prepend_scheme", old ? "always" : "never"));
  if (name == "always") return Rewrite::Scheme::kAlways;
  if (name == "first") return Rewrite::Scheme::kFirst;
  if (name == "never") return Rewrite::Scheme::kNever;
  return unsupported(
      base::cat(path, ".prepend_scheme is \"", name, "\"; known: always, first, never"));
}

Status check_marker(const Json& json, const std::string& path) {
  ATTUNE_ASSIGN_OR_RETURN(const std::string marker, json_text(json, "replacement", kMarker));
  if (marker == kMarker) return {};
  return unsupported(base::cat(path, ".replacement is \"", marker, "\"; known: ", kMarker));
}

Status add_metaspace(const Json& json, const std::string& path, VocabData& data) {
  ATTUNE_RETURN_IF_ERROR(check_first(data, path));
  ATTUNE_RETURN_IF_ERROR(check_marker(json, path));
  ATTUNE_ASSIGN_OR_RETURN(const Rewrite::Scheme scheme, read_scheme(json, path));
  ATTUNE_ASSIGN_OR_RETURN(const bool split, json_flag(json, "split", true));
  data.pre_rewrites.push_back(
      {.kind = Rewrite::Kind::kMetaspace, .to = std::string(kMarker), .scheme = scheme});
  if (split) data.splits.push_back({.kind = SplitStep::Kind::kMarkers});
  return {};
}

Status add_pre_tokenizer(const Json& json, const std::string& type, const std::string& path,
                         VocabData& data) {
  if (!data.pre_tokenizer_name.empty()) data.pre_tokenizer_name += '+';
  data.pre_tokenizer_name += type;
  if (type == "Split") return add_split(json, path, data);
  if (type == "ByteLevel") return add_byte_level(json, path, data);
  if (type == "Metaspace") return add_metaspace(json, path, data);
  if (type == "Digits") {
    ATTUNE_ASSIGN_OR_RETURN(const bool each, json_flag(json, "individual_digits", false));
    data.splits.push_back(
        {.kind = each ? SplitStep::Kind::kNumbers : SplitStep::Kind::kNumberRuns});
    return {};
  }
  if (type == "Punctuation") {
    ATTUNE_ASSIGN_OR_RETURN(const SplitBehavior behavior, read_behavior(json, path));
    return add_regex("[!-/:-@\\[-`{-~\\p{P}]", behavior, false, path, data);
  }
  if (type == "Whitespace") return add_regex(kRustWords, SplitBehavior::kRemoved, true, path, data);
  if (type == "WhitespaceSplit")
    return add_regex("\\s", SplitBehavior::kRemoved, false, path, data);
  if (type == "CharDelimiterSplit") {
    ATTUNE_ASSIGN_OR_RETURN(const std::string delimiter, json_text(json, "delimiter", ""));
    if (delimiter.empty()) return data_loss(base::cat(path, ".delimiter is missing"));
    return add_regex(quoted(delimiter), SplitBehavior::kRemoved, false, path, data);
  }
  return unsupported(
      base::cat(path, " is \"", type,
                "\"; known: Sequence, Split, ByteLevel, Metaspace, Digits, Punctuation, "
                "Whitespace, WhitespaceSplit, CharDelimiterSplit"));
}

Status add_normalizer(const Json& json, const std::string& type, const std::string& path,
                      VocabData& data) {
  if (type == "NFC") {
    data.normalizers.push_back({.kind = Rewrite::Kind::kNfc});
    return {};
  }
  if (type == "Prepend") {
    ATTUNE_ASSIGN_OR_RETURN(std::string text, json_text(json, "prepend", ""));
    data.normalizers.push_back({.kind = Rewrite::Kind::kPrepend, .to = std::move(text)});
    return {};
  }
  if (type == "Replace") {
    ATTUNE_ASSIGN_OR_RETURN(Pattern pattern, read_pattern(json, path));
    ATTUNE_ASSIGN_OR_RETURN(std::string content, json_text(json, "content", ""));
    Rewrite step{.kind = Rewrite::Kind::kReplace, .from = pattern.text, .to = std::move(content)};
    if (pattern.regex) {
      step.kind = Rewrite::Kind::kReplaceRegex;
      auto regex = Regex::compile(pattern.text);
      if (!regex.ok()) return regex.status().with_context(path);
      step.regex = *regex;
    }
    data.normalizers.push_back(std::move(step));
    return {};
  }
  return unsupported(base::cat(path, " is \"", type, "\"; known: Sequence, NFC, Prepend, Replace"));
}

Status add_decoder(const Json& json, const std::string& type, const std::string& path,
                   VocabData& data) {
  if (type == "ByteLevel" || type == "ByteFallback" || type == "Fuse") return {};
  if (type == "Metaspace") {
    ATTUNE_RETURN_IF_ERROR(check_marker(json, path));
    ATTUNE_ASSIGN_OR_RETURN(const Rewrite::Scheme scheme, read_scheme(json, path));
    data.strip_leading_space = scheme != Rewrite::Scheme::kNever;
    return {};
  }
  if (type == "Replace") {
    ATTUNE_ASSIGN_OR_RETURN(const Pattern pattern, read_pattern(json, path));
    ATTUNE_ASSIGN_OR_RETURN(const std::string content, json_text(json, "content", ""));
    if (pattern.text == kMarker && content == " ") return {};
    return unsupported(base::cat(path, " replaces \"", pattern.text, "\" by \"", content,
                                 "\"; known: ", kMarker, " by a space"));
  }
  if (type == "Strip") {
    const Json *start = json.find("start"), *stop = json.find("stop");
    ATTUNE_ASSIGN_OR_RETURN(const std::string content, json_text(json, "content", " "));
    const bool known = content == " " && start != nullptr && *start == Json(1) &&
                       (stop == nullptr || *stop == Json(0));
    if (!known)
      return unsupported(base::cat(path, " is ", json.dump(), "; known: one space at the start"));
    data.strip_leading_space = true;
    return {};
  }
  return unsupported(
      base::cat(path, " is \"", type,
                "\"; known: Sequence, ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip"));
}

// TemplateProcessing.single: special tokens around the one sequence.
Status add_template(const Json& json, const std::string& path, VocabData& data) {
  const Json *single = json.find("single"), *specials = json.find("special_tokens");
  if (single == nullptr || !single->is_array())
    return data_loss(base::cat(path, ".single is no array"));
  bool after_sequence = false;
  for (const Json& part : single->as_array()) {
    if (part.find("Sequence") != nullptr) {
      after_sequence = true;
      continue;
    }
    const Json* special = part.find("SpecialToken");
    const Json* name = special ? special->find("id") : nullptr;
    const Json* entry =
        name && name->is_string() && specials ? specials->find(name->as_string()) : nullptr;
    const Json* ids = entry ? entry->find("ids") : nullptr;
    if (ids == nullptr || !ids->is_array())
      return data_loss(base::cat(path, ".single: a token without ids"));
    for (const Json& id : ids->as_array()) {
      if (!id.is_int() || id.as_int() < 0 ||
          id.as_int() >= static_cast<int64_t>(data.tokens.size())) {
        return data_loss(
            base::cat(path, ".special_tokens: id ", id.dump(), " is not in the vocabulary"));
      }
      (after_sequence ? data.suffix : data.prefix).push_back(static_cast<TokenId>(id.as_int()));
    }
  }
  return {};
}

}  // namespace

Result<bool> json_flag(const Json& object, std::string_view key, bool otherwise) {
  const Json* value = object.find(key);
  if (absent(value)) return otherwise;
  if (!value->is_bool())
    return data_loss(base::cat(key, " is ", value->type_name(), ", not a boolean"));
  return value->as_bool();
}

Result<std::string> json_text(const Json& object, std::string_view key,
                              std::string_view otherwise) {
  const Json* value = object.find(key);
  if (absent(value)) return std::string(otherwise);
  if (!value->is_string())
    return data_loss(base::cat(key, " is ", value->type_name(), ", not a string"));
  return value->as_string();
}

Status read_normalizer(const Json* json, VocabData& data) {
  if (absent(json)) return {};
  return for_each_part(
      *json, "normalizer", "normalizers", 0,
      [&](auto& part, auto& type, auto& path) { return add_normalizer(part, type, path, data); });
}

Status read_pre_tokenizer(const Json* json, VocabData& data) {
  if (absent(json)) {
    data.pre_tokenizer_name = "none";
    return {};
  }
  return for_each_part(*json, "pre_tokenizer", "pretokenizers", 0,
                       [&](auto& part, auto& type, auto& path) {
                         return add_pre_tokenizer(part, type, path, data);
                       });
}

Status read_decoder(const Json* json, VocabData& data) {
  if (absent(json)) return {};
  return for_each_part(*json, "decoder", "decoders", 0, [&](auto& part, auto& type, auto& path) {
    return add_decoder(part, type, path, data);
  });
}

Status read_post_processor(const Json* json, VocabData& data) {
  if (absent(json)) return {};
  return for_each_part(
      *json, "post_processor", "processors", 0, [&](auto& part, auto& type, auto& path) -> Status {
        if (type == "ByteLevel") return {};  // trims offsets only
        if (type == "TemplateProcessing") return add_template(part, path, data);
        return unsupported(
            base::cat(path, " is \"", type, "\"; known: Sequence, ByteLevel, TemplateProcessing"));
      });
}

}  // namespace attune::text
