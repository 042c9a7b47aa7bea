// A model as serve, generate and chat use it: engine, tokenizer and chat template together.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "attune/engine.h"
#include "attune/options.h"
#include "attune/status.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace attune::cli {

struct Session {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::optional<text::ChatTemplate> chat_template;  // none: the model has none
  std::unique_ptr<Engine> engine;
};

// Loads the engine, and the text side beside it on another thread. Errors: those of the engine, the
// tokenizer and the template, with the setting that named the file.
Result<Session> load_session(const Options& options);

// The text side alone: --tokenizer, else the model's.
Result<std::shared_ptr<const text::Tokenizer>> load_tokenizer(const Options& options);

// What a person sees of the engine at start: model, device, attention backends, KV cache, one line
// each.
std::string describe(const Engine& engine);

}  // namespace attune::cli
