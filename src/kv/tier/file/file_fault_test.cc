// What the file tier promises when its calls fail, and when its process dies.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "base/log.h"
#include "kv/tier/file/file_tier.h"
#include "kv/tier/testing/faulty_ops.h"
#include "kv/tier/testing/tier_world.h"

namespace attune::kv::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::Each;
using Break = FaultyOps::Break;

Result<std::unique_ptr<FileTier>> try_open(const std::string& dir, FileOps& ops,
                                           int64_t budget = 0) {
  auto tier = FileTier::create(
      {.dir = dir, .budget_bytes = budget, .threads = 1, .identity = "a model"}, ops);
  if (tier.ok()) (*tier)->wait_for_scan();
  return tier;
}

std::unique_ptr<FileTier> open(const std::string& dir, FileOps& ops = system_file_ops()) {
  auto tier = try_open(dir, ops);
  EXPECT_TRUE(tier.ok()) << tier.status().to_string();
  return std::move(*tier);
}

size_t files_in(const std::string& dir) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(dir), fs::directory_iterator()));
}

// What the tier did to its files, in order.
class LoggedOps final : public FileOps {
 public:
  int open(const std::string& path, int flags, mode_t mode) override {
    const int file = FileOps::open(path, flags, mode);
    std::lock_guard lock(mutex_);
    paths_[file] = path;
    return file;
  }
  ssize_t writev(int file, const iovec* parts, int count) override {
    note("write", file);
    return FileOps::writev(file, parts, count);
  }
  int fsync(int file) override {
    const int result = FileOps::fsync(file);
    note("sync", file);
    return result;
  }
  int rename(const std::string& from, const std::string& to) override {
    {
      std::lock_guard lock(mutex_);
      log_.push_back("sync of " + to + " before its rename is " +
                     (log_.back() == "sync " + from ? "right" : "missing"));
      log_.push_back("rename " + to);
    }
    return FileOps::rename(from, to);
  }
  std::vector<std::string> log() {
    std::lock_guard lock(mutex_);
    return log_;
  }

 private:
  void note(const char* what, int file) {
    std::lock_guard lock(mutex_);
    log_.push_back(std::string(what) + " " + paths_[file]);
  }
  std::mutex mutex_;
  std::map<int, std::string> paths_;
  std::vector<std::string> log_;
};

// Progress was published before the data was in place.
TEST(FileFaults, BugD06AcknowledgedAfterWriteSyncRenameAndSyncOfTheFolder) {
  const TestFolder folder;
  LoggedOps ops;
  const auto tier = open(folder.path(), ops);
  auto pages = make_pages(3, tier->info().root_salt);
  for (TestPage& page : pages) {
    std::vector<std::string> log;
    Outcomes outcome;
    tier->write(page.identity, page.runs(), [&, done = outcome.next()](TierResult result) {
      log = ops.log();
      done(result);
    });
    EXPECT_THAT(outcome.wait(), Each(TierResult::kOk));
    const std::string path = tier->page_path(page.identity.key);
    ASSERT_GE(log.size(), 5u);
    const auto end = log.end();
    EXPECT_THAT(end[-5], ::testing::StartsWith("write " + folder.path() + "/tmp/"));
    EXPECT_THAT(end[-4], ::testing::StartsWith("sync " + folder.path() + "/tmp/"));
    EXPECT_EQ(end[-3], "sync of " + path + " before its rename is right");
    EXPECT_EQ(end[-2], "rename " + path);
    EXPECT_EQ(end[-1], "sync " + fs::path(path).parent_path().string());
  }
}

// A page whose bytes could not all be written stayed visible, and later hits served garbage.
TEST(FileFaults, BugD19AFailedWriteIsNeverSeen) {
  const TestFolder folder;
  for (auto [how, error, result] : {std::tuple{Break::kOnce, ENOSPC, TierResult::kFull},
                                    std::tuple{Break::kOnce, EDQUOT, TierResult::kFull},
                                    std::tuple{Break::kOnce, EIO, TierResult::kFailed}}) {
    FaultyOps ops;
    const auto tier = open(folder.path(), ops);
    auto pages = make_pages(1, tier->info().root_salt);
    int64_t failed = 0;
    for (int64_t call = 0; call < 100; ++call) {
      ops.break_at(call, how, error);
      const TierResult got = write_one(*tier, pages[0]);
      const int64_t used = ops.calls();
      ops.break_at(-1, Break::kNothing);
      if (got == TierResult::kOk) {
        EXPECT_THAT(read_all(*tier, pages), Each(TierResult::kOk));
        EXPECT_TRUE(tier->clear().ok());
        if (used <= call) break;  // there was no such call
        continue;
      }
      ++failed;
      EXPECT_TRUE(got == result || got == TierResult::kFailed) << call;
      EXPECT_EQ(match_now(*tier, keys_of(pages)), 0) << call;
      EXPECT_THAT(read_all(*tier, pages), Each(TierResult::kMiss)) << call;
      EXPECT_EQ(files_in(folder.path() + "/tmp"), 1u) << call;  // the tier's lock
      EXPECT_EQ(tier->stats().pages, 0) << call;
    }
    const TierStats stats = tier->stats();
    EXPECT_GE(failed, 6);  // open, write, sync, close, rename, sync of the folder
    EXPECT_EQ(stats.failed + stats.full, static_cast<uint64_t>(failed));
    EXPECT_GE(stats.full, result == TierResult::kFull ? 3u : 0u);
    EXPECT_EQ(stats.corrupt, 0u);
  }
}

TEST(FileFaults, BugD19ShortWritesAndReadsGoOn) {
  const TestFolder folder;
  FaultyOps ops;
  const auto tier = open(folder.path(), ops);
  auto pages = make_pages(1, tier->info().root_salt, 0, 1500, 100);
  int64_t calls = 1;
  for (int64_t call = 0; call < calls; ++call) {
    ops.break_at(call, Break::kShort);
    EXPECT_EQ(write_one(*tier, pages[0]), TierResult::kOk);
    calls = ops.calls();
    ops.break_at(-1, Break::kNothing);
    EXPECT_THAT(read_all(*tier, pages), Each(TierResult::kOk));
  }
  calls = 1;
  for (int64_t call = 0; call < calls; ++call) {
    ops.break_at(call, Break::kShort);
    EXPECT_THAT(read_all(*tier, pages), Each(TierResult::kOk));
    calls = ops.calls();
  }
  EXPECT_GT(calls, 4);
}

TEST(FileFaults, BugD19AKillBetweenWriteAndRenameLeavesNothing) {
  const TestFolder folder;
  FaultyOps ops;
  auto tier = open(folder.path(), ops);
  auto pages = make_pages(2, tier->info().root_salt);
  EXPECT_EQ(write_one(*tier, pages[0]), TierResult::kOk);
  ops.break_at(5, Break::kFromThere);  // open, write, time, sync, close: the rename
  EXPECT_EQ(write_one(*tier, pages[1]), TierResult::kFailed);
  tier.reset();
  EXPECT_EQ(files_in(folder.path() + "/tmp"), 2u);  // its lock and a whole page
  const auto after = open(folder.path());
  EXPECT_THAT(read_all(*after, pages), ::testing::ElementsAre(TierResult::kOk, TierResult::kMiss));
  EXPECT_EQ(files_in(folder.path() + "/tmp"), 1u);
}

// A transfer took so long that the region it read was another object's at the end.
TEST(FileFaults, BugD23ContentThatChangesInTheMiddleOfAReadIsNoHit) {
  const TestFolder folder;
  FaultyOps ops;
  const auto tier = open(folder.path(), ops);
  auto pages = make_pages(2, tier->info().root_salt, 0, 1500, 100);  // takes two reads
  ASSERT_THAT(write_all(*tier, pages), Each(TierResult::kOk));
  const auto swap = [&, swapped = false]() mutable {
    if (std::exchange(swapped, true)) return;
    std::ifstream in(tier->page_path(pages[1].identity.key), std::ios::binary);
    const std::string other{std::istreambuf_iterator<char>(in), {}};
    std::fstream out(tier->page_path(pages[0].identity.key),
                     std::ios::in | std::ios::out | std::ios::binary);
    out << other;
  };
  ops.after_read = swap;
  TestPage got = pages[0].blank();
  EXPECT_EQ(read_one(*tier, got), TierResult::kCorrupt);
  EXPECT_EQ(tier->stats().corrupt, 1u);
  // A new page in the place of the old one is another file: the read gives the old one.
  ops.after_read = nullptr;
  ASSERT_EQ(write_one(*tier, pages[0]), TierResult::kOk);
  ops.after_read = [&, replaced = false]() mutable {
    if (std::exchange(replaced, true)) return;
    fs::remove(tier->page_path(pages[0].identity.key));
  };
  EXPECT_EQ(read_one(*tier, got), TierResult::kOk);
  EXPECT_TRUE(got == pages[0]);
  ops.after_read = nullptr;
  EXPECT_EQ(read_one(*tier, got), TierResult::kMiss);
}

// One server's life: it finds pages, writes, reads and evicts. `acknowledged`: pages that
// a later server must find.
void live(const std::string& dir, FaultyOps& ops, std::vector<TestPage>& pages,
          std::vector<bool>& acknowledged) {
  auto tier = try_open(dir, ops, 70'000);
  if (!tier.ok()) {
    EXPECT_NE(tier.status().message().find(dir), std::string::npos) << tier.status().to_string();
    return;
  }
  for (size_t i : {2, 3, 1}) acknowledged[i] = write_one(**tier, pages[i]) == TierResult::kOk;
  for (TierResult result : read_all(**tier, pages)) EXPECT_NE(result, TierResult::kCorrupt);
  match_now(**tier, keys_of(pages));
  // What comes next needs room.
  acknowledged[0] = acknowledged[1] = acknowledged[2] = acknowledged[3] = false;
  for (size_t i : {4, 5, 6}) acknowledged[i] = write_one(**tier, pages[i]) == TierResult::kOk;
}

struct Sweep {
  const char* name;
  FaultyOps::Calls calls;
  Break how;
  int error;
};

class FaultSweep : public ::testing::TestWithParam<Sweep> {
 protected:
  // A life whose call number `call` breaks, then a server that looks at what is left.
  void break_one(int64_t call, std::vector<TestPage>& pages) {
    {
      const auto tier = open(folder_.path());
      ASSERT_TRUE(tier->clear().ok());
      ASSERT_EQ(write_one(*tier, pages[0]), TierResult::kOk);
      ASSERT_EQ(write_one(*tier, pages[1]), TierResult::kOk);
    }
    std::vector<bool> acknowledged = {true, true, false, false, false, false, false};
    ops_.break_at(call, GetParam().how, GetParam().error, GetParam().calls);
    live(folder_.path(), ops_, pages, acknowledged);
    const auto after = open(folder_.path());
    const auto results = read_all(*after, pages);
    for (size_t i = 0; i < pages.size(); ++i) {
      ASSERT_TRUE(results[i] == TierResult::kOk ||
                  (results[i] == TierResult::kMiss && !acknowledged[i]))
          << "page " << i;
      acknowledged_ += acknowledged[i];
    }
    ASSERT_EQ(files_in(folder_.path() + "/tmp"), 1u);
    ASSERT_EQ(static_cast<size_t>(after->stats().pages), count_of(TierResult::kOk, results));
  }

  const TestFolder folder_;
  FaultyOps ops_;
  int64_t acknowledged_ = 0;
};

// Breaks the first, the second, ... the last call of a server's life.
TEST_P(FaultSweep, NothingAcknowledgedIsLostAndNothingTornIsServed) {
  auto pages = make_pages(7, open(folder_.path())->info().root_salt, 0, 2, 5'000);
  const bool folders = GetParam().calls == FaultyOps::Calls::kOfFolders;
  base::set_log_level(base::LogLevel::kError);
  ops_.break_at(-1, Break::kNothing, 0, GetParam().calls);
  std::vector<bool> acknowledged(pages.size());
  live(folder_.path(), ops_, pages, acknowledged);
  const int64_t calls = ops_.calls();
  EXPECT_GT(calls, folders ? 500 : 80);
  int64_t broken = 0;
  for (int64_t call = 0; call < calls && !HasFatalFailure(); call += folders ? 31 : 1, ++broken) {
    SCOPED_TRACE("call " + std::to_string(call));
    break_one(call, pages);
  }
  base::set_log_level(base::LogLevel::kInfo);
  EXPECT_GT(acknowledged_, broken / 2);  // it was not all in vain
}

using Calls = FaultyOps::Calls;
INSTANTIATE_TEST_SUITE_P(
    FileFaults, FaultSweep,
    ::testing::Values(Sweep{"EIO", Calls::kOfFiles, Break::kOnce, EIO},
                      Sweep{"ENOSPC", Calls::kOfFiles, Break::kOnce, ENOSPC},
                      Sweep{"Short", Calls::kOfFiles, Break::kShort, 0},
                      Sweep{"Killed", Calls::kOfFiles, Break::kFromThere, EIO},
                      Sweep{"FoldersEIO", Calls::kOfFolders, Break::kOnce, EIO},
                      Sweep{"FoldersKilled", Calls::kOfFolders, Break::kFromThere, EIO}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(FileFaults, WhatWasAcknowledgedBeforeAKillIsThere) {
  const TestFolder folder;
  const std::string root_salt = open(folder.path())->info().root_salt;
  std::mt19937 random(9);
  int first = 0;
  for (int round = 0; round < 20; ++round) {
    const std::vector<int> acknowledged = write_until_killed(
        {.dir = folder.path(), .identity = "a model"}, first, 1 + random() % 120);
    ASSERT_FALSE(acknowledged.empty());

    const auto tier = open(folder.path());
    const int last = *std::max_element(acknowledged.begin(), acknowledged.end()) + 60;
    const auto results = read_all(*tier, numbered_pages(first, last - first, root_salt));
    for (int i : acknowledged) ASSERT_EQ(results[static_cast<size_t>(i - first)], TierResult::kOk);
    ASSERT_EQ(tier->stats().corrupt, 0u);
    ASSERT_EQ(files_in(folder.path() + "/tmp"), 1u);
    ASSERT_TRUE(tier->clear().ok());
    first = last;
  }
}

}  // namespace
}  // namespace attune::kv::testing
