// From a typed request to what the engine takes: templates, tokens, limits. Pure, so it may run on
// any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/completion.h"
#include "server/generation_request.h"
#include "server/server.h"

namespace attune::server {

struct Prepared {
  GenerationRequest request;
  CompletionSpec spec;
  std::vector<std::string> prompt_texts;  // kCompletion: what echo shows; else empty
};

// The tokens that prompt and output of one request may have together: the model's context, or the
// whole KV pool where that is smaller.
int32_t token_limit(const Engine& engine);

std::optional<ApiError> prepare(const Model& model, int32_t token_limit, GenerationRequest request,
                                Prepared& out);

}  // namespace attune::server
