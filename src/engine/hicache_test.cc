// The tiers in a running engine: pages that have gone through any of them give the same answers to
// the bit. Bugs D-01, D-08, D-39; rows H6 and H7 for the layouts.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <random>

#include "engine/testing.h"

namespace attune {
namespace {

using engine::testing::expect_nothing_held;
using engine::testing::make_engine;
using engine::testing::small_options;
using engine::testing::start;
using engine::testing::Started;

constexpr int32_t kNewTokens = 8;

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/attune-hicache-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Six documents that share a beginning, three times what the device has room for together.
std::vector<std::vector<TokenId>> documents() {
  std::mt19937 random(5);
  std::vector<TokenId> beginning(40);
  for (TokenId& id : beginning) id = static_cast<TokenId>(3 + random() % 90);
  std::vector<std::vector<TokenId>> all(6, beginning);
  for (auto& document : all)
    while (document.size() < 112) document.push_back(static_cast<TokenId>(3 + random() % 90));
  return all;
}

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  int32_t cached = 0;
};

// Each document twice: write_through_selective saves what was used again.
std::vector<Answer> ask_all(Engine& engine) {
  std::vector<Answer> answers;
  for (size_t i = 0; i < 2 * documents().size(); ++i) {
    const std::vector<TokenId> document = documents()[i / 2];
    SamplingParams sampling = engine::testing::tokens(kNewTokens);
    sampling.top_logprobs = 0;
    Started started = start(engine, document, sampling);
    started->wait();
    EXPECT_EQ(started->error, "");
    Answer& answer = answers.emplace_back();
    answer.tokens = started->tokens;
    for (const LogprobEntry& entry : started->logprobs)
      answer.logprobs.push_back(entry.chosen.logprob);
    answer.cached = started->usage.cached_tokens;
  }
  return answers;
}

void expect_same(const std::vector<Answer>& got, const std::vector<Answer>& want,
                 const std::string& what) {
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].tokens, want[i].tokens) << what << ", question " << i;
    EXPECT_EQ(got[i].logprobs, want[i].logprobs) << what << ", question " << i;
  }
}

Options options_of(const std::string& model) {
  Options options = small_options();
  options.model = base::test_data("families/" + model);
  options.enable_deterministic_inference = true;
  options.page_size = 16;
  options.max_total_tokens = 256;
  return options;
}

Options tiered(const std::string& model) {
  Options options = options_of(model);
  options.enable_hierarchical_cache = true;
  options.hicache_ratio = 8;
  options.hicache_load_back = "always";  // a model this small is computed faster
  return options;
}

uint64_t hits(const Engine& engine, size_t tier) {
  return engine.stats().cache_tiers.at(tier).hit_tokens;
}

struct Way {
  const char *model, *io, *layout, *write;
};

class HiCacheWays : public testing::TestWithParam<Way> {};

// Cold, out of the host, and out of storage after device and host have forgotten everything: each
// page goes L1 -> L2 -> L3 -> L2 -> L1.
TEST_P(HiCacheWays, SameBitsThroughEveryTier) {
  const Way& way = GetParam();
  auto plain = make_engine(options_of(way.model));
  ASSERT_TRUE(plain);
  const std::vector<Answer> want = ask_all(*plain);
  Folder folder;
  Options options = tiered(way.model);
  options.hicache_io_backend = way.io;
  options.hicache_mem_layout = way.layout;
  options.hicache_write_policy = way.write;
  options.hicache_storage_backend = "file";
  options.hicache_storage_dir = folder.path();
  options.hicache_storage_prefetch_policy = "wait_complete";
  options.hicache_storage_prefetch_threshold = 16;
  auto engine = make_engine(options);
  ASSERT_TRUE(engine);
  expect_same(ask_all(*engine), want, "cold");
  const uint64_t before = hits(*engine, 1);
  const std::vector<Answer> warm = ask_all(*engine);
  expect_same(warm, want, "from the host");
  EXPECT_GT(hits(*engine, 1), before);
  for (const Answer& answer : warm) EXPECT_GE(answer.cached, 32);

  engine->drain(60);  // everything goes down
  EXPECT_GT(engine->stats().cache_tiers.at(2).pages, 20);
  engine.reset();
  engine = make_engine(options);  // D-08: another process finds what the first has written
  ASSERT_TRUE(engine);
  const std::vector<Answer> restored = ask_all(*engine);
  expect_same(restored, want, "from storage");
  EXPECT_GT(hits(*engine, 2), 200u);
  // With write_back a page that is needed at once for a decode step may drive out one that has no
  // copy yet.
  if (std::string(way.write) != "write_back")
    for (const Answer& answer : restored) EXPECT_GE(answer.cached, 96);
  EXPECT_EQ(engine->stats().cache_tiers.at(2).corrupt_pages, 0u);
  expect_nothing_held(*engine);
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

INSTANTIATE_TEST_SUITE_P(All, HiCacheWays, testing::ValuesIn(ways()), [](const auto& info) {
  const Way& w = info.param;
  return std::string(w.model) + "_" + w.io + "_" + w.layout + "_" + w.write;
});

// Another KV type, page size or layout on the same folder finds nothing (D-22).
TEST(HiCache, BugD22OtherPagesNeverMatch) {
  Folder folder;
  Options options = tiered("llama");
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
  auto plain = make_engine(options_of("llama"));
  ASSERT_TRUE(plain);
  const std::vector<Answer> want = ask_all(*plain);
  for (const char* write : {"write_through", "write_through_selective", "write_back"}) {
    Options options = tiered("llama");
    options.hicache_write_policy = write;
    options.hicache_ratio = 2;
    auto engine = make_engine(options);
    ASSERT_TRUE(engine);
    std::vector<Started> all;
    for (int round = 0; round < 8; ++round)
      for (const auto& document : documents())
        all.push_back(start(*engine, document, engine::testing::tokens(kNewTokens)));
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
  auto engine = make_engine(tiered("llama"));
  ASSERT_TRUE(engine);
  EXPECT_EQ(engine->clear_storage().code(), Code::kInvalidArgument);
}

TEST(HiCache, ClearedStorageIsEmpty) {
  Folder folder;
  Options options = tiered("llama");
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
