// What tokenizer.json and tokenizer_config.json may say, and what is refused. Ids:
// golden_ids_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/test_vocab.h"

namespace attune::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A whole tokenizer.json of three letters, with one part replaced.
std::string document(std::string_view part = "", std::string_view value = "") {
  std::vector<std::pair<std::string, std::string>> parts = {
      {"added_tokens",
       R"([{"id":5,"content":"<s>","special":true},{"id":6,"content":"</s>","special":true}])"},
      {"normalizer", "null"},
      {"pre_tokenizer", "null"},
      {"post_processor", "null"},
      {"decoder", "null"},
      {"model",
       R"({"type":"BPE","vocab":{"a":0,"b":1,"c":2,"ab":3,"abc":4},"merges":["a b",["ab","c"]]})"}};
  std::string out = "{";
  for (auto& [name, text] : parts) {
    if (name == part) text = value;
    out += (out.size() > 1 ? ",\"" : "\"") + name + "\":" + text;
  }
  return out + "}";
}

Status refuse(std::string_view part, std::string_view value) {
  return Tokenizer::from_hf(document(part, value), "").status();
}

TEST(HfVocabulary, BothFormsOfMerges) {
  const auto t = Tokenizer::from_hf(document(), "");
  ASSERT_TRUE(t.ok()) << t.status().to_string();
  EXPECT_THAT((*t)->encode("abcab<s>c"), ElementsAre(4, 3, 5, 2));
  EXPECT_THAT((*t)->encode("a?b"), ElementsAre(3))
      << "without unk_token an unknown character is dropped first";
}

TEST(HfVocabulary, ConfigurationSetsSpecialTokensAndTemplates) {
  const auto t = Tokenizer::from_hf(
      document(), R"({"bos_token":"<s>","eos_token":{"content":"</s>"},"add_bos_token":true,
                      "chat_template":[{"name":"default","template":"D"},{"name":"tool_use","template":"T"}]})");
  ASSERT_TRUE(t.ok()) << t.status().to_string();
  EXPECT_EQ((*t)->bos_id(), 5);
  EXPECT_EQ((*t)->eos_id(), 6);
  EXPECT_THAT((*t)->encode("a"), ElementsAre(5, 0));
  EXPECT_THAT((*t)->encode("<s>a"), ElementsAre(5, 0));
  EXPECT_EQ((*t)->chat_template(), "D");
  EXPECT_EQ((*t)->chat_template("tool_use"), "T");
  EXPECT_EQ((*t)->chat_template("rag"), "");
  const auto without = Tokenizer::from_hf(
      document("post_processor",
               R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},
          {"Sequence":{"id":"A","type_id":0}}],"special_tokens":{"<s>":{"id":"<s>","ids":[5],"tokens":["<s>"]}}})"),
      R"({"bos_token":"<s>","add_bos_token":false,"chat_template":"X"})");
  ASSERT_TRUE(without.ok()) << without.status().to_string();
  EXPECT_THAT((*without)->encode("a"), ElementsAre(0));
}

TEST(HfVocabulary, RefusesUnknownPartsByPathAndName) {
  const auto pre =
      refuse("pre_tokenizer", R"({"type":"Sequence","pretokenizers":[{"type":"UnicodeScripts"}]})");
  EXPECT_EQ(pre.code(), Code::kUnsupported);
  EXPECT_THAT(
      pre.message(),
      HasSubstr("pre_tokenizer.pretokenizers[0] is \"UnicodeScripts\"; known: Sequence, Split"));
  EXPECT_THAT(refuse("normalizer", R"({"type":"NFKC"})").message(),
              HasSubstr("normalizer is \"NFKC\"; known: "));
  EXPECT_THAT(refuse("decoder", R"({"type":"CTC"})").message(),
              HasSubstr("decoder is \"CTC\"; known: "));
  EXPECT_THAT(refuse("post_processor", R"({"type":"BertProcessing"})").message(),
              HasSubstr("\"BertProcessing\""));
  EXPECT_THAT(refuse("model", R"({"type":"Unigram"})").message(),
              HasSubstr("\"Unigram\"; known: BPE"));
  EXPECT_THAT(
      refuse("pre_tokenizer", R"({"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"})")
          .message(),
      HasSubstr("offset 1"));
  EXPECT_THAT(
      refuse("pre_tokenizer", R"({"type":"Split","pattern":{"Regex":"a"},"behavior":"Odd"})")
          .message(),
      HasSubstr("behavior is \"Odd\""));
}

TEST(HfVocabulary, RefusesNormalizersThatMakeTextsLongWithoutBound) {
  std::string steps;
  for (int i = 0; i < 60; ++i)
    steps +=
        std::string(i ? "," : "") + R"({"type":"Replace","pattern":{"String":"a"},"content":"aa"})";
  const std::string normalizer = R"({"type":"Sequence","normalizers":[)" + steps + "]}";
  EXPECT_THAT(refuse("normalizer", normalizer).message(), HasSubstr("times as long"));
}

TEST(HfVocabulary, RefusesBrokenParts) {
  EXPECT_THAT(Tokenizer::from_hf("{", "").status().message(), HasSubstr("tokenizer.json: "));
  EXPECT_THAT(Tokenizer::from_hf("[]", "").status().message(), HasSubstr("no object"));
  EXPECT_THAT(Tokenizer::from_hf(document(), "{").status().message(),
              HasSubstr("tokenizer_config.json: "));
  EXPECT_THAT(refuse("model", "null").message(), HasSubstr("model is missing"));
  EXPECT_THAT(refuse("model", R"({"vocab":{"a":0},"merges":[]})").message(),
              HasSubstr("needs its merges"));
  EXPECT_THAT(refuse("model", R"({"vocab":{"a":0,"b":0},"merges":["a b"]})").message(),
              HasSubstr("id 0 is given to"));
  EXPECT_THAT(refuse("model", R"({"vocab":{"a":-1},"merges":["a b"]})").message(),
              HasSubstr("the id of \"a\" is -1"));
  EXPECT_THAT(refuse("model", R"({"vocab":{"a":4000000000},"merges":["a b"]})").message(),
              HasSubstr("4000000000"));
  EXPECT_THAT(refuse("model", R"({"vocab":{"a":0,"b":1},"merges":["a b"]})").message(),
              HasSubstr("\"ab\" is not in"));
  EXPECT_THAT(refuse("model", R"({"vocab":{"a":0},"merges":["a"]})").message(),
              HasSubstr("model.merges[0] is \"a\""));
  EXPECT_THAT(refuse("model", R"({"vocab":{"a":0,"b":1,"ab":2},"merges":["a b"],"unk_token":"?"})")
                  .message(),
              HasSubstr("unk_token \"?\""));
  EXPECT_THAT(
      refuse("model", R"({"vocab":{"a":0,"b":1,"ab":2},"merges":["a b"],"dropout":0.1})").message(),
      HasSubstr("dropout"));
  EXPECT_THAT(refuse("added_tokens", R"([{"id":0,"content":"x"}])").message(),
              HasSubstr("id 0 is given to"));
  EXPECT_THAT(refuse("added_tokens", R"([{"id":9}])").message(), HasSubstr("added_tokens[0]"));
  std::string nested = R"({"type":"NFC"})";
  for (int i = 0; i < 20; ++i) nested = R"({"type":"Sequence","normalizers":[)" + nested + "]}";
  EXPECT_THAT(refuse("normalizer", nested).message(), HasSubstr("nest too deep"));
}

TEST(HfVocabulary, ChangesOfTextAfterACutAreRefused) {
  const auto status = refuse("pre_tokenizer", R"({"type":"Sequence","pretokenizers":[
      {"type":"Digits","individual_digits":true},{"type":"Metaspace","replacement":"▁","prepend_scheme":"always"}]})");
  EXPECT_THAT(status.message(), HasSubstr("in the first place only"));
}

TEST(HfVocabulary, FolderWithItsFiles) {
  const formats::TempFolder folder;
  folder.write("tokenizer.json", document());
  folder.write("tokenizer_config.json",
               R"({"bos_token":"<s>","chat_template":"from the configuration"})");
  auto t = Tokenizer::load(folder.path());
  ASSERT_TRUE(t.ok()) << t.status().to_string();
  EXPECT_EQ((*t)->chat_template(), "from the configuration");
  folder.write("chat_template.jinja", "from its own file");
  t = Tokenizer::load(folder.path() + "/tokenizer.json");
  ASSERT_TRUE(t.ok()) << t.status().to_string();
  EXPECT_EQ((*t)->chat_template(), "from its own file");
  EXPECT_EQ((*t)->bos_id(), 5);
}

}  // namespace
}  // namespace attune::text
