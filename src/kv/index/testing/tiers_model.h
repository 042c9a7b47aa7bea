// A model of what pool and index hold, made from what their headers say. It knows which page is
// where, keeps a content for each slot, spoils what is free or being filled, and compares all that
// can be seen.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <string>
#include <vector>

#include "kv/index/prefix_index.h"

namespace attune::kv::testing {

// A page of the model is its path: one bit a page behind a leading 1, and the salt's bit above
// them. It is its content as well. Sets of pages are bit masks.
using Code = uint32_t;
using Codes = uint64_t;
inline constexpr int kDepth = 4;
inline constexpr Code kSalt = 2 << kDepth;  // the bit of the second salt; below it paths
inline constexpr Code kFree = 0, kSpoilt = 1000;

constexpr bool is_page(Code c) {
  return c % kSalt > 1;
}
constexpr Code up(Code c) {
  return (c % kSalt) >> 1 | (c & kSalt);
}
constexpr Code down(Code c, Code bit) {
  return (c % kSalt) << 1 | bit | (c & kSalt);
}
constexpr int depth(Code c) {
  return static_cast<int>(std::bit_width(c % kSalt)) - 1;
}
constexpr Code first_pages(Code c, int n) {
  return (c % kSalt) >> (depth(c) - n) | (c & kSalt);
}
constexpr Codes bit(Code c) {
  return Codes{1} << c;
}
constexpr Codes path(Code c) {
  Codes all = 0;
  for (; is_page(c); c = up(c)) all |= bit(c);
  return all;
}
inline int32_t size(Codes codes) {
  return static_cast<int32_t>(std::popcount(codes));
}

struct Shape {
  int32_t device = 2, host = 0, page_size = 1;
  TierPlan tiers;
  const char* eviction = "lru";
  bool constant_hash = false;
};

class TiersModel {
 protected:
  TiersModel(const Shape& shape, uint64_t seed)
      : shape_(shape),
        rng_(seed * 2 + 1),
        pool_(shape.device + 1, shape.page_size, shape.host),
        index_(
            pool_,
            [this](int32_t pages) { return make_eviction_policy(shape_.eviction, pages).value(); },
            {"model", "f32", "hnd"}, {seed, 1}, shape.tiers),
        salts_{index_.salt("", ""), index_.salt("", "b")} {
    if (shape.constant_hash) index_.use_constant_hash_for_test();
    id_of_.fill(-1);
  }

  struct Held {
    PrefixPin pin;
    Code path = 0;
    std::vector<DeviceSlot> slots;
    int group = 0;  // of loads under way
    int came = 0;   // depth of the deepest of these that is complete
  };
  struct Own {
    OwnedPage page;
    uint32_t content = 0;
  };
  struct Op {
    PageTransfer transfer;
    PageTransfer::Kind kind = PageTransfer::Kind::kSave;
    Code code = 0;
    uint32_t mark = 0;  // what the target holds until the end
    DeviceSlot slot;
    HostSlot host;
    uint32_t generation = 0;
    int group = 0;
    OwnedPage fetched;
  };
  struct Known {
    Code code = 0;
    uint32_t generation = 0;
  };

  int32_t below(int n) {
    rng_ += 0x9e3779b97f4a7c15;
    uint64_t z = (rng_ ^ (rng_ >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return static_cast<int32_t>((z >> 33) % static_cast<uint64_t>(n));
  }
  bool chance(int percent) { return below(100) < percent; }
  // `likely`: the deepest of one of these, more often than not.
  Code random_path(Codes likely = 0) {
    if (likely != 0 && chance(75)) {
      for (int skip = below(size(likely)); skip > 0; --skip) likely &= likely - 1;
      return static_cast<Code>(std::countr_zero(likely));
    }
    Code c = 1 | (chance(30) ? kSalt : 0);
    for (int n = 1 + below(kDepth); n > 0; --n) c = down(c, static_cast<Code>(chance(30)));
    return c;
  }
  const PrefixSalt& salt(Code c) const { return salts_[c & kSalt ? 1 : 0]; }
  // The ids of the whole path; pages begin alike.
  std::span<const TokenId> tokens(Code c) {
    const int n = depth(c), page_size = shape_.page_size;
    for (int i = 0; i < n; ++i) {
      tokens_[size_t(i * page_size)] = 7;
      tokens_[size_t((i + 1) * page_size - 1)] = static_cast<TokenId>((c >> (n - 1 - i)) & 1);
    }
    return std::span(tokens_).first(size_t(n * page_size));
  }
  uint32_t& at(DeviceSlot slot) { return device_[size_t(slot.value)]; }
  uint32_t& at(HostSlot slot) { return host_[size_t(slot.value)]; }
  PageId id_of(Code c) const { return PageId(id_of_[c]); }
  void must(bool ok, const char* what) {
    if (!ok && error_.empty()) error_ = std::string(where_) + ": " + what;
  }

  // ---- what is there
  // -----------------------------------------------------------------------------

  // A page whose owner has let it go is in neither set.
  static bool there(PageState s) { return s != PageState::kAbsent && s != PageState::kDraining; }

  void know(PageId id, Code code) {
    known_[size_t(id.value)] = {code, pool_.generation(id)};
    id_of_[code] = id.value;
  }
  void forget_gone(int32_t i) {
    Known& k = known_[size_t(i)];
    const PageId id(i);
    if (k.code == 0) return;
    if (pool_.generation(id) == k.generation &&
        (there(pool_.state(id)) || there(pool_.host_state(id))))
      return;
    id_of_[k.code] = -1;
    uses_[k.code] = 0;
    owed_ &= ~bit(k.code);
    k = {};
  }

  // Slots of one tier that pages have; each has its own.
  template <typename Slot>
  void take(uint32_t& used, PageState state, Slot slot) {
    must((state == PageState::kAbsent) == (slot.value < 0), "a state and a slot do not agree");
    if (slot.value < 0) return;
    must((used >> slot.value & 1) == 0, "a slot belongs to two pages");
    used |= 1u << slot.value;
  }

  void look_at_pages() {
    uint32_t used = 0, host_used = 0;
    std::array<int32_t, kPageStates> counts{}, host_counts{};
    present_ = resident_ = ready_ = saved_ = 0;
    for (int32_t i = 0; i < pool_.max_pages(); ++i) {
      const PageId id(i);
      const PageState state = pool_.state(id), host = pool_.host_state(id);
      ++counts[size_t(state)], ++host_counts[size_t(host)];
      take(used, state, pool_.slot(id));
      take(host_used, host, pool_.host_slot(id));
      forget_gone(i);
      const Code code = known_[size_t(i)].code;
      if (code == 0) continue;
      present_ |= bit(code);
      if (state != PageState::kAbsent) resident_ |= bit(code);
      if (state == PageState::kReady) ready_ |= bit(code);
      if (host == PageState::kReady) saved_ |= bit(code);
      must(state != PageState::kReady || at(pool_.slot(id)) == code, "ready with a wrong content");
      must(host != PageState::kReady || at(pool_.host_slot(id)) == code,
           "ready in the host with a wrong content");
    }
    for (int s = 0; s < kPageStates; ++s)
      must(pool_.count(PageState(s)) == counts[size_t(s)] &&
               pool_.host_count(PageState(s)) == host_counts[size_t(s)],
           "a count of pages in a state is wrong");
    must(pool_.free() + std::popcount(used) == pool_.total(), "device slots do not add up");
    must(pool_.host_free() + std::popcount(host_used) == pool_.host_open(),
         "host slots do not add up");
    for (int32_t i = 1; i <= shape_.device; ++i)
      if ((used >> i & 1) == 0) device_[size_t(i)] = kFree;
    for (int32_t i = 0; i < shape_.host; ++i)
      if ((host_used >> i & 1) == 0) host_[size_t(i)] = kFree;
  }

  void look_at_holders() {
    held_ = in_transfer_ = 0;
    for (const Held& h : pins_) {
      held_ |= path(h.path);
      must(h.pin.pages() == depth(h.path), "a pin is of a wrong length");
      for (int i = 0; i < depth(h.path); ++i) {
        const Code code = first_pages(h.path, i + 1);
        must(id_of_[code] >= 0 && h.slots[size_t(i)] == pool_.slot(id_of(code)),
             "a pinned page has gone or moved");
        if (h.group == 0) must(at(h.slots[size_t(i)]) == code, "a reader sees a wrong content");
      }
    }
    for (const Own& own : own_)
      must(at(own.page.slot()) == own.content, "an owned page has a wrong content");
    for (const Op& op : ops_) {
      const bool up = op.kind == PageTransfer::Kind::kLoad;
      const bool from_storage = op.kind == PageTransfer::Kind::kFetch;
      if (op.kind == PageTransfer::Kind::kSave) held_ |= path(op.code);
      if (up || from_storage || op.kind == PageTransfer::Kind::kSave)
        must((up ? at(op.slot) : at(op.host)) == op.mark, "a copy's target was given away");
      if (!from_storage)
        must((op.kind == PageTransfer::Kind::kSave ? at(op.slot) : at(op.host)) == op.code,
             "a copy's source was given away");
      const PageId id = op.transfer.id();
      must(pool_.in_transfer(id) && pool_.generation(id) == op.generation, "a copy is forgotten");
      if (known_[size_t(id.value)].code == op.code) in_transfer_ |= bit(op.code);
    }
  }

  // Pages of the host that may go for others.
  Codes host_victims() const {
    Codes parents = 0;
    for (Codes left = present_; left != 0; left &= left - 1)
      parents |= bit(up(static_cast<Code>(std::countr_zero(left))));
    return saved_ & ~resident_ & ~held_ & ~in_transfer_ & ~parents;
  }

  void look(const char* where) {
    where_ = where;
    look_at_pages();
    if (!error_.empty()) return;
    look_at_holders();
    must((held_ & ~resident_) == 0, "a held page has left the device");
    for (Codes left = present_; left != 0; left &= left - 1) {
      const auto code = static_cast<Code>(std::countr_zero(left));
      if (!is_page(up(code))) continue;
      must((present_ & bit(up(code))) != 0, "a page has lost its parent");
      must((resident_ & bit(code)) == 0 || (resident_ & bit(up(code))) != 0,
           "a page on the device has a parent that is not");
    }
    must(index_.pages() == size(present_), "the index has other pages than the pool");
    must(index_.cached() == size(resident_), "wrong count of pages on the device");
    must(index_.evictable() == size(ready_ & ~held_), "wrong count of evictable pages");
    Codes lossy = 0;  // what would take an unsaved page along
    for (Codes left = ready_ & ~held_ & ~saved_; left != 0; left &= left - 1)
      lossy |= path(static_cast<Code>(std::countr_zero(left)));
    must(index_.spare() == pool_.free() + size(ready_ & ~held_ & ~lossy),
         "wrong count of spare pages");
    must(index_.can_save() == (pool_.host_free() > 0 || host_victims() != 0),
         "wrong about room in the host");
    must(below(16) != 0 || index_.check().empty(), "check()");
  }

  const Shape shape_;
  uint64_t rng_;
  PagePool pool_;
  PrefixIndex index_;
  const std::array<PrefixSalt, 2> salts_;
  std::array<TokenId, 2 * kDepth> tokens_{};
  std::array<uint32_t, 8> device_{}, host_{};  // content of each slot
  std::array<Known, 16> known_{};              // by page id
  std::array<int32_t, 2 * kSalt> id_of_{}, uses_{};
  Codes present_ = 0, resident_ = 0, ready_ = 0, saved_ = 0, held_ = 0, in_transfer_ = 0;
  Codes owed_ = 0;    // the write policy wants them saved
  Codes stored_ = 0;  // in storage
  std::vector<Held> pins_;
  std::vector<Own> own_;
  std::vector<Op> ops_;
  uint32_t marks_ = kSpoilt;
  const char* where_ = "";
  std::string error_;
};

}  // namespace attune::kv::testing
