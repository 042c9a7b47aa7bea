#include "kv/pool/page_pool.h"

#include "base/check.h"

namespace attune::kv {
namespace {

// Which states each state may go to.
constexpr bool may_move(PageState from, PageState to) {
  switch (from) {
    case PageState::kAbsent:
      return to == PageState::kReserved;
    case PageState::kReserved:
      return to == PageState::kFilling || to == PageState::kAbsent;
    case PageState::kFilling:
      return to != PageState::kReserved && to != PageState::kFilling;
    case PageState::kReady:
      return to == PageState::kDraining || to == PageState::kAbsent;
    case PageState::kDraining:
      return to == PageState::kAbsent;
  }
  return false;
}

constexpr bool holds_device(PageTransfer::Kind kind) {
  return kind == PageTransfer::Kind::kSave || kind == PageTransfer::Kind::kLoad;
}

void move(std::array<int32_t, kPageStates>& counts, PageState& from, PageState to) {
  ATTUNE_CHECK(may_move(from, to));
  --counts[static_cast<size_t>(from)];
  ++counts[static_cast<size_t>(to)];
  from = to;
}

}  // namespace

PagePool::PagePool(int32_t num_slots, int32_t page_size, int32_t host_slots)
    : page_size_(page_size), total_(num_slots - 1), host_total_(host_slots) {
  ATTUNE_CHECK(num_slots >= 2 && page_size >= 1 && host_slots >= 0);
  records_.resize(static_cast<size_t>(total_) + static_cast<size_t>(host_slots));
  free_ids_.reserve(records_.size());
  free_slots_.reserve(static_cast<size_t>(total_));
  free_host_slots_.reserve(static_cast<size_t>(host_slots));
  for (int32_t i = 0; i < max_pages(); ++i) free_ids_.push_back(PageId(i));
  for (int32_t i = 0; i < total_; ++i)
    free_slots_.push_back(total_ - i);  // the first one given is 1; 0 is padding
  counts_[static_cast<size_t>(PageState::kAbsent)] = max_pages();
  host_counts_[static_cast<size_t>(PageState::kAbsent)] = max_pages();
}

PagePool::~PagePool() {
  ATTUNE_CHECK(free() == total_ && host_free() == host_open_);
}

void PagePool::open_host(int32_t slots) {
  ATTUNE_CHECK(slots >= host_open_ && slots <= host_total_);
  for (int32_t slot = slots; slot-- > host_open_;) free_host_slots_.push_back(slot);
  host_open_ = slots;
}

std::optional<PageReservation> PagePool::reserve(int32_t n) {
  if (n > free()) return std::nullopt;
  PageReservation reservation;
  reservation.pages_.reserve(static_cast<size_t>(n));
  for (int32_t i = 0; i < n; ++i) {
    const PageId id = take_id();
    record(id).device.slot = free_slots_.back();
    free_slots_.pop_back();
    move_device(record(id), PageState::kReserved);
    reservation.pages_.push_back(OwnedPage(this, id));
  }
  return reservation;
}

OwnedPage PageReservation::take() {
  ATTUNE_CHECK(!pages_.empty());
  OwnedPage page = std::move(pages_.back());
  pages_.pop_back();
  page.pool_->move_device(page.pool_->record(page.id_), PageState::kFilling);
  return page;
}

// ---- copies ------------------------------------------------------------------------------------

std::optional<PageTransfer> PagePool::begin_save(const OwnedPage& page) {
  PageRecord& r = record(page.id());
  ATTUNE_CHECK(r.device.state == PageState::kReady);
  if (free_host_slots_.empty()) return std::nullopt;
  r.host.slot = take_host_slot();
  move_host(r, PageState::kReserved);
  move_host(r, PageState::kFilling);
  return begin(page.id(), PageTransfer::Kind::kSave);
}

PageTransfer PagePool::begin_load(const OwnedPage& page, OwnedPage fresh) {
  PageRecord& r = record(page.id());
  ATTUNE_CHECK(r.host.state == PageState::kReady && r.device.state == PageState::kAbsent);
  r.device.slot = take_slot_of(std::move(fresh));
  move_device(r, PageState::kReserved);
  move_device(r, PageState::kFilling);
  return begin(page.id(), PageTransfer::Kind::kLoad);
}

PageTransfer PagePool::begin_store(const OwnedPage& page) {
  ATTUNE_CHECK(page.host_state() == PageState::kReady);
  return begin(page.id(), PageTransfer::Kind::kStore);
}

std::optional<PagePool::Fetch> PagePool::begin_fetch() {
  if (free_host_slots_.empty()) return std::nullopt;
  const PageId id = take_id();
  PageRecord& r = record(id);
  r.host.slot = take_host_slot();
  move_host(r, PageState::kReserved);
  move_host(r, PageState::kFilling);
  return Fetch{OwnedPage(this, id), begin(id, PageTransfer::Kind::kFetch)};
}

void PagePool::adopt(const OwnedPage& page, OwnedPage filled) {
  PageRecord& r = record(page.id());
  ATTUNE_CHECK(r.device.state == PageState::kAbsent);
  r.device.slot = take_slot_of(std::move(filled));
  move_device(r, PageState::kReserved);
  move_device(r, PageState::kFilling);
  move_device(r, PageState::kReady);
}

PageTransfer PagePool::begin(PageId id, PageTransfer::Kind kind) {
  ++record(id).transfers;
  record(id).device_transfers += holds_device(kind);
  return PageTransfer(this, id, record(id).generation, kind);
}

void PagePool::end_transfer(PageId id, uint32_t generation, PageTransfer::Kind kind,
                            bool complete) {
  PageRecord& r = record(id);
  ATTUNE_CHECK(r.generation == generation && r.transfers > 0);
  --r.transfers;
  r.device_transfers -= holds_device(kind);
  if (r.owned && kind == PageTransfer::Kind::kLoad) {
    complete ? move_device(r, PageState::kReady) : free_device(r);
  } else if (r.owned && kind != PageTransfer::Kind::kStore) {
    complete ? move_host(r, PageState::kReady) : free_host(r);
  }
  free_if_over(id);
}

void OwnedPage::drop_device() {
  PagePool::PageRecord& r = pool_->record(id_);
  ATTUNE_CHECK(r.device.state == PageState::kReady && r.host.state == PageState::kReady &&
               r.device_transfers == 0);
  pool_->free_device(r);
}

// ---- slots -------------------------------------------------------------------------------------

void PagePool::move_device(PageRecord& r, PageState to) {
  move(counts_, r.device.state, to);
}

void PagePool::move_host(PageRecord& r, PageState to) {
  move(host_counts_, r.host.state, to);
}

void PagePool::free_device(PageRecord& r) {
  move_device(r, PageState::kAbsent);
  free_slots_.push_back(std::exchange(r.device.slot, kNoSlot));
}

void PagePool::free_host(PageRecord& r) {
  move_host(r, PageState::kAbsent);
  free_host_slots_.push_back(std::exchange(r.host.slot, kNoSlot));
}

PageId PagePool::take_id() {
  const PageId id = free_ids_.back();
  free_ids_.pop_back();
  record(id).owned = true;
  return id;
}

int32_t PagePool::take_host_slot() {
  const int32_t slot = free_host_slots_.back();
  free_host_slots_.pop_back();
  return slot;
}

// The page goes, its slot stays with the caller.
int32_t PagePool::take_slot_of(OwnedPage filling) {
  PageRecord& r = record(filling.id());
  ATTUNE_CHECK(r.device.state == PageState::kFilling && r.transfers == 0);
  move_device(r, PageState::kAbsent);
  return std::exchange(r.device.slot, kNoSlot);
}

void PagePool::disown(PageId id) {
  PageRecord& r = record(id);
  r.owned = false;
  if (r.transfers > 0) {  // both ends stay in place until the last transfer ends
    if (r.device.state == PageState::kFilling || r.device.state == PageState::kReady)
      move_device(r, PageState::kDraining);
    if (r.host.state == PageState::kFilling || r.host.state == PageState::kReady)
      move_host(r, PageState::kDraining);
  }
  free_if_over(id);
}

void PagePool::free_if_over(PageId id) {
  PageRecord& r = record(id);
  if (r.owned || r.transfers > 0) return;
  if (r.device.state != PageState::kAbsent) free_device(r);
  if (r.host.state != PageState::kAbsent) free_host(r);
  ++r.generation;
  free_ids_.push_back(id);
}

}  // namespace attune::kv
