// How page keys are made.
#pragma once

#include <span>
#include <string_view>

#include "kv/layout/page_key.h"

namespace attune::kv {

// The key that a prefix's first page has as its parent. `salt`: everything besides tokens that
// decides the content (PrefixSalt), `root_salt`: the storage's own.
PageKey root_key(std::string_view salt, std::string_view root_salt);
PageKey child_key(const PageKey& parent, std::span<const TokenId> tokens);

}  // namespace attune::kv
