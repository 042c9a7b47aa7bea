// A model's name by its content, for KV pages that outlive the process: equal wherever and as
// whatever the files lie, different for any other weights.
#pragma once

#include <string>

#include "attune/status.h"
#include "formats/weight_source.h"

namespace attune::formats {

// 32 hex digits: XXH3-128 over what of the config decides keys and values, and over each tensor's
// name, type, shape and bytes in the order of names. So a renamed or moved file, or other shards
// of the same safetensors, is the same model; the same weights in another type, or in GGUF instead
// of safetensors, are another. Dummy weights: the config and their seed. The tokenizer and the
// chat template are not in it: pages are found by token ids.
//
// Reads every weight once, at the speed of memory or of the disk, on `threads` threads (the value
// does not depend on how many). Errors: data_loss when a file has shrunk.
//
// An adapter's or a picture's identity is a fingerprint of its own content that goes beside this
// one (kv::PrefixIndex::salt), never its name.
Result<std::string> model_fingerprint(const LoadedModel& model, int threads);

}  // namespace attune::formats
