#include "formats/gguf_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "formats/test_files.h"

namespace attune::formats {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<TokenId> ends_of(const std::vector<std::pair<std::string, int32_t>>& tokens) {
  GgufBytes bytes(0, 2);
  bytes.key("tokenizer.ggml.tokens", 9).put(uint32_t{8}).put(uint64_t{tokens.size()});
  for (const auto& [text, type] : tokens) bytes.str(text);
  bytes.key("tokenizer.ggml.token_type", 9).put(uint32_t{5}).put(uint64_t{tokens.size()});
  for (const auto& [text, type] : tokens) bytes.put(type);
  const auto file = GgufFile::parse(bytes.span(), "test.gguf");
  EXPECT_TRUE(file.ok()) << file.status().to_string();
  return turn_end_tokens(*file);
}

TEST(GgufTokens, ControlTokensThatEndATurn) {
  EXPECT_THAT(ends_of({{"a", 1}, {"<|im_end|>", 3}, {"<|im_start|>", 3}, {"<|endoftext|>", 3}}),
              ElementsAre(1, 3));
  EXPECT_THAT(ends_of({{"<|im_end|>", 1}, {"<|end|>", 4}}), IsEmpty()) << "text, not control";
}

// gpt-oss ends each message with <|end|> and goes on; other models stop there.
TEST(GgufTokens, EndOfAMessageIsNoEndWhereOthersAre) {
  EXPECT_THAT(ends_of({{"<|end|>", 3}, {"<|assistant|>", 3}}), ElementsAre(0));
  EXPECT_THAT(ends_of({{"<|end|>", 3}, {"<|return|>", 3}, {"<|call|>", 3}}), ElementsAre(1, 2));
}

TEST(GgufTokens, NoTypesNoEnds) {
  GgufBytes bytes(0, 1);
  bytes.key("tokenizer.ggml.tokens", 9).put(uint32_t{8}).put(uint64_t{1}).str("<|im_end|>");
  const auto file = GgufFile::parse(bytes.span(), "test.gguf");
  ASSERT_TRUE(file.ok());
  EXPECT_THAT(turn_end_tokens(*file), IsEmpty());
}

}  // namespace
}  // namespace attune::formats
