// Ids of the `tokenizers` package (tools/golden_tokenizer.py), for real vocabularies and for small
// trained ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "formats/json.h"
#include "text/detokenizer.h"
#include "text/loaders.h"
#include "text/tokenizer.h"

namespace attune::text {
namespace {

const std::string kGolden = std::string(ATTUNE_SOURCE_DIR) + "/tests/golden/tokenizer/";
const std::string kVocabs = std::string(ATTUNE_SOURCE_DIR) + "/build/test-data/vocabs/";
const std::string kModel =
    std::string(ATTUNE_SOURCE_DIR) + "/build/models/smollm2-135m-instruct-q4_1.gguf";

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream all;
  all << file.rdbuf();
  return all.str();
}

std::string from_hex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

const std::vector<std::string>& golden_strings() {
  static const std::vector<std::string> strings = [] {
    std::vector<std::string> out;
    auto json = formats::parse_json(read_file(kGolden + "strings.json"));
    EXPECT_TRUE(json.ok()) << json.status().to_string();
    for (const auto& entry : json->as_array()) {
      out.push_back(entry.is_string() ? entry.as_string()
                                      : from_hex(entry.find("hex")->as_string()));
    }
    return out;
  }();
  return strings;
}

// GoogleTest takes no hyphens.
std::string test_name(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// Per string: a count and the ids, LEB128.
std::vector<std::vector<TokenId>> read_ids(const std::string& path) {
  const std::string bytes = read_file(path);
  size_t at = 0;
  auto next = [&] {
    uint32_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto b = static_cast<unsigned char>(bytes.at(at++));
      value |= static_cast<uint32_t>(b & 0x7F) << shift;
      if (b < 0x80) return value;
    }
  };
  std::vector<std::vector<TokenId>> all;
  while (at < bytes.size()) {
    std::vector<TokenId>& ids = all.emplace_back(next());
    for (TokenId& id : ids) id = static_cast<TokenId>(next());
  }
  return all;
}

struct Vocabulary {
  std::string name;      // of the golden files
  std::string gguf;      // its path
  std::string pre = {};  // instead of the file's own pre-tokenizer
};
void PrintTo(const Vocabulary& v, std::ostream* out) {
  *out << v.name;
}

Result<std::shared_ptr<const Tokenizer>> load(const Vocabulary& vocabulary) {
  if (vocabulary.pre.empty()) return Tokenizer::load(vocabulary.gguf);
  ATTUNE_ASSIGN_OR_RETURN(const auto file, formats::GgufFile::open(vocabulary.gguf));
  ATTUNE_ASSIGN_OR_RETURN(VocabData data, vocab_from_gguf(file));
  data.splits.clear();
  for (const std::string& regex : find_pre_tokenizer_preset(vocabulary.pre)->regexes) {
    ATTUNE_ASSIGN_OR_RETURN(SplitStep step, split_by_regex(regex));
    data.splits.push_back(std::move(step));
  }
  return Tokenizer::create(std::move(data));
}

class GoldenIds : public testing::TestWithParam<Vocabulary> {};

TEST_P(GoldenIds, EqualTokenizersPackage) {
  const Vocabulary& vocabulary = GetParam();
  if (!std::filesystem::exists(vocabulary.gguf)) {
    GTEST_SKIP() << vocabulary.gguf << " is absent; `make test` fetches it";
  }
  auto loaded = load(vocabulary);
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  const Tokenizer& tokenizer = **loaded;
  const auto& strings = golden_strings();
  const auto expected = read_ids(kGolden + vocabulary.name + ".ids");
  ASSERT_GE(strings.size(), 2000u);
  ASSERT_EQ(strings.size(), expected.size());
  int wrong = 0;
  for (size_t i = 0; i < strings.size(); ++i) {
    const auto ids =
        tokenizer.encode(strings[i], {.parse_special = true, .add_special_tokens = false});
    EXPECT_EQ(ids, expected[i]) << "string " << i << ": " << strings[i];
    wrong += ids != expected[i];
    ASSERT_LT(wrong, 10) << "and so on";
  }
}

// Decoding gives the text back, but for what the normaliser changed; and a stream gives what
// decode() gives.
TEST_P(GoldenIds, DecodeGivesTheTextBack) {
  const Vocabulary& vocabulary = GetParam();
  if (!std::filesystem::exists(vocabulary.gguf)) GTEST_SKIP() << vocabulary.gguf << " is absent";
  auto loaded = load(vocabulary);
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  const Tokenizer& tokenizer = **loaded;
  auto changed = formats::parse_json(read_file(kGolden + vocabulary.name + ".decoded.json"));
  const auto expected_ids = read_ids(kGolden + vocabulary.name + ".ids");
  for (size_t i = 0; i < expected_ids.size(); ++i) {
    std::string expected = golden_strings()[i];
    const formats::Json* other = changed.ok() ? changed->find(std::to_string(i)) : nullptr;
    if (other != nullptr) expected = other->as_string();
    const std::string decoded = tokenizer.decode(expected_ids[i], false);
    if (formats::parse_json(formats::Json(expected).dump())->as_string() ==
        expected) {  // valid UTF-8
      EXPECT_EQ(decoded, expected) << "string " << i;
    }
    Detokenizer stream(tokenizer, {.skip_special = false});
    std::string streamed;
    for (TokenId id : expected_ids[i]) streamed += stream.push(id);
    EXPECT_EQ(streamed + stream.finish(), decoded) << "string " << i;
  }
}

// Bug log I-03: accents, dashes, and whatever else a converted vocabulary may read otherwise.
INSTANTIATE_TEST_SUITE_P(
    BugI03, GoldenIds,
    testing::Values(Vocabulary{"smollm", kModel},
                    Vocabulary{"gpt-2", kVocabs + "ggml-vocab-gpt-2.gguf"},
                    Vocabulary{"llama-bpe", kVocabs + "ggml-vocab-llama-bpe.gguf"},
                    Vocabulary{"qwen2", kVocabs + "ggml-vocab-qwen2.gguf"},
                    Vocabulary{"deepseek-coder", kVocabs + "ggml-vocab-deepseek-coder.gguf"},
                    Vocabulary{"deepseek-llm", kVocabs + "ggml-vocab-deepseek-llm.gguf"},
                    Vocabulary{"deepseek-v3", kVocabs + "ggml-vocab-deepseek-llm.gguf",
                               "deepseek-v3"},
                    Vocabulary{"llama-spm", kVocabs + "ggml-vocab-llama-spm.gguf"}),
    [](auto& info) { return test_name(info.param.name); });

// The vectors that come with the vocabularies: texts in NAME.gguf.inp, ids in NAME.gguf.out.
class Vectors : public testing::TestWithParam<std::string> {};

TEST_P(Vectors, EqualTheReferenceTokenizers) {
  const std::string gguf = kVocabs + "ggml-vocab-" + GetParam() + ".gguf";
  if (!std::filesystem::exists(gguf + ".inp")) {
    GTEST_SKIP() << gguf << ".inp is absent; `make test` fetches it";
  }
  auto loaded = Tokenizer::load(gguf);
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  const std::string texts = read_file(gguf + ".inp"), separator = "\n__ggml_vocab_test__\n";
  std::istringstream lines(read_file(gguf + ".out"));
  int count = 0;
  for (size_t at = 0, end; (end = texts.find(separator, at)) != std::string::npos;
       at = end + separator.size(), ++count) {
    std::string line;
    std::getline(lines, line);
    std::istringstream numbers(line);
    const std::vector<TokenId> expected(std::istream_iterator<TokenId>(numbers), {});
    const std::string text = texts.substr(at, end - at);
    EXPECT_EQ((*loaded)->encode(text, {.add_special_tokens = false}), expected) << text;
  }
  EXPECT_GE(count, 40);
}

INSTANTIATE_TEST_SUITE_P(, Vectors,
                         testing::Values("gpt-2", "llama-bpe", "qwen2", "qwen35", "deepseek-llm",
                                         "deepseek-coder", "starcoder", "refact", "command-r",
                                         "mpt", "llama-spm", "phi-3"),
                         [](auto& info) { return test_name(info.param); });

class SmallGoldenIds : public testing::TestWithParam<std::string> {};

TEST_P(SmallGoldenIds, TokenizerJsonEqualsTokenizersPackage) {
  auto loaded = Tokenizer::from_hf(read_file(kGolden + "small/" + GetParam() + ".json"), "");
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  const auto expected = read_ids(kGolden + "small/" + GetParam() + ".ids");
  ASSERT_EQ(expected.size(), (golden_strings().size() + 4) / 5);
  int wrong = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto ids = (*loaded)->encode(golden_strings()[5 * i]);
    EXPECT_EQ(ids, expected[i]) << "string " << 5 * i << ": " << golden_strings()[5 * i];
    wrong += ids != expected[i];
    ASSERT_LT(wrong, 10) << "and so on";
  }
}

INSTANTIATE_TEST_SUITE_P(, SmallGoldenIds,
                         testing::Values("o200k", "merged-with-next", "punctuation", "prefix-space",
                                         "llama2-legacy", "metaspace-first", "metaspace-split",
                                         "regex-replace", "whitespace-unk"),
                         [](auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace attune::text
