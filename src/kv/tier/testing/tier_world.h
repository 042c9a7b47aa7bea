// What the tests of every tier need: pages, results to wait for, and a medium with a hand on it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kv/tier/kv_tier.h"
#include "kv/tier/make_tier.h"

namespace attune::kv::testing {

// A page in memory as runs with gaps between them, which must keep their poison.
class TestPage {
 public:
  TestPage(PageIdentity identity, int32_t runs = 3, int64_t run_bytes = 1000);
  // Bytes that `seed` and the key decide.
  TestPage& fill(uint64_t seed = 0);
  TestPage blank() const { return TestPage(identity, runs_.count, runs_.bytes); }
  PageRuns runs();
  std::string content() const;
  bool gaps_are_whole() const;
  bool operator==(const TestPage& other) const { return content() == other.content(); }

  PageIdentity identity;

 private:
  static constexpr int64_t kGap = 24;
  std::vector<char> memory_;
  PageRuns runs_;
};

// A prefix of `count` pages: each has the one before as its parent.
std::vector<TestPage> make_pages(int count, const std::string& root_salt, int chain = 0,
                                 int32_t runs = 3, int64_t run_bytes = 1000);
std::vector<PageKey> keys_of(const std::vector<TestPage>& pages);

// The results of operations, in the order in which they were asked for.
class Outcomes {
 public:
  KvTier::Done next();
  std::function<void(int32_t)> next_match();
  // Waits (a minute at most) for all; fails the test if one ended twice or on this thread.
  std::vector<TierResult> wait();
  int32_t matched() const { return matched_; }

 private:
  struct State;
  std::shared_ptr<State> state_ = std::make_shared<State>();
  int32_t matched_ = -1;
};
struct Outcomes::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::optional<TierResult>> results;
  size_t open = 0;
  int twice = 0, inside = 0;
  int32_t matched = -1;
};

std::vector<TierResult> write_all(KvTier& tier, std::vector<TestPage>& pages);
TierResult write_one(KvTier& tier, TestPage& page);
TierResult read_one(KvTier& tier, TestPage& into);
// Reads all at once into blank pages; what is kOk must equal the page (fails the test otherwise).
std::vector<TierResult> read_all(KvTier& tier, const std::vector<TestPage>& pages);
int32_t match_now(KvTier& tier, std::vector<PageKey> keys);
size_t count_of(TierResult result, const std::vector<TierResult>& results);

// Pages that their numbers make, of 64 KiB.
std::vector<TestPage> numbered_pages(int first, int count, const std::string& root_salt);
// Starts a process that writes them, from `first` on, as fast as the tier can, and kills it (-9) in
// the middle of that, once it has said of `enough` pages that they are acknowledged. All it said;
// nothing, and a failure of the test, if it ended by itself.
std::vector<int> write_until_killed(const TierConfig& config, int first, size_t enough);

// Waits until `what` holds, a minute at most.
template <typename What>
bool eventually(What what) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!what()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// One storage medium: tiers on it, and what is really there.
class TierWorld {
 public:
  virtual ~TierWorld() = default;
  virtual Result<std::unique_ptr<KvTier>> open(TierConfig config) = 0;
  virtual std::optional<std::string> get(const PageKey& key) = 0;
  virtual void put(const PageKey& key, const std::string& record) = 0;
  virtual void erase(const PageKey& key) = 0;
  virtual int64_t held_bytes() = 0;  // of page records
  // Between these no operation gets to its end.
  virtual void hold() = 0;
  virtual void let_go() = 0;
};

std::unique_ptr<TierWorld> make_memory_world();
std::unique_ptr<TierWorld> make_file_world();
std::unique_ptr<TierWorld> make_redis_world();

// A folder that goes with this object.
class TestFolder {
 public:
  TestFolder();
  ~TestFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace attune::kv::testing
