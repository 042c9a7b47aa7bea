// A page's name outside this process: what it is found by in a storage tier.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <vector>

#include "attune/request.h"

namespace attune::kv {

// SHA-256 over the parent's key and the page's token ids (little-endian, 4 bytes each); a root's is
// over everything besides tokens that decides a page's content, and the storage's own salt.
struct PageKey {
  std::array<uint8_t, 32> bytes{};
  auto operator<=>(const PageKey&) const = default;
};

// All that a stored page must be in order to be taken for the one asked for: equal keys alone are
// not identity.
struct PageIdentity {
  PageKey key, parent;
  std::vector<TokenId> tokens;  // [page_size]
  bool operator==(const PageIdentity&) const = default;
};

}  // namespace attune::kv
