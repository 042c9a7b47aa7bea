// Byte strings by id, and ids by byte string.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace attune::text {

// Strings back to back in one block, by index. Thread-safe once filled.
class StringArena {
 public:
  void reserve(size_t count, size_t bytes);
  void add(std::string_view text);
  size_t size() const { return ends_.size() - 1; }
  std::string_view operator[](size_t i) const {
    return std::string_view(bytes_).substr(ends_[i], ends_[i + 1] - ends_[i]);
  }

 private:
  std::string bytes_;
  std::vector<uint64_t> ends_ = {0};
};

// An open-addressing index over strings of an arena, which must outlive it. Thread-safe once
// filled.
class TokenIndex {
 public:
  TokenIndex(const StringArena& strings, size_t capacity);
  // Keeps the first id of equal strings; false for a later one.
  bool insert(TokenId id);
  // -1: none.
  TokenId find(std::string_view text) const;

 private:
  struct Slot {
    uint32_t tag = 0;  // of the hash, so that few strings need be looked at
    TokenId id = -1;
  };
  const StringArena& strings_;
  std::vector<Slot> slots_;
  size_t mask_ = 0;
};

}  // namespace attune::text
