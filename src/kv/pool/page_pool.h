// The device pool's pages: who holds each one and what may be done with it. Bookkeeping only; the
// bytes belong to the engine. Thread-compatible (the engine's thread).
//
// A page is a PageId (logical, stays with the content) and has at most one DeviceSlot (physical).
// Its device state goes round:
//
//   absent --reserve--> reserved --take--> filling --publish--> ready --drain--> draining
//
// and from each of them back to absent when its handle dies. A filling page may be drained as well.
//
// Only the owner of the handle can make a page go on: OwnedPage is what a request or the prefix
// index holds; losing it frees the page, and there is no other way to free one. Pages that several
// requests share belong to the index, and each request pins them there (kv/index). Reserving may
// fail and then changes nothing; everything after it cannot fail.
//
// Further tiers (host, storage) get a state each in PageRecord and more PageIds than DeviceSlots;
// `generation` tells a late completion that its page was freed and given to somebody else.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "kv/layout/layout.h"

namespace attune::kv {

enum class PageState : uint8_t { kAbsent, kReserved, kFilling, kReady, kDraining };
inline constexpr int kPageStates = 5;

class PagePool;

// One page, held by one owner. Move-only; frees the page when it dies.
class OwnedPage {
 public:
  OwnedPage() = default;
  OwnedPage(OwnedPage&& o) noexcept : pool_(std::exchange(o.pool_, nullptr)), id_(o.id_) {}
  OwnedPage& operator=(OwnedPage&& o) noexcept {
    if (this != &o) {
      reset();
      pool_ = std::exchange(o.pool_, nullptr);
      id_ = o.id_;
    }
    return *this;
  }
  ~OwnedPage() { reset(); }

  explicit operator bool() const { return pool_ != nullptr; }
  PageId id() const { return id_; }
  DeviceSlot slot() const;  // REQUIRES: holds a page
  PageState state() const;  // REQUIRES: holds a page

  // filling -> ready: the content is complete and will never be written again.
  void publish();
  // filling or ready -> draining: nobody wants the content, but a step on the device may touch it.
  void drain();
  void reset();

 private:
  friend class PagePool;
  friend class PageReservation;
  OwnedPage(PagePool* pool, PageId id) : pool_(pool), id_(id) {}
  PagePool* pool_ = nullptr;
  PageId id_;
};

// Pages set aside for one purpose; what is not taken goes back when it dies. Move-only.
class PageReservation {
 public:
  PageReservation() = default;
  PageReservation(PageReservation&&) = default;
  PageReservation& operator=(PageReservation&&) = default;

  int32_t size() const { return static_cast<int32_t>(pages_.size()); }
  // reserved -> filling. REQUIRES: size() > 0
  OwnedPage take();

 private:
  friend class PagePool;
  std::vector<OwnedPage> pages_;
};

class PagePool {
 public:
  // `num_slots` counts the padding slot 0, so num_slots - 1 pages can be had. REQUIRES: num_slots
  // >= 2, page_size >= 1
  PagePool(int32_t num_slots, int32_t page_size);
  // REQUIRES: every handle is gone
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  int32_t page_size() const { return page_size_; }
  int32_t total() const { return total_; }  // pages that can be had; the padding slot is not one
  int32_t free() const { return static_cast<int32_t>(free_slots_.size()); }
  int32_t count(PageState state) const { return counts_[static_cast<size_t>(state)]; }
  int32_t pages_for(int64_t tokens) const {
    return static_cast<int32_t>((tokens + page_size_ - 1) / page_size_);
  }

  // n pages, or nothing at all. O(n).
  std::optional<PageReservation> reserve(int32_t n);

  PageState state(PageId id) const { return record(id).device; }
  DeviceSlot slot(PageId id) const { return record(id).slot; }
  // Grows each time the page is freed.
  uint32_t generation(PageId id) const { return record(id).generation; }

 private:
  friend class OwnedPage;
  friend class PageReservation;
  struct PageRecord {
    DeviceSlot slot;
    uint32_t generation = 0;
    PageState device = PageState::kAbsent;
  };
  const PageRecord& record(PageId id) const { return records_[static_cast<size_t>(id.value)]; }
  void move_to(PageId id, PageState to);
  void free_page(PageId id);

  int32_t page_size_, total_;
  std::vector<PageRecord> records_;
  std::vector<PageId> free_ids_;
  std::vector<DeviceSlot> free_slots_;
  std::array<int32_t, kPageStates> counts_{};
};

inline DeviceSlot OwnedPage::slot() const {
  return pool_->slot(id_);
}
inline PageState OwnedPage::state() const {
  return pool_->state(id_);
}
inline void OwnedPage::publish() {
  pool_->move_to(id_, PageState::kReady);
}
inline void OwnedPage::drain() {
  pool_->move_to(id_, PageState::kDraining);
}
inline void OwnedPage::reset() {
  if (pool_ != nullptr) std::exchange(pool_, nullptr)->free_page(id_);
}

}  // namespace attune::kv
