// The folder of a file tier: who makes it, who shares it, and what it says when it cannot be used.
#include "kv/tier/file/file_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "kv/tier/testing/tier_world.h"

namespace attune::kv::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::Each;
using ::testing::HasSubstr;

std::unique_ptr<FileTier> open(const std::string& dir, int64_t budget = 0) {
  auto tier =
      FileTier::create({.dir = dir, .budget_bytes = budget, .threads = 2, .identity = "a model"});
  EXPECT_TRUE(tier.ok()) << tier.status().to_string();
  (*tier)->wait_for_scan();
  return std::move(*tier);
}

int64_t bytes_in(const std::string& dir) {
  int64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(dir))
    if (entry.path().extension() == ".page")
      bytes += static_cast<int64_t>((entry.file_size() + 4095) / 4096 * 4096);
  return bytes;
}

TEST(FileTier, ServersThatStartTogetherAgreeOnTheSalt) {
  for (int round = 0; round < 10; ++round) {
    const TestFolder folder;
    std::vector<std::string> salts(4);
    std::vector<std::thread> servers;
    for (std::string& salt : salts)
      servers.emplace_back([&] { salt = open(folder.path() + "/cache")->info().root_salt; });
    for (std::thread& server : servers) server.join();
    EXPECT_EQ(salts[0].size(), 64u);
    EXPECT_THAT(salts, Each(salts[0]));
  }
}

// While one server writes its salt another one starts and has made its own.
class OvertakenOps final : public FileOps {
 public:
  explicit OvertakenOps(const std::string& dir) : dir_(dir) {}
  ssize_t writev(int file, const iovec* parts, int count) override {
    if (salt_of_the_other.empty()) salt_of_the_other = open_salt();
    return FileOps::writev(file, parts, count);
  }
  std::string salt_of_the_other;

 private:
  std::string open_salt() const { return kv::testing::open(dir_)->info().root_salt; }
  const std::string dir_;
};

TEST(FileTier, ASaltThatIsThereIsNeverReplaced) {
  const TestFolder folder;
  OvertakenOps ops(folder.path());
  const auto tier = FileTier::create({.dir = folder.path()}, ops);
  ASSERT_TRUE(tier.ok()) << tier.status().to_string();
  EXPECT_EQ(ops.salt_of_the_other.size(), 64u);
  EXPECT_EQ((*tier)->info().root_salt, ops.salt_of_the_other);
  EXPECT_EQ(open(folder.path())->info().root_salt, ops.salt_of_the_other);
}

TEST(FileTier, StaleTemporaryFilesGoAndThoseOfTheLivingStay) {
  const TestFolder folder;
  const auto living = open(folder.path());
  const fs::path tmp = folder.path() + "/tmp";
  const std::string instance = fs::directory_iterator(tmp)->path().stem();
  const auto make = [&](const std::string& name) { std::ofstream(tmp / name) << "half a page"; };
  make(instance + ".77");
  make("00000000deadbeef.1");
  make("00000000deadbeef.lock");
  make("00000000feedbeef.5");  // without a lock
  const auto other = open(folder.path());
  EXPECT_TRUE(fs::exists(tmp / (instance + ".77")));
  EXPECT_TRUE(fs::exists(tmp / (instance + ".lock")));
  EXPECT_FALSE(fs::exists(tmp / "00000000deadbeef.1"));
  EXPECT_FALSE(fs::exists(tmp / "00000000deadbeef.lock"));
  EXPECT_FALSE(fs::exists(tmp / "00000000feedbeef.5"));
}

TEST(FileTier, TwoServersKeepToOneBudget) {
  const TestFolder folder;
  constexpr int64_t kBudget = 300'000;
  const auto one = open(folder.path(), kBudget), two = open(folder.path(), kBudget);
  auto ours = make_pages(14, one->info().root_salt, 1, 1, 19'000);
  auto theirs = make_pages(14, one->info().root_salt, 2, 1, 19'000);
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_EQ(write_one(*one, ours[i]), TierResult::kOk);
    EXPECT_EQ(write_one(*two, theirs[i]), TierResult::kOk);
  }
  one->wait_for_scan();
  two->wait_for_scan();
  EXPECT_LE(bytes_in(folder.path()), kBudget + 2 * kBudget / 16 + 2 * 24'000);  // between two looks
  one->rescan();
  one->wait_for_scan();
  EXPECT_LE(bytes_in(folder.path()), kBudget);
  EXPECT_EQ(one->stats().bytes, bytes_in(folder.path()));
  // The newest of both are there.
  EXPECT_THAT(read_all(*one, {ours.back(), theirs.back()}), Each(TierResult::kOk));
}

TEST(FileTier, FilesThatVanishOrAppearAreNoSurprise) {
  const TestFolder folder;
  const auto tier = open(folder.path());
  auto pages = make_pages(6, tier->info().root_salt);
  write_all(*tier, pages);
  const std::string path = tier->page_path(pages[2].identity.key);
  fs::rename(path, folder.path() + "/elsewhere");
  EXPECT_THAT(read_all(*tier, {pages[2]}), Each(TierResult::kMiss));
  EXPECT_EQ(tier->stats().pages, 5);
  fs::rename(folder.path() + "/elsewhere", path);
  std::ofstream(fs::path(path).parent_path() / "notes.txt") << "not ours";
  EXPECT_THAT(read_all(*tier, {pages[2]}), Each(TierResult::kOk));
  EXPECT_EQ(tier->stats().pages, 6);
  fs::remove(tier->page_path(pages[0].identity.key));
  tier->rescan();
  tier->wait_for_scan();
  EXPECT_EQ(tier->stats().pages, 5);
  EXPECT_TRUE(tier->clear().ok());
  EXPECT_TRUE(fs::exists(fs::path(path).parent_path() / "notes.txt"));
}

// The gauge went on to show the pages of a folder that somebody had deleted.
TEST(FileTier, AFolderDeletedUnderTheServerHasNoPages) {
  const TestFolder folder;
  const auto tier = open(folder.path() + "/cache");
  auto pages = make_pages(6, tier->info().root_salt);
  EXPECT_THAT(write_all(*tier, pages), Each(TierResult::kOk));
  EXPECT_EQ(tier->stats().pages, 6);
  fs::remove_all(folder.path() + "/cache");
  EXPECT_EQ(write_one(*tier, pages[0]), TierResult::kFailed);
  tier->wait_for_scan();
  EXPECT_EQ(tier->stats().pages, 0);
  EXPECT_EQ(tier->stats().bytes, 0);
  EXPECT_FALSE(fs::exists(folder.path() + "/cache"));  // it may be a disk that is not there now
}

TEST(FileTier, AFolderThatBecameAFileHasNoPages) {
  const TestFolder folder;
  const auto tier = open(folder.path() + "/cache");
  auto pages = make_pages(6, tier->info().root_salt);
  EXPECT_THAT(write_all(*tier, pages), Each(TierResult::kOk));
  fs::remove_all(folder.path() + "/cache");
  std::ofstream(folder.path() + "/cache") << "a file";
  EXPECT_EQ(write_one(*tier, pages[0]), TierResult::kFailed);
  tier->wait_for_scan();
  EXPECT_EQ(tier->stats().pages, 0);
  EXPECT_TRUE(tier->clear().ok());
}

// Junk with a page's name counted as a page until somebody asked for it.
TEST(FileTier, WhatOnlyHasAPagesNameDoesNotCount) {
  const TestFolder folder;
  const auto tier = open(folder.path());
  auto pages = make_pages(3, tier->info().root_salt);
  EXPECT_EQ(write_one(*tier, pages[0]), TierResult::kOk);
  fs::create_directory(tier->page_path(pages[1].identity.key));
  std::ofstream(tier->page_path(pages[2].identity.key)) << "junk";
  tier->rescan();
  tier->wait_for_scan();
  EXPECT_EQ(tier->stats().pages, 1);
  EXPECT_THAT(read_all(*tier, {pages[0]}), Each(TierResult::kOk));
}

TEST(FileTier, AFolderAboveItsBudgetIsTrimmedAtTheStart) {
  const TestFolder folder;
  {
    const auto tier = open(folder.path());
    auto pages = make_pages(10, tier->info().root_salt, 0, 1, 19'000);
    write_all(*tier, pages);
  }
  const auto tier = open(folder.path(), 100'000);
  EXPECT_LE(bytes_in(folder.path()), 100'000);
  EXPECT_EQ(tier->stats().bytes, bytes_in(folder.path()));
  EXPECT_EQ(tier->stats().evicted, 6u);
}

TEST(FileTier, WhatCannotBeUsedIsRefusedWithASentence) {
  const TestFolder folder;
  std::ofstream(folder.path() + "/file") << "x";
  for (const std::string& dir : {folder.path() + "/file", folder.path() + "/file/below"}) {
    const auto tier = FileTier::create({.dir = dir});
    ASSERT_FALSE(tier.ok());
    EXPECT_EQ(tier.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(tier.status().message(), HasSubstr(dir));
    EXPECT_THAT(tier.status().message(), HasSubstr("name a folder"));
  }
  fs::create_directory(folder.path() + "/piped");
  ASSERT_EQ(::mkfifo((folder.path() + "/piped/root_salt").c_str(), 0600), 0);
  const auto piped = FileTier::create({.dir = folder.path() + "/piped"});
  ASSERT_FALSE(piped.ok());
  EXPECT_THAT(piped.status().message(), HasSubstr("piped/root_salt"));
  const auto proc = FileTier::create({.dir = "/proc/attune"});
  ASSERT_FALSE(proc.ok());
  EXPECT_THAT(proc.status().message(), HasSubstr("/proc/attune"));

  open(folder.path() + "/cache");
  std::ofstream(folder.path() + "/cache/root_salt") << "0123";
  const auto damaged = FileTier::create({.dir = folder.path() + "/cache"});
  ASSERT_FALSE(damaged.ok());
  EXPECT_EQ(damaged.status().code(), Code::kDataLoss);
  EXPECT_THAT(damaged.status().message(), HasSubstr("empty the folder"));
}

TEST(FileTier, TheFolderUnlessOneIsNamed) {
  const auto with = [](const char* cache, const char* home) {
    const auto set = [](const char* name, const char* value) {
      value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
    };
    const char* old_home = std::getenv("HOME");
    const char* old_cache = std::getenv("XDG_CACHE_HOME");
    const std::string was_home = old_home ? old_home : "", was_cache = old_cache ? old_cache : "";
    set("XDG_CACHE_HOME", cache);
    set("HOME", home);
    const std::string dir = default_storage_dir();
    set("HOME", old_home ? was_home.c_str() : nullptr);
    set("XDG_CACHE_HOME", old_cache ? was_cache.c_str() : nullptr);
    return dir;
  };
  EXPECT_EQ(with("/cache", "/home/me"), "/cache/attune/hicache");
  EXPECT_EQ(with(nullptr, "/home/me"), "/home/me/.cache/attune/hicache");
  EXPECT_EQ(with("", "/home/me"), "/home/me/.cache/attune/hicache");
  EXPECT_EQ(with(nullptr, nullptr), "/var/tmp/attune-hicache");
}

}  // namespace
}  // namespace attune::kv::testing
