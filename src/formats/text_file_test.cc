#include "formats/text_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "formats/test_files.h"

namespace attune::formats {
namespace {

using ::testing::HasSubstr;

TEST(TextFile, ReadsAllOfIt) {
  const TempFolder folder;
  const std::string text = std::string(200'000, 'x') + '\0' + "end";
  const Result<std::string> read = read_text_file(folder.write("f", text), text.size());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, text);
}

TEST(TextFile, TellsWhyNot) {
  const TempFolder folder;
  const auto missing = read_text_file(folder.path() + "/none", 10);
  EXPECT_EQ(missing.status().code(), Code::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr("/none: No such file"));
  const auto a_folder = read_text_file(folder.path(), 10);
  EXPECT_EQ(a_folder.status().code(), Code::kIoError);
  EXPECT_THAT(a_folder.status().message(), HasSubstr("Is a directory"));
}

TEST(TextFile, EndsAtTheLimit) {
  const TempFolder folder;
  EXPECT_TRUE(read_text_file(folder.write("f", "12345"), 5).ok());
  EXPECT_EQ(read_text_file(folder.write("f", "123456"), 5).status().code(), Code::kInvalidArgument);
  const auto endless = read_text_file("/dev/zero", 1 << 20);
  EXPECT_THAT(endless.status().message(), HasSubstr("/dev/zero is larger than 1048576 bytes"));
}

TEST(TextFile, WaitsForAPipe) {
  const TempFolder folder;
  const std::string path = folder.path() + "/pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(path) << "through a pipe"; });
  const auto read = read_text_file(path, 100);
  writer.join();
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, "through a pipe");
}

}  // namespace
}  // namespace attune::formats
