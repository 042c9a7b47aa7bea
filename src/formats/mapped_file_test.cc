#include "formats/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <utility>

#include "formats/test_files.h"

namespace attune::formats {
namespace {

using ::testing::HasSubstr;

TEST(MappedFile, MapsAndMoves) {
  const TempFolder folder;
  const std::string path = folder.write("f", "hello");
  Result<MappedFile> file = MappedFile::open(path);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->size(), 5u);
  EXPECT_EQ(char(file->data()[4]), 'o');
  MappedFile other = std::move(*file);
  EXPECT_EQ(file->size(), 0u);
  EXPECT_EQ(file->data(), nullptr);
  EXPECT_EQ(char(other.data()[0]), 'h');
  EXPECT_EQ(other.path(), path);
  other = MappedFile();
  EXPECT_EQ(other.data(), nullptr);
}

TEST(MappedFile, EmptyFile) {
  const TempFolder folder;
  const Result<MappedFile> file = MappedFile::open(folder.write("f", ""));
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->bytes().empty());
  EXPECT_TRUE(file->advise(MappedFile::Advice::kWillNeed, 0, 10).ok());
  EXPECT_TRUE(file->drop(0, 10).ok());
}

TEST(MappedFile, RefusesWhatIsNoRegularFile) {
  const TempFolder folder;
  EXPECT_EQ(MappedFile::open(folder.path() + "/none").status().code(), Code::kNotFound);
  EXPECT_EQ(MappedFile::open(folder.write("f", "x") + "/below").status().code(), Code::kNotFound);
  EXPECT_THAT(MappedFile::open(folder.path()).status().message(), HasSubstr("not a regular file"));
  const std::string fifo = folder.path() + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(MappedFile::open(fifo).status().message(), HasSubstr("not a regular file"));
  EXPECT_EQ(MappedFile::open("/dev/zero").status().code(), Code::kIoError);
}

TEST(MappedFile, DroppedPagesReadTheSame) {
  const TempFolder folder;
  std::string text(100'000, 'a');
  for (size_t i = 0; i < text.size(); ++i) text[i] = char('a' + i % 23);
  const Result<MappedFile> file = MappedFile::open(folder.write("f", text));
  ASSERT_TRUE(file.ok());
  for (const auto& [offset, length] : {std::pair<uint64_t, uint64_t>{0, 100'000},
                                       {5000, 20'000},
                                       {1, 10},
                                       {99'999, 1},
                                       {0, UINT64_MAX},
                                       {200'000, 5}}) {
    EXPECT_TRUE(file->advise(MappedFile::Advice::kSequential, offset, length).ok());
    EXPECT_TRUE(file->drop(offset, length).ok());
    EXPECT_EQ(std::memcmp(file->data(), text.data(), text.size()), 0);
  }
}

TEST(MappedFile, ShrunkFileIsNoticed) {
  const TempFolder folder;
  const std::string path = folder.write("f", std::string(10'000, 'x'));
  const Result<MappedFile> file = MappedFile::open(path);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->check_not_shrunk().ok());
  std::filesystem::resize_file(path, 9'999);
  EXPECT_EQ(file->check_not_shrunk().code(), Code::kDataLoss);
  EXPECT_THAT(file->check_not_shrunk().message(), HasSubstr("from 10000 to 9999 bytes"));
}

}  // namespace
}  // namespace attune::formats
