#include "cli/session.h"

#include <cstdio>
#include <future>

#include "base/log.h"
#include "formats/json.h"
#include "formats/text_file.h"
#include "formats/weight_source.h"

namespace attune::cli {
namespace {

using base::cat;

constexpr size_t kMaxTemplateBytes = 1 << 20;

// Where the vocabulary lies: in what --tokenizer or else --model stands for.
Result<std::string> tokenizer_path(const Options& options) {
  if (options.tokenizer.empty()) {
    ATTUNE_ASSIGN_OR_RETURN(const auto model,
                            formats::locate_model(options.model, options.load_format));
    return model.text();
  }
  const auto other = formats::locate_model(options.tokenizer, "auto");
  return other.ok() ? other->text() : options.tokenizer;
}

// As templates name them; a token that the model lacks is left out.
text::SpecialTokens special_tokens(const text::Tokenizer& tokenizer) {
  text::SpecialTokens tokens;
  auto add = [&](const char* name, std::optional<TokenId> id) {
    if (id) tokens.emplace_back(name, tokenizer.token_text(*id));
  };
  add("bos_token", tokenizer.bos_id());
  add("eos_token", tokenizer.eos_id());
  add("pad_token", tokenizer.pad_id());
  add("unk_token", tokenizer.unk_id());
  return tokens;
}

Status load_text(const Options& options, Session& session) {
  ATTUNE_ASSIGN_OR_RETURN(session.tokenizer, load_tokenizer(options));
  std::string source = session.tokenizer->chat_template();
  if (!options.chat_template.empty()) {
    auto text = formats::read_text_file(options.chat_template, kMaxTemplateBytes);
    if (!text.ok()) return text.status().with_context("--chat-template");
    source = std::move(*text);
  }
  if (source.empty()) return {};
  auto compiled = text::ChatTemplate::compile(source, special_tokens(*session.tokenizer));
  if (!compiled.ok()) {
    return compiled.status().with_context(
        options.chat_template.empty() ? "the model's chat template (--chat-template names another)"
                                      : "--chat-template");
  }
  session.chat_template.emplace(std::move(*compiled));
  return {};
}

std::string candidates(const formats::Json& resolution, const char* phase) {
  const formats::Json* entry = resolution.find(phase);
  const formats::Json* list = entry ? entry->find("candidates") : nullptr;
  std::string text;
  if (!list || !list->is_array()) return text;
  for (const formats::Json& name : list->as_array())
    text += (text.empty() ? "" : ", then ") + name.as_string();
  return text;
}

std::string text_of(const formats::Json& object, const char* key) {
  const formats::Json* value = object.find(key);
  return value && value->is_string() ? value->as_string() : "";
}

}  // namespace

Result<std::shared_ptr<const text::Tokenizer>> load_tokenizer(const Options& options) {
  ATTUNE_ASSIGN_OR_RETURN(const std::string path, tokenizer_path(options));
  auto tokenizer = text::Tokenizer::load(path);
  if (tokenizer.ok()) return tokenizer;
  if (!options.tokenizer.empty()) return tokenizer.status().with_context("--tokenizer");
  // As in a model's other files: the setting is right, what it names is not.
  return data_loss("the model's tokenizer (--tokenizer names another): " +
                   tokenizer.status().message());
}

Result<Session> load_session(const Options& options) {
  if (auto found = formats::locate_model(options.model, options.load_format); !found.ok()) {
    const bool is_default = options.model == Options().model;
    return Status(found.status().code(), cat("--model: ", found.status().message(),
                                             is_default ? "; `make build` fetches it" : ""));
  }
  Session session;
  auto text = std::async(std::launch::async, [&] { return load_text(options, session); });
  auto engine = Engine::create(options);
  Status status = text.get();
  if (!engine.ok()) return engine.status();
  if (!status.ok()) return status;
  session.engine = std::move(*engine);
  return session;
}

namespace {

std::string gigabytes(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f GB", static_cast<double>(bytes) / 1e9);
  return text;
}

// The tiers below the device, and how much each may hold.
std::string describe_tiers(const EngineStats& stats) {
  if (!stats.hicache.enabled) return "";
  const HiCacheStats& h = stats.hicache;
  const CacheTierStats& host = stats.cache_tiers[1];
  std::string text = cat("  HiCache    host: ", host.total_pages * stats.page_size, " tokens, ",
                         gigabytes(host.budget_bytes), ", ", h.mem_layout, ", IO ", h.io_backend,
                         ", ", h.write_policy, "\n");
  for (size_t i = 2; i < stats.cache_tiers.size(); ++i) {
    const CacheTierStats& tier = stats.cache_tiers[i];
    text += cat("             ", tier.name, ": ",
                tier.budget_bytes > 0 ? gigabytes(tier.budget_bytes) + " at most"
                                      : std::string("no bound of its own"),
                ", ", h.storage_prefetch_policy, "\n");
  }
  return text;
}

}  // namespace

std::string describe(const Engine& engine) {
  const ModelInfo& model = engine.model();
  EngineStats stats = engine.stats();
  auto parsed = formats::parse_json(engine.resolution_json());
  const formats::Json resolution = parsed.ok() ? *parsed : formats::Json();
  char parameters[32];
  std::snprintf(parameters, sizeof(parameters), "%.1f M", double(model.parameters) / 1e6);
  return cat("  model      ", model.name, " (", model.architecture, ", ", parameters,
             " parameters, ", model.weight_format, ", context of ", model.max_model_len,
             " tokens)\n", "  device     ", text_of(resolution, "device"), ", ",
             text_of(resolution, "dtype"), "\n",
             "  attention  prefill: ", candidates(resolution, "prefill"),
             "; decode: ", candidates(resolution, "decode"), "\n", "  KV cache   ",
             int64_t{stats.total_pages} * stats.page_size, " tokens in pages of ", stats.page_size,
             ", ", text_of(resolution, "kv_cache_dtype"), "\n", describe_tiers(stats));
}

}  // namespace attune::cli
