#include "kv/tier/testing/tier_world.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "kv/index/page_key.h"
#include "kv/tier/file/file_tier.h"
#include "kv/tier/testing/memory_tier.h"

namespace attune::kv::testing {
namespace fs = std::filesystem;

constexpr char kPoison = 0x5a;

TestPage::TestPage(PageIdentity id, int32_t runs, int64_t run_bytes)
    : identity(std::move(id)),
      memory_(static_cast<size_t>(runs * (run_bytes + kGap)), kPoison),
      runs_{nullptr, run_bytes, run_bytes + kGap, runs} {}

PageRuns TestPage::runs() {
  PageRuns runs = runs_;
  runs.first = memory_.data();
  return runs;
}

TestPage& TestPage::fill(uint64_t seed) {
  uint64_t word;
  std::memcpy(&word, identity.key.bytes.data(), sizeof word);
  std::mt19937_64 random(word + seed);
  const PageRuns to = runs();
  for (int32_t run = 0; run < to.count; ++run)
    for (int64_t i = 0; i < to.bytes; ++i)
      to.first[run * to.stride + i] = static_cast<char>(random());
  return *this;
}

std::string TestPage::content() const {
  std::string out;
  for (int32_t run = 0; run < runs_.count; ++run)
    out.append(memory_.data() + run * runs_.stride, static_cast<size_t>(runs_.bytes));
  return out;
}

bool TestPage::gaps_are_whole() const {
  for (int32_t run = 0; run < runs_.count; ++run)
    for (int64_t i = runs_.bytes; i < runs_.stride; ++i)
      if (memory_[static_cast<size_t>(run * runs_.stride + i)] != kPoison) return false;
  return true;
}

std::vector<TestPage> make_pages(int count, const std::string& root_salt, int chain, int32_t runs,
                                 int64_t run_bytes) {
  std::vector<TestPage> pages;
  PageKey parent = root_key("a model", root_salt);
  for (int i = 0; i < count; ++i) {
    std::vector<TokenId> tokens;
    for (int t = 0; t < 16; ++t) tokens.push_back(chain * 100000 + i * 16 + t);
    const PageKey key = child_key(parent, tokens);
    pages.push_back(TestPage({key, parent, tokens}, runs, run_bytes));
    pages.back().fill();
    parent = key;
  }
  return pages;
}

std::vector<PageKey> keys_of(const std::vector<TestPage>& pages) {
  std::vector<PageKey> keys;
  for (const TestPage& page : pages) keys.push_back(page.identity.key);
  return keys;
}

KvTier::Done Outcomes::next() {
  std::lock_guard lock(state_->mutex);
  const size_t index = state_->results.size();
  state_->results.emplace_back();
  ++state_->open;
  return [state = state_, index, caller = std::this_thread::get_id()](TierResult result) {
    std::lock_guard guard(state->mutex);
    if (std::this_thread::get_id() == caller) ++state->inside;
    if (state->results[index]) {
      ++state->twice;
      return;
    }
    state->results[index] = result;
    --state->open;
    state->changed.notify_all();
  };
}

std::function<void(int32_t)> Outcomes::next_match() {
  return [state = state_, done = next()](int32_t found) {
    {
      std::lock_guard guard(state->mutex);
      state->matched = found;
    }
    done(TierResult::kOk);
  };
}

std::vector<TierResult> Outcomes::wait() {
  std::unique_lock lock(state_->mutex);
  const bool all =
      state_->changed.wait_for(lock, std::chrono::minutes(1), [this] { return state_->open == 0; });
  EXPECT_TRUE(all) << state_->open << " operations never ended";
  EXPECT_EQ(state_->twice, 0);
  EXPECT_EQ(state_->inside, 0) << "done was called inside the call";
  matched_ = state_->matched;
  std::vector<TierResult> results;
  for (const auto& result : state_->results)
    results.push_back(result.value_or(TierResult::kFailed));
  return results;
}

std::vector<TierResult> write_all(KvTier& tier, std::vector<TestPage>& pages) {
  Outcomes outcomes;
  for (TestPage& page : pages) tier.write(page.identity, page.runs(), outcomes.next());
  return outcomes.wait();
}

TierResult write_one(KvTier& tier, TestPage& page) {
  Outcomes outcome;
  tier.write(page.identity, page.runs(), outcome.next());
  return outcome.wait().front();
}

TierResult read_one(KvTier& tier, TestPage& into) {
  Outcomes outcome;
  tier.read(into.identity, into.runs(), outcome.next());
  return outcome.wait().front();
}

std::vector<TierResult> read_all(KvTier& tier, const std::vector<TestPage>& pages) {
  std::vector<TestPage> got;
  for (const TestPage& page : pages) got.push_back(page.blank());
  Outcomes outcomes;
  for (TestPage& page : got) tier.read(page.identity, page.runs(), outcomes.next());
  std::vector<TierResult> results = outcomes.wait();
  for (size_t i = 0; i < pages.size(); ++i) {
    if (results[i] == TierResult::kOk) {
      EXPECT_TRUE(got[i] == pages[i]) << "page " << i;
    }
    EXPECT_TRUE(got[i].gaps_are_whole()) << "page " << i;
  }
  return results;
}

int32_t match_now(KvTier& tier, std::vector<PageKey> keys) {
  Outcomes outcome;
  tier.match(std::move(keys), outcome.next_match());
  outcome.wait();
  return outcome.matched();
}

size_t count_of(TierResult result, const std::vector<TierResult>& results) {
  return static_cast<size_t>(std::count(results.begin(), results.end(), result));
}

std::vector<TestPage> numbered_pages(int first, int count, const std::string& root_salt) {
  std::vector<TestPage> pages;
  for (int i = first; i < first + count; ++i)
    pages.push_back(std::move(make_pages(1, root_salt, i, 4, 16'384)[0]));
  return pages;
}

[[noreturn]] static void write_for_ever(const TierConfig& config, int first, int out) {
  const auto tier = make_tier(config);
  if (!tier.ok()) ::_exit(1);
  for (;; first += 50) {
    std::vector<TestPage> more = numbered_pages(first, 50, (*tier)->info().root_salt);
    Outcomes outcomes;
    for (int i = 0; i < 50; ++i)
      (*tier)->write(
          more[i].identity, more[i].runs(),
          [first, i, out, done = outcomes.next()](TierResult result) {
            const int number = first + i;
            if (result == TierResult::kOk && ::write(out, &number, sizeof number) != sizeof number)
              ::_exit(2);
            done(result);
          });
    outcomes.wait();
  }
}

std::vector<int> write_until_killed(const TierConfig& config, int first, size_t enough) {
  int pipe[2];
  if (::pipe(pipe) != 0) return {};
  const pid_t child = ::fork();
  if (child == 0) write_for_ever(config, first, pipe[1]);
  ::close(pipe[1]);
  std::vector<int> acknowledged;
  int number;
  while (::read(pipe[0], &number, sizeof number) == sizeof number) {
    acknowledged.push_back(number);
    if (acknowledged.size() == enough) ::kill(child, SIGKILL);
  }
  ::close(pipe[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status) && acknowledged.size() >= enough) return acknowledged;
  ADD_FAILURE() << "the writer ended by itself";
  return {};
}

TestFolder::TestFolder() {
  const fs::path memory = "/dev/shm";  // 256 folders a test are slow on a disk
  const fs::path base = fs::exists(memory) ? memory : fs::temp_directory_path();
  std::string path = (base / "attune-tier-XXXXXX").string();
  if (::mkdtemp(path.data()) == nullptr) std::abort();
  path_ = path;
}

TestFolder::~TestFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

namespace {

class MemoryWorld final : public TierWorld {
 public:
  Result<std::unique_ptr<KvTier>> open(TierConfig config) override {
    return std::unique_ptr<KvTier>(new MemoryTier(store_, config));
  }
  std::optional<std::string> get(const PageKey& key) override { return store_->get(key); }
  void put(const PageKey& key, const std::string& record) override { store_->put(key, record); }
  void erase(const PageKey& key) override { store_->erase(key); }
  int64_t held_bytes() override {
    int64_t bytes = 0;
    for (const LruLedger::Seen& page : store_->by_use()) bytes += page.bytes;
    return bytes;
  }
  void hold() override { store_->hold(); }
  void let_go() override { store_->let_go(); }

 private:
  static std::string fresh_salt() {
    static int worlds = 0;
    return "memory " + std::to_string(++worlds);
  }
  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>(fresh_salt());
};

// Stops at every file that is opened.
class GateOps final : public FileOps {
 public:
  int open(const std::string& path, int flags, mode_t mode) override {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !held_; });
    }
    return FileOps::open(path, flags, mode);
  }
  void set_held(bool held) {
    {
      std::lock_guard lock(mutex_);
      held_ = held;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
};

class FileWorld final : public TierWorld {
 public:
  Result<std::unique_ptr<KvTier>> open(TierConfig config) override {
    config.dir = folder_.path() + "/deep/cache/";
    ATTUNE_ASSIGN_OR_RETURN(std::unique_ptr<FileTier> tier, FileTier::create(config, ops_));
    tier->wait_for_scan();
    return std::unique_ptr<KvTier>(std::move(tier));
  }
  std::optional<std::string> get(const PageKey& key) override {
    std::ifstream in(path(key), std::ios::binary);
    if (!in) return std::nullopt;
    std::ostringstream all;
    all << in.rdbuf();
    return std::move(all).str();
  }
  void put(const PageKey& key, const std::string& record) override {
    std::ofstream(path(key), std::ios::binary) << record;
  }
  void erase(const PageKey& key) override { fs::remove(path(key)); }
  int64_t held_bytes() override {
    int64_t bytes = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path()))
      if (entry.path().extension() == ".page")
        bytes += static_cast<int64_t>((entry.file_size() + 4095) / 4096 * 4096);
    return bytes;
  }
  void hold() override { ops_.set_held(true); }
  void let_go() override { ops_.set_held(false); }

 private:
  std::string path(const PageKey& key) {
    std::string digits;
    for (uint8_t byte : key.bytes) {
      char two[3];
      std::snprintf(two, sizeof two, "%02x", byte);
      digits += two;
    }
    return folder_.path() + "/deep/cache/" + digits.substr(0, 2) + "/" + digits + ".page";
  }
  TestFolder folder_;
  GateOps ops_;
};

}  // namespace

std::unique_ptr<TierWorld> make_memory_world() {
  return std::make_unique<MemoryWorld>();
}
std::unique_ptr<TierWorld> make_file_world() {
  return std::make_unique<FileWorld>();
}

}  // namespace attune::kv::testing
