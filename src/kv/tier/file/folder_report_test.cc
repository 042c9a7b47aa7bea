#include "kv/tier/file/folder_report.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "kv/tier/record.h"
#include "kv/tier/testing/tier_world.h"

namespace attune::kv {
namespace {

namespace fs = std::filesystem;

class FolderReportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "attune_report_XXXXXX").string();
    dir_ = ::mkdtemp(name.data());
  }
  void TearDown() override { fs::remove_all(dir_); }

  void store(const std::string& identity, int pages, int chain) {
    auto tier = make_tier({.dir = dir_, .identity = identity});
    ASSERT_TRUE(tier.ok()) << tier.status().to_string();
    auto made = testing::make_pages(pages, (*tier)->info().root_salt, chain);
    for (TierResult result : testing::write_all(**tier, made)) ASSERT_EQ(result, TierResult::kOk);
  }
  FolderReport report(bool verify = true) {
    auto found = report_folder(dir_, verify);
    EXPECT_TRUE(found.ok()) << found.status().to_string();
    return found.ok() ? *found : FolderReport();
  }
  std::vector<std::string> files() {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(dir_))
      if (entry.path().extension() == ".page") found.push_back(entry.path().string());
    return found;
  }
  void change(const std::string& file, int64_t at) {
    std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekg(at);
    const char was = static_cast<char>(out.get());
    out.seekp(at);
    out.put(static_cast<char>(was ^ 1));
  }

  std::string dir_;
};

TEST_F(FolderReportTest, CountsByFingerprint) {
  store("model a", 3, 0);
  store("model b", 2, 1);
  for (bool verify : {false, true}) {
    const FolderReport found = report(verify);
    ASSERT_EQ(found.groups.size(), 2u);
    EXPECT_TRUE(found.damaged.empty());
    const auto& a = found.groups.at(record_fingerprint("model a"));
    EXPECT_EQ(a.pages, 3);
    EXPECT_EQ(found.groups.at(record_fingerprint("model b")).pages, 2);
    EXPECT_GT(a.tokens, 0);
    EXPECT_GT(a.bytes, 3 * 3000);
    EXPECT_GE(a.oldest_seconds, a.newest_seconds);
    EXPECT_LT(a.oldest_seconds, 60);
  }
}

TEST_F(FolderReportTest, DamageIsFound) {
  store("model", 4, 0);
  const auto pages = files();
  ASSERT_EQ(pages.size(), 4u);
  change(pages[0], 0);                                                  // the magic
  change(pages[1], static_cast<int64_t>(fs::file_size(pages[1])) - 1);  // the payload's end
  fs::resize_file(pages[2], fs::file_size(pages[2]) - 1);
  EXPECT_EQ(report(false).damaged.size(), 2u);  // the payload is not read
  const FolderReport found = report(true);
  EXPECT_EQ(found.damaged.size(), 3u);
  EXPECT_EQ(found.groups.at(record_fingerprint("model")).pages, 1);
}

// BugD20: a whole page under another's name.
TEST_F(FolderReportTest, BugD20SwappedFilesAreDamage) {
  store("model", 2, 0);
  const auto pages = files();
  fs::rename(pages[0], dir_ + "/other");
  fs::rename(pages[1], pages[0]);
  fs::rename(dir_ + "/other", pages[1]);
  EXPECT_EQ(report(false).damaged.size(), 2u);
}

// Every cut and every changed byte of a head: no crash, and never taken for whole.
TEST_F(FolderReportTest, AnyHeadIsReadSafely) {
  store("model", 1, 0);
  std::ifstream in(files()[0], std::ios::binary);
  const std::string record{std::istreambuf_iterator<char>(in), {}};
  const auto head = read_record_head(record);
  ASSERT_TRUE(head);
  for (size_t size = 0; size < static_cast<size_t>(head->header_bytes); ++size)
    EXPECT_FALSE(read_record_head(std::string_view(record).substr(0, size))) << size;
  for (size_t at = 0; at < static_cast<size_t>(head->header_bytes); ++at) {
    std::string bad = record;
    bad[at] = static_cast<char>(bad[at] ^ 0xff);
    const auto read = read_record_head(bad);
    EXPECT_LE(read ? read->header_bytes : 0, int64_t(bad.size()));
  }
}

TEST_F(FolderReportTest, WhatIsNoStorageIsSaid) {
  EXPECT_EQ(report_folder(dir_ + "/none", false).status().code(), Code::kNotFound);
  EXPECT_NE(report_folder(dir_, false).status().message().find("no root_salt"), std::string::npos);
  EXPECT_TRUE(fs::is_empty(dir_));  // looking makes nothing
}

TEST_F(FolderReportTest, LeftoversAreCounted) {
  store("model", 1, 0);
  std::ofstream(dir_ + "/tmp/left.7") << "half a page";
  EXPECT_EQ(report().unfinished, 1);
}

}  // namespace
}  // namespace attune::kv
