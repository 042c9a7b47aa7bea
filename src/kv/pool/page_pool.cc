#include "kv/pool/page_pool.h"

#include "base/check.h"

namespace attune::kv {
namespace {

// Which states each state may go to (absent is left only by reserve, entered only by free_page).
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

}  // namespace

PagePool::PagePool(int32_t num_slots, int32_t page_size)
    : page_size_(page_size), total_(num_slots - 1) {
  ATTUNE_CHECK(num_slots >= 2 && page_size >= 1);
  records_.resize(static_cast<size_t>(total_));
  free_ids_.reserve(records_.size());
  free_slots_.reserve(records_.size());
  for (int32_t i = 0; i < total_; ++i) {
    free_ids_.push_back(PageId(i));
    free_slots_.push_back(DeviceSlot(total_ - i));  // the first one given is 1; 0 is padding
  }
  counts_[static_cast<size_t>(PageState::kAbsent)] = total_;
}

PagePool::~PagePool() {
  ATTUNE_CHECK(free() == total_);
}

std::optional<PageReservation> PagePool::reserve(int32_t n) {
  if (n > free()) return std::nullopt;
  PageReservation reservation;
  reservation.pages_.reserve(static_cast<size_t>(n));
  for (int32_t i = 0; i < n; ++i) {
    const PageId id = free_ids_.back();
    free_ids_.pop_back();
    records_[static_cast<size_t>(id.value)].slot = free_slots_.back();
    free_slots_.pop_back();
    move_to(id, PageState::kReserved);
    reservation.pages_.push_back(OwnedPage(this, id));
  }
  return reservation;
}

void PagePool::move_to(PageId id, PageState to) {
  PageRecord& r = records_[static_cast<size_t>(id.value)];
  ATTUNE_CHECK(may_move(r.device, to));
  --counts_[static_cast<size_t>(r.device)];
  ++counts_[static_cast<size_t>(to)];
  r.device = to;
}

void PagePool::free_page(PageId id) {
  move_to(id, PageState::kAbsent);
  PageRecord& r = records_[static_cast<size_t>(id.value)];
  ++r.generation;
  free_slots_.push_back(std::exchange(r.slot, DeviceSlot()));
  free_ids_.push_back(id);
}

OwnedPage PageReservation::take() {
  ATTUNE_CHECK(!pages_.empty());
  OwnedPage page = std::move(pages_.back());
  pages_.pop_back();
  page.pool_->move_to(page.id_, PageState::kFilling);
  return page;
}

}  // namespace attune::kv
