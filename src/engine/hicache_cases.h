// Questions for the tests of the hierarchical cache, and the same through every tier.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "engine/testing.h"

namespace attune::engine::testing {

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
inline std::vector<std::vector<TokenId>> documents() {
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
inline std::vector<Answer> ask_all(Engine& engine) {
  std::vector<Answer> answers;
  for (size_t i = 0; i < 2 * documents().size(); ++i) {
    const std::vector<TokenId> document = documents()[i / 2];
    SamplingParams sampling = tokens(8);
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

inline void expect_same(const std::vector<Answer>& got, const std::vector<Answer>& want,
                        const std::string& what) {
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].tokens, want[i].tokens) << what << ", question " << i;
    EXPECT_EQ(got[i].logprobs, want[i].logprobs) << what << ", question " << i;
  }
}

inline Options plain_options(const std::string& model) {
  Options options = small_options();
  options.model = base::test_data("families/" + model);
  options.enable_deterministic_inference = true;
  options.page_size = 16;
  options.max_total_tokens = 256;
  return options;
}

inline Options tiered_options(const std::string& model) {
  Options options = plain_options(model);
  options.enable_hierarchical_cache = true;
  options.hicache_ratio = 8;
  options.hicache_load_back = "always";  // a model this small is computed faster
  return options;
}

inline uint64_t hits(const Engine& engine, size_t tier) {
  return engine.stats().cache_tiers.at(tier).hit_tokens;
}

// The host pool of a GPU is pinned in the background; until then nothing comes from below.
inline void wait_for_host(Engine& engine) {
  do ASSERT_TRUE(engine.flush_cache().ok());  // a turn of the loop
  while (engine.stats().hicache.host_ready < 1);
}

struct Way {
  const char *model, *io, *layout, *write;
};
inline std::string name_of(const Way& w) {
  return std::string(w.model) + "_" + w.io + "_" + w.layout + "_" + w.write;
}

// Cold, out of the host, and out of storage after device and host have forgotten everything: each
// page goes L1 -> L2 -> L3 -> L2 -> L1.
inline void expect_same_bits(const Way& way, const Options& plain_options, Options options) {
  auto plain = make_engine(plain_options);
  ASSERT_TRUE(plain);
  const std::vector<Answer> want = ask_all(*plain);
  Folder folder;
  options.hicache_io_backend = way.io;
  options.hicache_mem_layout = way.layout;
  options.hicache_write_policy = way.write;
  options.hicache_storage_backend = "file";
  options.hicache_storage_dir = folder.path();
  options.hicache_storage_prefetch_policy = "wait_complete";
  options.hicache_storage_prefetch_threshold = 16;
  auto engine = make_engine(options);
  ASSERT_TRUE(engine);
  wait_for_host(*engine);
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
  wait_for_host(*engine);
  const std::vector<Answer> restored = ask_all(*engine);
  expect_same(restored, want, "from storage");
  EXPECT_GT(hits(*engine, 2), 200u);
  // With write_back a page that is needed at once for a decode step may drive out one that has no
  // copy yet.
  const int32_t least = std::string(way.write) == "write_back" ? 16 : 96;
  for (const Answer& answer : restored) EXPECT_GE(answer.cached, least);
  EXPECT_EQ(engine->stats().cache_tiers.at(2).corrupt_pages, 0u);
  expect_nothing_held(*engine);
}

}  // namespace attune::engine::testing
