// The tiers in a running engine: pages that have gone through any of them give the same answers to
// the bit. Bugs D-01, D-08, D-39; rows H6 and H7 for the layouts.
#include "engine/hicache_cases.h"

namespace attune {
namespace {

using engine::testing::Answer;
using engine::testing::ask_all;
using engine::testing::documents;
using engine::testing::expect_nothing_held;
using engine::testing::Folder;
using engine::testing::hits;
using engine::testing::make_engine;
using engine::testing::plain_options;
using engine::testing::start;
using engine::testing::Started;
using engine::testing::tiered_options;
using engine::testing::Way;

class HiCacheWays : public testing::TestWithParam<Way> {};

TEST_P(HiCacheWays, SameBitsThroughEveryTier) {
  engine::testing::expect_same_bits(GetParam(), plain_options(GetParam().model),
                                    tiered_options(GetParam().model));
}

std::vector<Way> ways() {
  std::vector<Way> all;
  for (const char* model : {"llama", "deepseek_v3"}) {
    all.push_back({model, "direct", "layer_first", "write_through"});
    all.push_back({model, "kernel", "layer_first", "write_through"});
    all.push_back({model, "direct", "page_first_direct", "write_through"});
    all.push_back({model, "kernel", "page_first_direct", "write_through"});
    all.push_back({model, "kernel", "page_first", "write_through"});
    all.push_back({model, "auto", "auto", "write_through_selective"});
    all.push_back({model, "auto", "auto", "write_back"});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, HiCacheWays, testing::ValuesIn(ways()),
                         [](const auto& info) { return name_of(info.param); });

// Another KV type, page size or layout on the same folder finds nothing (D-22).
TEST(HiCache, BugD22OtherPagesNeverMatch) {
  Folder folder;
  Options options = tiered_options("llama");
  options.hicache_storage_backend = "file";
  options.hicache_storage_dir = folder.path();
  options.hicache_storage_prefetch_policy = "wait_complete";
  options.hicache_storage_prefetch_threshold = 16;
  const auto storage_hits = [](const Options& o) {
    auto engine = make_engine(o);
    EXPECT_TRUE(engine);
    if (!engine) return uint64_t{0};
    ask_all(*engine);
    engine->drain(60);
    return hits(*engine, 2);
  };
  options.hicache_mem_layout = "page_first";
  EXPECT_EQ(storage_hits(options), 0u);
  EXPECT_GT(storage_hits(options), 300u);
  Options other = options;
  other.page_size = 32;
  EXPECT_EQ(storage_hits(other), 0u);
  other = options;
  other.hicache_mem_layout = "layer_first";
  EXPECT_EQ(storage_hits(other), 0u);
  other = options;
  other.kv_cache_dtype = "bfloat16";
  EXPECT_EQ(storage_hits(other), 0u);
  other = options;
  other.model = base::test_data("families/qwen3");
  EXPECT_EQ(storage_hits(other), 0u);
  EXPECT_GT(storage_hits(options), 300u);
}

// Many requests at once on a small device: everybody's pages come and go beside the steps.
TEST(HiCache, ManyAtOnceAreRight) {
  auto plain = make_engine(plain_options("llama"));
  ASSERT_TRUE(plain);
  const std::vector<Answer> want = ask_all(*plain);
  for (const char* write : {"write_through", "write_through_selective", "write_back"}) {
    Options options = tiered_options("llama");
    options.hicache_write_policy = write;
    options.hicache_ratio = 2;
    auto engine = make_engine(options);
    ASSERT_TRUE(engine);
    std::vector<Started> all;
    for (int round = 0; round < 8; ++round)
      for (const auto& document : documents())
        all.push_back(start(*engine, document, engine::testing::tokens(8)));
    for (size_t i = 0; i < all.size(); ++i) {
      all[i]->wait();
      EXPECT_EQ(all[i]->error, "");
      EXPECT_EQ(all[i]->tokens, want[2 * (i % (want.size() / 2))].tokens)
          << write << ", request " << i;
    }
    expect_nothing_held(*engine);
  }
}

TEST(HiCache, WithoutStorageThereIsNothingToClear) {
  auto engine = make_engine(tiered_options("llama"));
  ASSERT_TRUE(engine);
  EXPECT_EQ(engine->clear_storage().code(), Code::kInvalidArgument);
}

TEST(HiCache, ClearedStorageIsEmpty) {
  Folder folder;
  Options options = tiered_options("llama");
  options.hicache_storage_backend = "file";
  options.hicache_storage_dir = folder.path();
  auto engine = make_engine(options);
  ASSERT_TRUE(engine);
  ask_all(*engine);
  ASSERT_TRUE(engine->flush_cache().ok());
  EXPECT_GT(engine->stats().cache_tiers.at(2).pages, 20);
  ASSERT_TRUE(engine->clear_storage().ok());
  EXPECT_EQ(engine->stats().cache_tiers.at(2).pages, 0);
  ask_all(*engine);  // and is filled again
  ASSERT_TRUE(engine->flush_cache().ok());
  EXPECT_GT(engine->stats().cache_tiers.at(2).pages, 20);
}

}  // namespace
}  // namespace attune
