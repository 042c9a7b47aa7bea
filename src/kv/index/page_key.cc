#include "kv/index/page_key.h"

#include <nettle/sha2.h>

namespace attune::kv {
namespace {

class Sha256 {
 public:
  Sha256() { sha256_init(&state_); }
  void add(const void* data, size_t bytes) {
    sha256_update(&state_, bytes, static_cast<const uint8_t*>(data));
  }
  // Little-endian, whatever the host is.
  void add_number(uint64_t value, int bytes) {
    uint8_t le[8];
    for (int i = 0; i < bytes; ++i) le[i] = static_cast<uint8_t>(value >> (8 * i));
    add(le, static_cast<size_t>(bytes));
  }
  PageKey finish() {
    PageKey key;
    sha256_digest(&state_, key.bytes.size(), key.bytes.data());
    return key;
  }

 private:
  sha256_ctx state_;
};

}  // namespace

// Lengths first, so that no bytes of one field can pass for another's.
PageKey root_key(std::string_view salt, std::string_view root_salt) {
  Sha256 hash;
  for (std::string_view field : {std::string_view("attune kv 1"), salt, root_salt}) {
    hash.add_number(field.size(), 8);
    hash.add(field.data(), field.size());
  }
  return hash.finish();
}

PageKey child_key(const PageKey& parent, std::span<const TokenId> tokens) {
  Sha256 hash;
  hash.add(parent.bytes.data(), parent.bytes.size());
  for (TokenId token : tokens) hash.add_number(static_cast<uint32_t>(token), 4);
  return hash.finish();
}

}  // namespace attune::kv
