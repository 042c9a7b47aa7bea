#include "kv/index/page_key.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>

namespace attune::kv {
namespace {

std::string hex(const PageKey& key) {
  std::string out;
  for (uint8_t b : key.bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", b);
    out += digits;
  }
  return out;
}

// python3 -c 'import hashlib, struct
// f = lambda s: struct.pack("<Q", len(s)) + s
// r = hashlib.sha256(f(b"attune kv 1") + f(b"salt") + f(b"root")).digest()
// print(r.hex(), hashlib.sha256(r + struct.pack("<3i", 1, 70000, 2147483647)).hexdigest())'
TEST(PageKey, AsHashlibMakesThem) {
  const PageKey root = root_key("salt", "root");
  EXPECT_EQ(hex(root), "46c68784a1b0a7cc455edc2cb6520fb14d07c5dd61384750e9d9b0a26aa778f1");
  EXPECT_EQ(hex(child_key(root, std::array<TokenId, 3>{1, 70000, 2147483647})),
            "edf4862567684f0a20ad285becb479b7ecaf08b67c52ba0b0219e30223d0dbcd");
}

TEST(PageKey, FieldsDoNotRunTogether) {
  EXPECT_NE(root_key("ab", "c"), root_key("a", "bc"));
  EXPECT_NE(root_key("", "a"), root_key("a", ""));
  const PageKey root = root_key("a", "b");
  const std::array<TokenId, 2> tokens = {1, 2};
  EXPECT_NE(child_key(root, tokens), child_key(root, std::span(tokens).first(1)));
}

}  // namespace
}  // namespace attune::kv
