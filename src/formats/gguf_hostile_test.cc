// Files that are broken or made to harm: refused with the offset and the field, at no cost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <new>
#include <random>

#include "formats/gguf.h"
#include "formats/test_files.h"

namespace {
thread_local size_t allocated_bytes = 0;  // by this thread, freed or not
}  // namespace

// Not inlined: GCC would take malloc and free for a mismatched pair.
[[gnu::noinline]] void* operator new(size_t size) {
  allocated_bytes += size;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept {
  std::free(p);
}

namespace attune::formats {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal(const GgufBytes& file) {
  const size_t before = allocated_bytes;
  const Result<GgufFile> g = GgufFile::parse(file.span(), "f.gguf");
  EXPECT_FALSE(g.ok());
  // Tables cost up to some 20 bytes a byte of header, messages a little more.
  EXPECT_LT(allocated_bytes - before, 32 * file.bytes.size() + 8192);
  return g.ok() ? "" : g.status().message();
}

TEST(GgufHostile, HeaderFields) {
  GgufBytes file(0, 0);
  EXPECT_TRUE(GgufFile::parse(file.span(), "f").ok());
  for (size_t cut = 0; cut < 24; ++cut) {
    GgufBytes shorter = file;
    shorter.bytes.resize(cut);
    EXPECT_THAT(refusal(shorter), HasSubstr("at byte"));
  }
  GgufBytes magic = file;
  magic.bytes[0] = 'X';
  EXPECT_THAT(refusal(magic), HasSubstr("magic at byte 0"));
  EXPECT_THAT(refusal(GgufBytes(0, 0, 1)), HasSubstr("version 1; 2 and 3 are supported"));
  EXPECT_THAT(refusal(GgufBytes(0, 0, 4)), HasSubstr("version at byte 4"));
  EXPECT_THAT(refusal(GgufBytes(0, 0, 0x03000000)), HasSubstr("big-endian"));
}

TEST(GgufHostile, MetadataFields) {
  EXPECT_THAT(refusal(GgufBytes(0, 1).key("k", 13).put(0)), HasSubstr("unknown type number 13"));
  EXPECT_THAT(refusal(GgufBytes(0, 1).key("k", 7).put(uint8_t{2}).put(0)),
              HasSubstr("a bool of 2"));
  EXPECT_THAT(refusal(GgufBytes(0, 1).key("", 4).put(1)),
              HasSubstr("metadata key at byte 24: empty"));
  EXPECT_THAT(refusal(GgufBytes(0, 2).u32("k", 1).u32("k", 2)), HasSubstr("\"k\" appears twice"));
  EXPECT_THAT(refusal(GgufBytes(0, 1).key("k", 9).put(9u).put(uint64_t{0})),
              HasSubstr("arrays of arrays"));
  EXPECT_THAT(
      refusal(GgufBytes(0, 1).key("k\xff", 12).put(1)),
      AllOf(HasSubstr("metadata \"k\xef\xbf\xbd\""), HasSubstr("ends here (4 of 8 bytes)")));
  for (uint32_t bad : {0u, 1u, 4u, 24u, 33u, 1u << 31})
    EXPECT_THAT(refusal(GgufBytes(0, 1).u32("general.alignment", bad)),
                HasSubstr("general.alignment at byte 24"));
  EXPECT_THAT(refusal(GgufBytes(0, 1).text("general.alignment", "32")), HasSubstr("power of two"));
}

TEST(GgufHostile, TensorFields) {
  const auto one = [](const std::vector<uint64_t>& ne, uint32_t type, uint64_t offset) {
    return GgufBytes(1, 0).tensor("t", ne, type, offset).data(1024);
  };
  EXPECT_TRUE(GgufFile::parse(one({32, 2}, 8, 0).span(), "f").ok());
  EXPECT_THAT(refusal(one({33}, 8, 0)), HasSubstr("rows of 33 elements"));
  EXPECT_THAT(refusal(one({16, 2}, 8, 0)), HasSubstr("do not divide into q8_0 blocks"));
  EXPECT_THAT(refusal(GgufBytes(1, 0).tensor("", {1}, 0, 0).data(64)), HasSubstr("tensor name"));
  EXPECT_THAT(refusal(GgufBytes(2, 0).tensor("t", {1}, 0, 0).tensor("t", {1}, 0, 32).data(64)),
              HasSubstr("tensor name at byte 57: \"t\" appears twice"));
}

TEST(GgufHostile, TruncatedAnywhere) {
  const std::string whole = read_file(golden("models/llama.gguf"));
  ASSERT_GT(whole.size(), 5000u);
  for (size_t cut = 0; cut < whole.size(); cut += cut < 3000 ? 1 : 97) {
    GgufBytes file(0, 0);
    file.bytes = whole.substr(0, cut);
    EXPECT_FALSE(refusal(file).empty()) << cut;
  }
}

TEST(BugJ04, TensorSizeSumWraps) {
  const auto one = [](const std::vector<uint64_t>& ne, uint32_t type = 0, uint64_t offset = 0) {
    return GgufBytes(1, 0).tensor("t", ne, type, offset).data(1024);
  };
  const uint64_t big = uint64_t{1} << 42;
  for (const auto& ne : {std::vector<uint64_t>{big + 1, big + 1},
                         {uint64_t{1} << 32, uint64_t{1} << 32},
                         {uint64_t{1} << 31, uint64_t{1} << 31, 4},
                         {3, uint64_t{1} << 63},
                         {uint64_t{1} << 62, 4, 1, 1},
                         {~uint64_t{0}},
                         {0},
                         {4, 0}})
    EXPECT_THAT(refusal(one(ne)), AllOf(HasSubstr("tensor \"t\""), HasSubstr("dimension at byte")));
  // Elements fit, bytes do not.
  EXPECT_THAT(refusal(one({uint64_t{1} << 61})), HasSubstr("size in bytes overflows"));
  EXPECT_THAT(refusal(one({uint64_t{1} << 62}, 28)), HasSubstr("size in bytes overflows"));
  // The offset and the size are each fine, their sum is not.
  EXPECT_THAT(refusal(one({big}, 0, 0)), HasSubstr("needs 17592186044416 bytes"));
  EXPECT_THAT(refusal(one({4}, 0, ~uint64_t{0} - 31)), HasSubstr("at offset 18446744073709551584"));
  for (uint32_t rank : {0u, 5u, 1u << 31, ~0u}) {
    GgufBytes file(1, 0);
    file.str("t").put(rank).put(uint64_t{1}).put(uint64_t{1}).put(0u).put(uint64_t{0}).data(64);
    EXPECT_THAT(refusal(file), HasSubstr("dimension count at byte 33: " + std::to_string(rank)));
  }
  EXPECT_THAT(refusal(one({4}, 0, 8)), HasSubstr("no multiple of the alignment 32"));
  EXPECT_THAT(refusal(one({4}, 0, 1024)), HasSubstr("truncated or the offset wrong"));
  EXPECT_THAT(refusal(one({257}, 0, 0)), HasSubstr("needs 1028 bytes"));
  EXPECT_THAT(refusal(GgufBytes(2, 0).tensor("a", {16}, 0, 0).tensor("b", {16}, 0, 32).data(1024)),
              HasSubstr("\"b\" at byte 128: overlaps tensor \"a\" at byte 96"));
  EXPECT_THAT(refusal(GgufBytes(2, 0).tensor("a", {16}, 0, 64).tensor("b", {16}, 0, 64).data(1024)),
              HasSubstr("overlaps"));
  // Two sizes below 2^63 whose sum wraps.
  const uint64_t half = uint64_t{1} << 60;
  EXPECT_FALSE(
      refusal(GgufBytes(2, 0).tensor("a", {half}, 0, 0).tensor("b", {half}, 0, half * 4).data(64))
          .empty());
}

TEST(BugJ05, StringLengthBeyondTheFile) {
  for (uint64_t length : {uint64_t{100}, uint64_t{1} << 40, ~uint64_t{0}, ~uint64_t{0} - 31}) {
    GgufBytes file(0, 1);
    file.put(length).put(uint64_t{0}).put(uint64_t{0});
    EXPECT_THAT(refusal(file),
                AllOf(HasSubstr("metadata key at byte 24: length " + std::to_string(length)),
                      HasSubstr("only 16 bytes are left")));
    GgufBytes value(0, 1);
    value.key("k", 8).put(length).put(uint64_t{0});
    EXPECT_THAT(refusal(value), HasSubstr("string value at byte 37"));
    GgufBytes array(0, 1);
    array.key("k", 9).put(8u).put(uint64_t{1}).put(length).put(uint64_t{0});
    EXPECT_THAT(refusal(array), HasSubstr("string in an array at byte 49"));
  }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kMutations = 5'000;  // tests/fuzz goes on from here
#else
constexpr int kMutations = 1'000'000;
#endif

// A million mutations of a small file: none may crash, hang, or allocate beyond what the file pays
// for.
TEST(BugJ05, MutationsStayWithinTheFilesMeans) {
  const std::string whole = read_file(golden("models/llama_freqs.gguf"));
  const size_t header = 2200;  // mutate where the fields are
  std::mt19937_64 random(7);
  GgufBytes file(0, 0);
  file.bytes = whole;
  size_t accepted = 0;
  for (int i = 0; i < kMutations; ++i) {
    const size_t at = random() % header;
    const char old = file.bytes[at];
    file.bytes[at] = char(random());
    const size_t before = allocated_bytes;
    const Result<GgufFile> g = GgufFile::parse(file.span(), "f");
    ASSERT_LT(allocated_bytes - before, 32 * whole.size() + 8192);
    accepted += g.ok();
    file.bytes[at] = old;
  }
  EXPECT_GT(accepted, 0u);
  EXPECT_LT(accepted, size_t(kMutations));
}

TEST(BugJ07, HugeCountsEndAtOnce) {
  for (uint64_t count : {uint64_t{1} << 62, uint64_t{1} << 63, ~uint64_t{0}, uint64_t{1} << 20}) {
    EXPECT_THAT(refusal(GgufBytes(count, 0)), HasSubstr("tensor count at byte 8"));
    EXPECT_THAT(refusal(GgufBytes(0, count)), HasSubstr("metadata count at byte 16"));
    for (uint32_t elem : {0u, 5u, 8u, 12u})
      EXPECT_THAT(refusal(GgufBytes(0, 1).key("k", 9).put(elem).put(count).put(0)),
                  HasSubstr("array count at byte 41: " + std::to_string(count)));
  }
}

TEST(BugJ10, LargeVocabularyOpensFast) {
  constexpr int kTokens = 150'000;
  GgufBytes file(0, 3);
  file.key("tokenizer.ggml.tokens", 9).put(8u).put(uint64_t{kTokens});
  for (int i = 0; i < kTokens; ++i) file.str("token" + std::to_string(i));
  file.key("tokenizer.ggml.merges", 9).put(8u).put(uint64_t{kTokens});
  for (int i = 0; i < kTokens; ++i) file.str("to ken" + std::to_string(i));
  file.key("tokenizer.ggml.scores", 9).put(6u).put(uint64_t{kTokens});
  file.bytes.resize(file.bytes.size() + kTokens * 4);
  const std::clock_t start = std::clock();
  const Result<GgufFile> g = GgufFile::parse(file.span(), "f");
  const double cpu_seconds = double(std::clock() - start) / CLOCKS_PER_SEC;
  ASSERT_TRUE(g.ok()) << g.status().to_string();
  EXPECT_LT(cpu_seconds, 1.0);  // a few milliseconds without sanitizers
  EXPECT_EQ(g->get_strings("tokenizer.ggml.tokens")->size(), size_t(kTokens));
  EXPECT_EQ(g->get_floats("tokenizer.ggml.scores")->size(), size_t(kTokens));
}

TEST(BugJ17, UnknownTensorTypeNumber) {
  const auto one = [](uint32_t type) {
    return GgufBytes(1, 0).tensor("t", {32}, type, 0).data(99);
  };
  EXPECT_THAT(refusal(one(39)), AllOf(HasSubstr("tensor \"t\""), HasSubstr("MXFP4 (number 39)"),
                                      HasSubstr("Supported: F32, F16, Q4_0")));
  EXPECT_THAT(refusal(one(99)), AllOf(HasSubstr("number 99 is unknown to this version of attune"),
                                      HasSubstr("a newer one may know it")));
  EXPECT_THAT(refusal(one(~0u)), HasSubstr("number 4294967295 is unknown"));
  EXPECT_THAT(refusal(one(4)), HasSubstr("number 4 is unknown"));
}

// The tokenizer refuses a vocabulary without merges; here the absence has a name.
TEST(BugI08, AbsentMergesAreNamed) {
  GgufBytes file(0, 1);
  file.text("tokenizer.ggml.model", "gpt2");
  const Result<GgufFile> g = GgufFile::parse(file.span(), "vocab.gguf");
  ASSERT_TRUE(g.ok());
  const auto merges = g->get_strings("tokenizer.ggml.merges");
  EXPECT_EQ(merges.status().code(), Code::kNotFound);
  EXPECT_EQ(merges.status().message(),
            "vocab.gguf: the GGUF metadata has no tokenizer.ggml.merges");
}

}  // namespace
}  // namespace attune::formats
