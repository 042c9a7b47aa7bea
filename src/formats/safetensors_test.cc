#include "formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/test_files.h"

namespace attune::formats {
namespace {

using tensor::DType;
using tensor::Shape;
using ::testing::AllOf;
using ::testing::HasSubstr;

Result<SafetensorsFile> parse(const std::string& bytes) {
  return SafetensorsFile::parse(std::as_bytes(std::span(bytes)), "f.safetensors");
}
std::string refusal(std::string_view header, size_t data_bytes) {
  const std::string bytes = safetensors_bytes(header, data_bytes);
  const Result<SafetensorsFile> file = parse(bytes);
  EXPECT_FALSE(file.ok()) << header;
  return file.status().message();
}

// Padded with spaces as the format's own writer does.
std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
         offsets + "}";
}
std::string header(const std::string& entries) {
  std::string text = "{" + entries + "}";
  return text.append((8 - text.size() % 8) % 8, ' ');
}

TEST(Safetensors, ReadsTensorsAndMetadata) {
  const std::string bytes = safetensors_bytes(
      header(R"("__metadata__":{"format":"pt"},)" + entry("b", "F32", "[2,3]", "[0,24]") + "," +
             entry("a", "BF16", "[]", "[24,26]") + "," + entry("z", "I8", "[0,4]", "[26,26]")),
      26);
  const Result<SafetensorsFile> file = parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  ASSERT_EQ(file->tensors().size(), 3u);
  EXPECT_EQ(file->metadata().at("format"), "pt");
  const auto& b = file->tensors()[0];
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.view.shape, (Shape{2, 3}));
  EXPECT_EQ(b.view.data, bytes.data() + bytes.size() - 26);
  EXPECT_EQ(file->tensors()[1].view.shape, Shape{});
  EXPECT_EQ(file->tensors()[1].view.bytes(), 2);
}

TEST(Safetensors, ReadsWhatTheLibraryWrote) {
  const Result<SafetensorsFile> file = SafetensorsFile::open(golden("dequant.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(file->tensors().size(), 20u);
}

TEST(Safetensors, RefusesBrokenHeaders) {
  EXPECT_THAT(parse("1234567").status().message(), HasSubstr("only 7 bytes"));
  EXPECT_THAT(parse(std::string(8, '\xff')).status().message(),
              HasSubstr("header length at byte 0 is 18446744073709551615"));
  EXPECT_THAT(parse(std::string("\x10\0\0\0\0\0\0\0{}", 10)).status().message(),
              HasSubstr("header length at byte 0 is 16"));
  EXPECT_THAT(refusal("{]", 0), HasSubstr("header at byte 8: JSON:"));
  EXPECT_THAT(refusal("[]", 0), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal(R"({"a":1})", 0), HasSubstr("tensor \"a\": its entry is no object"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"a":1}})", 0), HasSubstr("__metadata__ \"a\""));
  EXPECT_THAT(
      refusal(header(entry("a", "F32", "[1]", "[0,4]") + "," + entry("a", "F32", "[1]", "[4,8]")),
              8),
      HasSubstr("\"a\" appears twice"));
}

TEST(Safetensors, RefusesBrokenFields) {
  const auto one = [](const char* dtype, const char* shape, const char* offsets) {
    return refusal(header(entry("t", dtype, shape, offsets)), 16);
  };
  EXPECT_THAT(one("F4", "[4]", "[0,16]"), AllOf(HasSubstr("tensor \"t\": dtype \"F4\""),
                                                HasSubstr("Supported: F32, F16, BF16")));
  EXPECT_THAT(one("F32", "[-1]", "[0,16]"), HasSubstr("no valid dimension"));
  EXPECT_THAT(one("F32", "[1.5]", "[0,16]"), HasSubstr("no valid dimension"));
  EXPECT_THAT(one("F32", "4", "[0,16]"), HasSubstr("shape is no array"));
  EXPECT_THAT(one("F32", "[1,1,1,1,4]", "[0,16]"), HasSubstr("5 dimensions"));
  EXPECT_THAT(one("F32", "[4294967296,4294967296]", "[0,16]"), HasSubstr("product overflows"));
  EXPECT_THAT(one("F64", "[2305843009213693952]", "[0,16]"), HasSubstr("size in bytes overflows"));
  EXPECT_THAT(one("F32", "[5]", "[0,16]"), HasSubstr("span 16 bytes, float32 [5] needs 20"));
  EXPECT_THAT(one("F32", "[4]", "[16,0]"), HasSubstr("data_offsets is not [begin, end]"));
  EXPECT_THAT(one("F32", "[4]", "[0]"), HasSubstr("data_offsets is not"));
  EXPECT_THAT(one("F32", "[4]", "[-16,0]"), HasSubstr("data_offsets is not"));
  EXPECT_THAT(one("F32", "[2]", "[0,8]"), HasSubstr("8 bytes at byte"));
  EXPECT_THAT(one("F32", "[2]", "[8,16]"), HasSubstr("a gap"));
  EXPECT_THAT(
      refusal(header(entry("a", "F32", "[2]", "[0,8]") + "," + entry("b", "F32", "[3]", "[4,16]")),
              16),
      HasSubstr("tensor \"b\": data_offsets begin at 4 where 8 is due: an overlap"));
  EXPECT_THAT(refusal("{" + entry("aa", "F32", "[1]", "[0,4]") + "}", 4), HasSubstr("not aligned"));
}

TEST(SafetensorsModel, OpensShardsByTheirIndex) {
  const Result<SafetensorsModel> model = SafetensorsModel::open(golden("models/llama"));
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  EXPECT_EQ(model->shards().size(), 4u);
  const tensor::TensorView* head = model->find("lm_head.weight");
  ASSERT_NE(head, nullptr);
  EXPECT_EQ(head->shape, (Shape{48, 16}));
  EXPECT_EQ(head->dtype, DType::kBF16);
  EXPECT_EQ(model->find("none"), nullptr);
}

TEST(SafetensorsModel, OneFileUnderAnyName) {
  const TempFolder folder;
  EXPECT_EQ(SafetensorsModel::open(folder.path()).status().code(), Code::kNotFound);
  const std::string bytes = safetensors_bytes(header(entry("a", "F32", "[1]", "[0,4]")), 4);
  folder.write("weights.safetensors", bytes);
  const Result<SafetensorsModel> model = SafetensorsModel::open(folder.path());
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  EXPECT_NE(model->find("a"), nullptr);
  folder.write("more.safetensors", bytes);
  EXPECT_THAT(SafetensorsModel::open(folder.path()).status().message(),
              HasSubstr("2 other *.safetensors"));
}

TEST(SafetensorsModel, IndexAndShardsMustAgree) {
  const TempFolder folder;
  folder.write("s1.safetensors", safetensors_bytes(header(entry("a", "F32", "[1]", "[0,4]")), 4));
  folder.write("s2.safetensors", safetensors_bytes(header(entry("b", "F32", "[1]", "[0,4]")), 4));
  const auto open = [&](const std::string& map) {
    folder.write("model.safetensors.index.json", "{\"weight_map\":" + map + "}");
    return SafetensorsModel::open(folder.path()).status();
  };
  EXPECT_TRUE(open(R"({"a":"s1.safetensors","b":"s2.safetensors"})").ok());
  EXPECT_THAT(open(R"({"a":"s1.safetensors","c":"s2.safetensors"})").message(),
              HasSubstr("tensor \"c\" is not in \"s2.safetensors\""));
  EXPECT_EQ(open(R"({"a":"s3.safetensors"})").code(), Code::kNotFound);
  EXPECT_THAT(open(R"({"a":"../s1.safetensors"})").message(), HasSubstr("no plain file name"));
  EXPECT_THAT(open(R"({"a":"/etc/passwd"})").message(), HasSubstr("no plain file name"));
  EXPECT_FALSE(open(R"({"a":3})").ok());
  EXPECT_FALSE(open("{}").ok());
  folder.write("s2.safetensors", safetensors_bytes(header(entry("a", "F32", "[1]", "[0,4]")), 4));
  EXPECT_THAT(open(R"({"a":"s1.safetensors","b":"s2.safetensors"})").message(),
              HasSubstr("\"a\" is also in another shard"));
}

TEST(BugJ01, TruncatedShardIsRefused) {
  const std::string name = "model-00002-of-00004.safetensors";
  for (const size_t cut : {size_t{1}, size_t{4096}, size_t{2320}}) {
    const TempFolder folder;
    folder.copy_from(golden("models/llama"));
    const std::string path = folder.path() + "/" + name;
    const size_t size = std::filesystem::file_size(path);
    ASSERT_GT(size, cut);
    std::filesystem::resize_file(path, size - cut);
    const Status status = SafetensorsModel::open(folder.path()).status();
    EXPECT_EQ(status.code(), Code::kDataLoss);
    EXPECT_THAT(status.message(), HasSubstr(name));
    if (cut < 4096)
      EXPECT_THAT(status.message(), HasSubstr(std::to_string(cut) + " are missing"));
    else
      EXPECT_THAT(status.message(), HasSubstr("truncated"));
  }
}

}  // namespace
}  // namespace attune::formats
