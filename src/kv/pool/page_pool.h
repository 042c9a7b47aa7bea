// The pages of the device and the host pool: who holds each one and what may be done with it.
// Bookkeeping only; the bytes belong to the engine. Thread-compatible (the engine's thread).
//
// A page is a PageId (logical, stays with the content) and has at most one DeviceSlot and one
// HostSlot (physical). In each of the two tiers its state goes round:
//
//   absent --reserve--> reserved --take--> filling --publish--> ready --drain--> draining
//
// and from each of them back to absent. A request's page is filled by steps on the device; every
// other filling is a copy (PageTransfer): a load fills the device end from the host's, a save the
// host end from the device's, a fetch the host end from storage. A page's storage copy is not
// kept track of here: it is found by its key.
//
// Only the owner of the handle can make a page go on: OwnedPage is what a request or the prefix
// index holds; losing it frees the page, and there is no other way to free one. A transfer holds
// both ends in place until it ends: a page that loses its owner meanwhile drains, and its slots
// come back with its last transfer, so that no late copy lands in a page that is somebody else's.
// Reserving may fail and then changes nothing; everything after it cannot fail.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "kv/layout/host_layout.h"
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
  // REQUIRES, as do the next: holds a page
  DeviceSlot slot() const;  // invalid where it is not on the device
  PageState state() const;  // on the device
  HostSlot host_slot() const;
  PageState host_state() const;

  // filling -> ready on the device: the content is complete and will never be written again.
  void publish();
  // filling or ready -> draining: nobody wants the content, but a step on the device may touch it.
  void drain();
  // ready -> absent on the device. REQUIRES: ready in the host, no save or load
  void drop_device();
  void reset();

 private:
  friend class PagePool;
  friend class PageReservation;
  OwnedPage(PagePool* pool, PageId id) : pool_(pool), id_(id) {}
  PagePool* pool_ = nullptr;
  PageId id_;
};

// Pages with a device slot, set aside for one purpose; what is not taken goes back when it dies.
// Move-only.
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

// A copy of a page between two tiers, from the moment it is decided on. Move-only. Dying before
// complete() gives the end up that was to be filled.
class PageTransfer {
 public:
  enum class Kind : uint8_t {
    kSave,   // device to host
    kLoad,   // host to device
    kStore,  // host to storage
    kFetch,  // storage to host
  };
  PageTransfer() = default;
  PageTransfer(PageTransfer&& o) noexcept { *this = std::move(o); }
  PageTransfer& operator=(PageTransfer&& o) noexcept {
    if (this != &o) {
      end(false);
      pool_ = std::exchange(o.pool_, nullptr);
      id_ = o.id_, generation_ = o.generation_, kind_ = o.kind_;
    }
    return *this;
  }
  ~PageTransfer() { end(false); }

  explicit operator bool() const { return pool_ != nullptr; }
  PageId id() const { return id_; }
  Kind kind() const { return kind_; }
  DeviceSlot slot() const;
  HostSlot host_slot() const;
  // Every byte is in place: the end that was filling is ready.
  void complete() { end(true); }

 private:
  friend class PagePool;
  PageTransfer(PagePool* pool, PageId id, uint32_t generation, Kind kind)
      : pool_(pool), id_(id), generation_(generation), kind_(kind) {}
  void end(bool complete);
  PagePool* pool_ = nullptr;
  PageId id_;
  uint32_t generation_ = 0;
  Kind kind_ = Kind::kSave;
};

class PagePool {
 public:
  // `num_slots` counts the padding slot 0, so num_slots - 1 pages can be on the device. The host
  // has room for `host_slots` pages, once open_host() has said so. REQUIRES: num_slots >= 2,
  // page_size >= 1
  PagePool(int32_t num_slots, int32_t page_size, int32_t host_slots = 0);
  // REQUIRES: every handle is gone
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  int32_t page_size() const { return page_size_; }
  int32_t total() const { return total_; }  // pages on the device; the padding slot is not one
  int32_t free() const { return static_cast<int32_t>(free_slots_.size()); }
  int32_t count(PageState state) const { return counts_[static_cast<size_t>(state)]; }
  int32_t host_total() const { return host_total_; }
  int32_t host_open() const { return host_open_; }
  int32_t host_free() const { return static_cast<int32_t>(free_host_slots_.size()); }
  int32_t host_count(PageState state) const { return host_counts_[static_cast<size_t>(state)]; }
  int32_t max_pages() const { return static_cast<int32_t>(records_.size()); }  // ids are below it
  int32_t pages_for(int64_t tokens) const {
    return static_cast<int32_t>((tokens + page_size_ - 1) / page_size_);
  }
  // The host's slots below `slots` may be used from now on: their memory is pinned.
  void open_host(int32_t slots);

  // n pages on the device, or nothing at all. O(n).
  std::optional<PageReservation> reserve(int32_t n);

  // A copy into the host. Nothing: no host slot is free. REQUIRES: ready on the device, absent in
  // the host
  std::optional<PageTransfer> begin_save(const OwnedPage& page);
  // A copy onto the device, into the slot of `fresh`, a filling page. REQUIRES: ready in the host,
  // absent on the device
  PageTransfer begin_load(const OwnedPage& page, OwnedPage fresh);
  // A copy into storage. REQUIRES: ready in the host
  PageTransfer begin_store(const OwnedPage& page);
  // A page that comes from storage into the host. Nothing: no host slot is free.
  struct Fetch {
    OwnedPage page;
    PageTransfer transfer;
  };
  std::optional<Fetch> begin_fetch();
  // `page` takes the device slot of `filled`, a filling page with the same content, and is ready on
  // the device. REQUIRES: absent on the device
  void adopt(const OwnedPage& page, OwnedPage filled);

  PageState state(PageId id) const { return record(id).device.state; }
  PageState host_state(PageId id) const { return record(id).host.state; }
  DeviceSlot slot(PageId id) const { return DeviceSlot(record(id).device.slot); }
  HostSlot host_slot(PageId id) const { return HostSlot(record(id).host.slot); }
  bool in_transfer(PageId id) const { return record(id).transfers > 0; }
  // Grows each time the page is freed.
  uint32_t generation(PageId id) const { return record(id).generation; }

 private:
  friend class OwnedPage;
  friend class PageReservation;
  friend class PageTransfer;
  static constexpr int32_t kNoSlot = -1;
  struct End {
    int32_t slot = kNoSlot;
    PageState state = PageState::kAbsent;
  };
  struct PageRecord {
    End device, host;
    uint32_t generation = 0;
    int32_t transfers = 0;         // that hold the page, and its host end
    int32_t device_transfers = 0;  // of these, that hold its device end: saves and loads
    bool owned = false;
  };
  PageRecord& record(PageId id) { return records_[static_cast<size_t>(id.value)]; }
  const PageRecord& record(PageId id) const { return records_[static_cast<size_t>(id.value)]; }
  void move_device(PageRecord& r, PageState to);
  void move_host(PageRecord& r, PageState to);
  void free_device(PageRecord& r);
  void free_host(PageRecord& r);
  PageId take_id();
  int32_t take_host_slot();
  int32_t take_slot_of(OwnedPage filling);
  PageTransfer begin(PageId id, PageTransfer::Kind kind);
  void end_transfer(PageId id, uint32_t generation, PageTransfer::Kind kind, bool complete);
  void disown(PageId id);
  void free_if_over(PageId id);

  int32_t page_size_, total_, host_total_, host_open_ = 0;
  std::vector<PageRecord> records_;  // [total + host_total]: a page has a slot in one of the two
  std::vector<PageId> free_ids_;
  std::vector<int32_t> free_slots_, free_host_slots_;
  std::array<int32_t, kPageStates> counts_{}, host_counts_{};
};

inline DeviceSlot OwnedPage::slot() const {
  return pool_->slot(id_);
}
inline PageState OwnedPage::state() const {
  return pool_->state(id_);
}
inline HostSlot OwnedPage::host_slot() const {
  return pool_->host_slot(id_);
}
inline PageState OwnedPage::host_state() const {
  return pool_->host_state(id_);
}
inline void OwnedPage::publish() {
  pool_->move_device(pool_->record(id_), PageState::kReady);
}
inline void OwnedPage::drain() {
  pool_->move_device(pool_->record(id_), PageState::kDraining);
}
inline void OwnedPage::reset() {
  if (pool_ != nullptr) std::exchange(pool_, nullptr)->disown(id_);
}
inline DeviceSlot PageTransfer::slot() const {
  return pool_->slot(id_);
}
inline HostSlot PageTransfer::host_slot() const {
  return pool_->host_slot(id_);
}
inline void PageTransfer::end(bool complete) {
  if (pool_ != nullptr)
    std::exchange(pool_, nullptr)->end_transfer(id_, generation_, kind_, complete);
}

}  // namespace attune::kv
