// Tokens that are found in a text as they stand, before anything else is done with it.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace attune::text {

struct AddedToken {
  TokenId id = -1;
  std::string text = {};
  bool special = false;
  bool normalized = false;   // found in the normalised text, not in the raw one
  bool lstrip = false;       // takes the white space in front with it
  bool rstrip = false;       // and that behind
  bool single_word = false;  // only where no word character touches it
};

// Thread-safe once built.
class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;
  // Tokens with an empty text are left out; of equal texts the last one stays.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }
  const std::vector<AddedToken>& tokens() const { return tokens_; }
  std::optional<TokenId> find_exact(std::string_view text) const;

  struct Match {
    size_t begin = 0, end = 0;  // white space taken along included
    TokenId id = -1;
  };
  // The next match that begins at or after `from`: the leftmost, and of those the longest.
  // Special tokens only if parse_special, and none that overlaps a range of `literal`.
  std::optional<Match> find(std::string_view text, size_t from, bool parse_special,
                            std::span<const ByteRange> literal) const;

 private:
  // A trie in arrays; the children of a node are siblings in a row, sorted by byte.
  struct Node {
    unsigned char byte = 0;
    int32_t token = -1;  // index into tokens_
    uint32_t children = 0, child_count = 0;
  };
  void build_trie();
  const Node* child(const Node& node, unsigned char byte) const;
  const AddedToken* longest_at(std::string_view text, size_t at, bool parse_special,
                               std::span<const ByteRange> literal) const;

  std::vector<AddedToken> tokens_;  // sorted by text
  std::vector<Node> nodes_;
  std::array<bool, 256> begins_{};
};

}  // namespace attune::text
