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
    : strings_(strings), slots_(std::bit_ceil(capacity * 2 + 1)), mask_(slots_.size() - 1) {}

bool TokenIndex::insert(TokenId id) {
  const std::string_view text = strings_[static_cast<size_t>(id)];
  const uint64_t hash = hash_bytes(text);
  const auto tag = static_cast<uint32_t>(hash >> 32);
  for (size_t at = hash & mask_;; at = (at + 1) & mask_) {
    Slot& slot = slots_[at];
    if (slot.id < 0) {
      slot = {tag, id};
      return true;
    }
    if (slot.tag == tag && strings_[static_cast<size_t>(slot.id)] == text) return false;
  }
}

TokenId TokenIndex::find(std::string_view text) const {
  const uint64_t hash = hash_bytes(text);
  const auto tag = static_cast<uint32_t>(hash >> 32);
  for (size_t at = hash & mask_;; at = (at + 1) & mask_) {
    const Slot& slot = slots_[at];
    if (slot.id < 0) return -1;
    if (slot.tag == tag && strings_[static_cast<size_t>(slot.id)] == text) return slot.id;
  }
}

}  // namespace attune::text
