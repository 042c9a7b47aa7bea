#include "text/token_table.h"

#include <bit>
#include <cstring>

namespace attune::text {
namespace {

// A multiplicative hash over eight bytes at a time; most tokens are one step.
uint64_t hash_bytes(std::string_view text) {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15;
  uint64_t h = text.size() * kMultiplier;
  auto mix = [&](uint64_t word) {
    h = (h ^ word) * kMultiplier;
    h ^= h >> 32;
  };
  size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + at, 8);
    mix(word);
  }
  if (at < text.size()) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + at, text.size() - at);
    mix(word);
  }
  return h;
}

}  // namespace

void StringArena::reserve(size_t count, size_t bytes) {
  ends_.reserve(count + 1);
  bytes_.reserve(bytes);
}

void StringArena::add(std::string_view text) {
  bytes_ += text;
  ends_.push_back(bytes_.size());
}

TokenIndex::TokenIndex(const StringArena& strings, size_t capacity)
    : strings_(strings), slots_(std::bit_ceil(capacity * 2 + 1), -1), mask_(slots_.size() - 1) {}

bool TokenIndex::insert(TokenId id) {
  const std::string_view text = strings_[static_cast<size_t>(id)];
  for (size_t slot = hash_bytes(text) & mask_;; slot = (slot + 1) & mask_) {
    if (slots_[slot] < 0) {
      slots_[slot] = id;
      return true;
    }
    if (strings_[static_cast<size_t>(slots_[slot])] == text) return false;
  }
}

TokenId TokenIndex::find(std::string_view text) const {
  for (size_t slot = hash_bytes(text) & mask_;; slot = (slot + 1) & mask_) {
    if (slots_[slot] < 0) return -1;
    if (strings_[static_cast<size_t>(slots_[slot])] == text) return slots_[slot];
  }
}

}  // namespace attune::text
