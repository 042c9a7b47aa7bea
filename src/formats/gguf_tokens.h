// Which tokens end an answer, by the file: decided here for the engine and the tokenizer both.
#pragma once

#include <vector>

#include "attune/request.h"
#include "formats/gguf.h"

namespace attune::formats {

// The control tokens that end a turn in every model that has them, by their text: converters often
// name one end token only, and chat models end with another. In the order of their ids; empty when
// the file has no token types. llama.cpp does the same with its end-of-generation tokens.
std::vector<TokenId> turn_end_tokens(const GgufFile& file);

}  // namespace attune::formats
