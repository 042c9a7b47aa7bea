#include "kv/transfer/copy_plan.h"

#include <gtest/gtest.h>

#include <vector>

namespace attune::kv {
namespace {

TEST(Chunks, CoverEveryPieceOnceLayerAfterLayer) {
  for (int32_t pages : {1, 2, 7, 1023, 1024, 1025, 3000})
    for (int32_t layers : {1, 2, 5})
      for (int64_t chunk : {1, 100, 250, 1000, 1 << 20}) {
        Chunks chunks(pages, layers, 100, chunk);
        int64_t at = 0;  // pieces before, layer-major
        while (!chunks.done()) {
          const Chunk c = chunks.next();
          ASSERT_EQ(int64_t{c.first_layer} * pages + c.first_page, at);
          ASSERT_TRUE(c.layers == 1 || c.pages == pages);
          ASSERT_LE(c.pages, ops::kMostKvCopyPages);
          ASSERT_LE(int64_t{c.pages} * c.layers, std::max<int64_t>(1, chunk / 100));
          at += int64_t{c.pages} * c.layers;
        }
        ASSERT_EQ(at, int64_t{pages} * layers);
      }
}

TEST(Chunks, OfNothingAreNone) {
  EXPECT_TRUE(Chunks(0, 4, 100, 1000).done());
}

struct Lists : ::testing::Test {
  std::vector<char> host = std::vector<char>(4096), device = std::vector<char>(4096);
  std::vector<ops::KvCopyPage> pages;
  CopyList list;

  ops::KvCopyParams params(int64_t host_slot, int64_t host_layer, int64_t device_slot,
                           int64_t device_layer) {
    sort_for_runs(pages);
    return {.to_host = true,
            .pages = pages.data(),
            .count = static_cast<int32_t>(pages.size()),
            .layers = 2,
            .host = host.data(),
            .device = device.data(),
            .host_slot_stride = host_slot,
            .host_layer_stride = host_layer,
            .device_slot_stride = device_slot,
            .device_layer_stride = device_layer,
            .piece_bytes = 16};
  }
};

TEST_F(Lists, NeighboursOnBothSidesAreOneCopy) {
  pages = {{7, 3}, {1, 9}, {5, 1}, {6, 2}, {2, 10}, {4, 0}, {3, 12}};
  list_copies(params(16, 1024, 16, 1024), 0, list);
  ASSERT_EQ(list.count(), 6u);  // of each layer: 4..7, 1..2, 3
  EXPECT_EQ(list.bytes, (std::vector<size_t>{64, 32, 16, 64, 32, 16}));
  EXPECT_EQ(list.from[0], device.data());
  EXPECT_EQ(list.to[0], host.data() + 4 * 16);
  EXPECT_EQ(list.from[4], device.data() + 1024 + 9 * 16);
  EXPECT_EQ(list.to[4], host.data() + 1024 + 1 * 16);
}

TEST_F(Lists, NoCopyLiesAcrossTwoParts) {
  pages = {{0, 0}, {1, 1}, {2, 2}, {3, 3}};
  list_copies(params(16, 1024, 16, 1024), 40, list);
  EXPECT_EQ(list.bytes, (std::vector<size_t>{40, 24, 16, 40, 8}));  // 1024 is 24 into a part
  EXPECT_EQ(list.to[1], host.data() + 40);
  EXPECT_EQ(list.from[1], device.data() + 40);
}

TEST_F(Lists, NothingIsJoinedThatLiesApartOnOneSide) {
  pages = {{0, 0}, {2, 1}, {1, 3}};
  list_copies(params(32, 16, 16, 1024), 0, list);
  EXPECT_EQ(list.count(), 6u);
}

}  // namespace
}  // namespace attune::kv
