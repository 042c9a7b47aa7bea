#include "formats/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "formats/test_files.h"

namespace attune::formats {
namespace {

using tensor::DType;
using tensor::Shape;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Written by the gguf package (tools/golden_formats_models.py).
TEST(Gguf, ReadsEveryValueType) {
  const Result<GgufFile> opened = GgufFile::open(golden("models/all_types.gguf"));
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  const GgufFile& g = *opened;
  EXPECT_EQ(g.version(), 3u);
  EXPECT_EQ(*g.get_string("general.architecture"), "llama");
  EXPECT_EQ(*g.get_int("t.u8"), 200);
  EXPECT_EQ(*g.get_int("t.i8"), -100);
  EXPECT_EQ(*g.get_int("t.u16"), 60000);
  EXPECT_EQ(*g.get_int("t.i16"), -30000);
  EXPECT_EQ(*g.get_int("t.u32"), 4000000000);
  EXPECT_EQ(*g.get_int("t.i32"), -2000000000);
  EXPECT_EQ(std::get<uint64_t>(g.find("t.u64")->value), (uint64_t{1} << 63) + 5);
  EXPECT_EQ(*g.get_int("t.i64"), -(int64_t{1} << 62));
  EXPECT_EQ(*g.get_double("t.f32"), 1.5);
  EXPECT_EQ(*g.get_double("t.f64"), 0.1);
  EXPECT_EQ(*g.get_double("t.i8"), -100.0);
  EXPECT_TRUE(*g.get_bool("t.bool"));
  EXPECT_EQ(*g.get_string("t.string"), "héllo\n");
  const auto strings = g.get_strings("t.strings");
  ASSERT_TRUE(strings.ok());
  EXPECT_THAT(*strings, ElementsAre("a", "", "日本", std::string(40, 'x')));
  EXPECT_THAT(*g.get_ints("t.ints"), ElementsAre(1, -2, 2147483647));
  EXPECT_THAT(*g.get_ints("t.bools"), ElementsAre(1, 0, 1));
  EXPECT_THAT(*g.get_floats("t.floats"), ElementsAre(0.5f, -1.25f));
}

TEST(Gguf, TypedAccessSaysWhatIsWrong) {
  const Result<GgufFile> g = GgufFile::open(golden("models/all_types.gguf"));
  ASSERT_TRUE(g.ok());
  EXPECT_EQ(g->get_int("none").status().code(), Code::kNotFound);
  EXPECT_THAT(g->get_int("none").status().message(), HasSubstr("no none"));
  EXPECT_THAT(g->get_int("t.string").status().message(),
              HasSubstr("t.string is a string, expected an integer"));
  EXPECT_FALSE(g->get_int("t.u64").ok());
  EXPECT_FALSE(g->get_int("t.f32").ok());
  EXPECT_FALSE(g->get_double("t.u64").ok());
  EXPECT_FALSE(g->get_bool("t.u8").ok());
  EXPECT_FALSE(g->get_string("t.strings").ok());
  EXPECT_THAT(g->get_strings("t.ints").status().message(), HasSubstr("is an array of i32"));
  EXPECT_FALSE(g->get_ints("t.strings").ok());
  EXPECT_FALSE(g->get_ints("t.floats").ok());
  EXPECT_FALSE(g->get_floats("t.ints").ok());
  EXPECT_EQ(*g->get_int_or("none", 7), 7);
  EXPECT_EQ(*g->get_bool_or("none", true), true);
  EXPECT_EQ(*g->get_double_or("none", 0.5), 0.5);
  EXPECT_EQ(*g->get_string_or("none", "x"), "x");
  EXPECT_FALSE(g->get_int_or("t.string", 7).ok());
}

TEST(Gguf, ReadsEveryTensorType) {
  const Result<GgufFile> g = GgufFile::open(golden("models/all_types.gguf"));
  ASSERT_TRUE(g.ok());
  const std::pair<const char*, DType> kTypes[] = {{"f32", DType::kF32},   {"bf16", DType::kBF16},
                                                  {"q8_0", DType::kQ8_0}, {"q4_0", DType::kQ4_0},
                                                  {"q4_1", DType::kQ4_1}, {"q5_0", DType::kQ5_0},
                                                  {"q5_1", DType::kQ5_1}, {"q4_k", DType::kQ4_K},
                                                  {"q5_k", DType::kQ5_K}, {"q6_k", DType::kQ6_K}};
  for (const auto& [name, dtype] : kTypes) {
    const GgufTensor* tensor = g->find_tensor(name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(tensor->view.dtype, dtype);
    EXPECT_EQ(tensor->view.shape, (Shape{2, 256})) << name;
    EXPECT_EQ(tensor->view.data, g->file().data() + tensor->offset);
  }
  for (const auto& [name, dtype] : {std::pair{"int8", DType::kI8},
                                    {"int16", DType::kI16},
                                    {"int32", DType::kI32},
                                    {"int64", DType::kI64},
                                    {"float64", DType::kF64}}) {
    const GgufTensor* tensor = g->find_tensor(name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(tensor->view.dtype, dtype);
    EXPECT_EQ(tensor->view.shape, (Shape{2, 3}));
  }
  EXPECT_EQ(g->find_tensor("f16.rank3")->view.shape, (Shape{2, 4, 64}));
  EXPECT_EQ(static_cast<const int32_t*>(g->find_tensor("int32")->view.data)[5], 5);
  EXPECT_EQ(g->find_tensor("none"), nullptr);
}

TEST(Gguf, MovedFileKeepsItsTables) {
  Result<GgufFile> opened = GgufFile::open(golden("models/llama.gguf"));
  ASSERT_TRUE(opened.ok());
  const GgufFile g = std::move(*opened);
  EXPECT_EQ(*g.get_int("llama.embedding_length"), 32);
  EXPECT_EQ(g.find_tensor("blk.0.ffn_down.weight")->view.shape, (Shape{32, 64}));
}

TEST(Gguf, Version2AndOwnAlignment) {
  GgufBytes file(1, 1, 2);
  file.u32("general.alignment", 64).tensor("a", {4}, 0, 64).data(64 + 16, 64);
  const Result<GgufFile> g = GgufFile::parse(file.span(), "f");
  ASSERT_TRUE(g.ok()) << g.status().to_string();
  EXPECT_EQ(g->alignment(), 64u);
  EXPECT_EQ(g->find_tensor("a")->offset % 64, 0u);
}

TEST(Gguf, VocabularyOnlyFileNeedsNoDataSection) {
  GgufBytes file(0, 1);
  file.text("general.architecture", "llama");
  EXPECT_TRUE(GgufFile::parse(file.span(), "f").ok());
}

}  // namespace
}  // namespace attune::formats
