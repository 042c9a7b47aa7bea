#include "kv/pool/page_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <type_traits>

namespace attune::kv {
namespace {

// A double free or a copy does not compile.
static_assert(!std::is_copy_constructible_v<OwnedPage> && !std::is_copy_assignable_v<OwnedPage>);
static_assert(!std::is_copy_constructible_v<PageReservation>);
static_assert(std::is_nothrow_move_constructible_v<OwnedPage>);
// Logical and physical ids do not mix.
static_assert(!std::is_convertible_v<PageId, DeviceSlot>);

TEST(PagePool, GivesEverySlotButThePaddingOne) {
  PagePool pool(9, 16);
  EXPECT_EQ(pool.total(), 8);
  auto all = pool.reserve(8);
  ASSERT_TRUE(all);
  EXPECT_EQ(pool.free(), 0);
  std::set<int32_t> slots;
  std::vector<OwnedPage> pages;
  while (all->size() > 0) {
    pages.push_back(all->take());
    slots.insert(pages.back().slot().value);
  }
  EXPECT_EQ(slots.size(), 8u);
  EXPECT_EQ(*slots.begin(), 1);
  EXPECT_EQ(*slots.rbegin(), 8);
}

TEST(PagePool, ReserveIsAllOrNothing) {
  PagePool pool(5, 1);
  auto three = pool.reserve(3);
  EXPECT_FALSE(pool.reserve(2));
  EXPECT_EQ(pool.free(), 1);
  EXPECT_EQ(pool.count(PageState::kReserved), 3);
  EXPECT_TRUE(pool.reserve(1));  // and it goes back at once
  EXPECT_TRUE(pool.reserve(0));
  three.reset();
  EXPECT_EQ(pool.free(), 4);
}

TEST(PagePool, StatesFollowTheHandle) {
  PagePool pool(2, 4);
  auto reservation = pool.reserve(1);
  EXPECT_EQ(pool.count(PageState::kReserved), 1);
  OwnedPage page = reservation->take();
  EXPECT_EQ(page.state(), PageState::kFilling);
  page.publish();
  EXPECT_EQ(page.state(), PageState::kReady);
  OwnedPage moved = std::move(page);
  EXPECT_FALSE(page);
  moved.drain();
  EXPECT_EQ(pool.count(PageState::kDraining), 1);
  EXPECT_EQ(pool.free(), 0);
  moved.reset();
  moved.reset();
  EXPECT_EQ(pool.free(), 1);
}

TEST(PagePool, GenerationTellsOldFromNew) {
  PagePool pool(2, 4);
  OwnedPage first = pool.reserve(1)->take();
  const PageId id = first.id();
  const uint32_t generation = pool.generation(id);
  first.reset();
  OwnedPage second = pool.reserve(1)->take();
  EXPECT_EQ(second.id(), id);
  EXPECT_NE(pool.generation(id), generation);
}

TEST(PagePoolDeathTest, WrongArrowsAreProgrammerErrors) {
  PagePool pool(3, 4);
  OwnedPage page = pool.reserve(1)->take();
  page.publish();
  EXPECT_DEATH(page.publish(), "check failed");
  EXPECT_DEATH(
      {
        PagePool short_lived(3, 4);
        page = short_lived.reserve(1)->take();
      },
      "check failed");
}

TEST(PagePool, BooksAddUpUnderRandomUse) {
  PagePool pool(40, 4);
  std::mt19937 rng(5);
  std::vector<OwnedPage> held;
  for (int i = 0; i < 20000; ++i) {
    const auto n = static_cast<int32_t>(rng() % 6);
    const int32_t free = pool.free();
    if (auto r = pool.reserve(n)) {
      while (r->size() > 1) held.push_back(r->take());  // one goes back
    } else {
      ASSERT_GT(n, free);
      ASSERT_EQ(pool.free(), free);
    }
    for (size_t k = rng() % 5; k > 0 && !held.empty(); --k) {
      const size_t at = rng() % held.size();
      if (held[at].state() == PageState::kFilling && rng() % 2) held[at].publish();
      if (held[at].state() != PageState::kDraining && rng() % 2) held[at].drain();
      held.erase(held.begin() + static_cast<ptrdiff_t>(at));
    }
    ASSERT_EQ(pool.free() + static_cast<int32_t>(held.size()), pool.total());
    ASSERT_EQ(pool.count(PageState::kAbsent), pool.free());
    ASSERT_EQ(pool.count(PageState::kReserved), 0);
    std::set<int32_t> slots;
    for (const OwnedPage& p : held) slots.insert(p.slot().value);
    ASSERT_EQ(slots.size(), held.size());
  }
}

}  // namespace
}  // namespace attune::kv
