// The pipeline parts of tokenizer.json, each read from its JSON object into VocabData. Null or
// absent means none. Errors: unsupported (a type that is not known, by its JSON path and name, with
// the known ones), data_loss.
#pragma once

#include <string>
#include <string_view>

#include "attune/status.h"
#include "formats/json.h"
#include "text/vocab_data.h"

namespace attune::text {

Status read_normalizer(const formats::Json* json, VocabData& data);
Status read_pre_tokenizer(const formats::Json* json, VocabData& data);
Status read_decoder(const formats::Json* json, VocabData& data);
Status read_post_processor(const formats::Json* json, VocabData& data);

// A member that must be a boolean or a string if it is there and not null.
Result<bool> json_flag(const formats::Json& object, std::string_view key, bool otherwise);
Result<std::string> json_text(const formats::Json& object, std::string_view key,
                              std::string_view otherwise);

}  // namespace attune::text
