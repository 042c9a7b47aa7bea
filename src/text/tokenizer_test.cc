#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "formats/json.h"
#include "text/test_vocab.h"

namespace attune::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<TokenId>;

constexpr EncodeOptions kAlone{.parse_special = true, .add_special_tokens = false};
constexpr EncodeOptions kTextOnly{.parse_special = false, .add_special_tokens = false};

bool has_special(const Tokenizer& t, const Ids& ids) {
  return std::any_of(ids.begin(), ids.end(), [&](TokenId id) { return t.is_special(id); });
}

TEST(Tokenizer, MergesByRankFromTheLeft) {
  const auto t = make_tokenizer(byte_level_data());
  EXPECT_THAT(t->encode("hello", kAlone), ElementsAre(*t->find_token("hello")));
  EXPECT_THAT(t->encode("hellhe", kAlone),
              ElementsAre(*t->find_token("hell"), *t->find_token("he")));
  const TokenId a = *t->find_token("a"), aa = *t->find_token("aa"), aaaa = *t->find_token("aaaa");
  EXPECT_THAT(t->encode("aaaaaaa", kAlone), ElementsAre(aaaa, aa, a));
  EXPECT_EQ(t->token_bytes(*t->find_token("\u0120wor")), " wor");
  EXPECT_EQ(t->token_text(*t->find_token("\u0120wor")), "\u0120wor");
  EXPECT_EQ(t->token_bytes(-1), "");
  EXPECT_EQ(t->token_bytes(t->vocab_size()), "");
  EXPECT_EQ(t->max_token_bytes(), std::string_view("<|im_start|>").size());
  EXPECT_EQ(t->describe(), "byte-level BPE, pre-tokenizer gpt-2, 269 tokens, 3 special");
}

// Short and long pieces go different ways to the same ids.
TEST(Tokenizer, LongPiecesMergeAsShortOnesDo) {
  const auto t = make_tokenizer(byte_level_data());
  for (size_t n = 1; n < 200; ++n) {
    Ids expected(n / 4, *t->find_token("aaaa"));
    if (n % 4 >= 2) expected.push_back(*t->find_token("aa"));
    if (n % 2 == 1) expected.push_back(*t->find_token("a"));
    ASSERT_EQ(t->encode(std::string(n, 'a'), kAlone), expected) << n;
  }
}

TEST(Tokenizer, LongRunsWithoutSpaceAreFast) {
  for (const auto& t : {make_tokenizer(byte_level_data()), make_tokenizer(sentencepiece_data())}) {
    for (const char* part : {"a", "hello", "\u4F60", " ", "\u2581", "<|im_", "\xFF"}) {
      std::string text;
      while (text.size() < 500'000) text += part;
      const auto ids = t->encode(text, kAlone);
      EXPECT_GT(ids.size(), text.size() / 20);
    }
  }
}

TEST(Tokenizer, SameIdsFromManyThreads) {
  const auto t = make_tokenizer(byte_level_data());
  const std::string text = "hello hellhe wor aaaaaaaaa helloworhello <|im_end|> \u4F60";
  const auto expected = make_tokenizer(byte_level_data())->encode(text);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 500; ++k) ASSERT_EQ(t->encode(text), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Tokenizer, InvalidUtf8IsReadAsReplacementCharacters) {
  const auto t = make_tokenizer(byte_level_data());
  EXPECT_EQ(t->encode("a\xFF\xE4\xBD z"), t->encode("a\uFFFD\uFFFD z"));
  // Literal ranges move along with what is replaced.
  const std::string bad = "\xFF\xFF<|im_end|><|im_end|>";
  const Ids ids = t->encode(bad, kAlone, std::vector<ByteRange>{{2, 12}});
  EXPECT_EQ(t->decode(ids, false), "\uFFFD\uFFFD<|im_end|><|im_end|>");
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 2), 1);
  EXPECT_EQ(ids.back(), 2);
}

TEST(BugI01, NeverTwoStartTokens) {
  for (const auto& t : {make_tokenizer(byte_level_data()), make_tokenizer(sentencepiece_data())}) {
    const TokenId bos = *t->bos_id();
    ASSERT_TRUE(t->add_bos());
    const std::string bos_text(t->token_text(bos));
    auto count = [&](const Ids& ids) { return std::count(ids.begin(), ids.end(), bos); };
    EXPECT_EQ(count(t->encode("hello")), 1);
    EXPECT_EQ(count(t->encode("")), 1);
    EXPECT_EQ(count(t->encode(bos_text + "hello")), 1) << "the text brought its own";
    EXPECT_EQ(count(t->encode(bos_text + "hello", kAlone)), 1) << "what a chat template rendered";
    EXPECT_EQ(count(t->encode("hello", kAlone)), 0);
    EXPECT_EQ(t->encode(bos_text + "hello").front(), bos);
  }
}

TEST(BugI05, SpecialTextInContentStaysText) {
  for (const auto& t : {make_tokenizer(byte_level_data()), make_tokenizer(sentencepiece_data())}) {
    for (TokenId id = 0; id < t->vocab_size(); ++id) {
      if (!t->is_special(id)) continue;
      const std::string special(t->token_text(id));
      const std::string content = "say " + special + "x" + special;
      EXPECT_TRUE(has_special(*t, t->encode(special, kAlone)));
      const Ids as_text = t->encode(content, kTextOnly);
      EXPECT_FALSE(has_special(*t, as_text)) << special;
      EXPECT_EQ(t->decode(as_text), content) << "and nothing is lost";
      // In a rendered prompt: the template's marker counts, the message's does not.
      const std::string prompt = special + content + special;
      const ByteRange message{special.size(), special.size() + content.size()};
      const Ids ids = t->encode(prompt, kAlone, std::vector<ByteRange>{message});
      EXPECT_EQ(std::count(ids.begin(), ids.end(), id), 2) << special;
      EXPECT_EQ(ids.front(), id);
      EXPECT_EQ(ids.back(), id);
    }
  }
}

TEST(BugI05, NoMergeMakesAControlToken) {
  VocabData data = byte_level_data();
  const TokenId whole = put_token(data, "we", TokenType::kControl);
  data.merges.emplace_back("w", "e");
  const auto t = make_tokenizer(std::move(data));
  EXPECT_EQ(t->encode("we", kAlone), Ids{whole});
  EXPECT_EQ(t->encode("we", kTextOnly).size(), 2u);
}

TEST(BugI05, ATokenHalfInContentIsNoToken) {
  const auto t = make_tokenizer(byte_level_data());
  const Ids ids = t->encode("<|im_end|>", kAlone, std::vector<ByteRange>{{9, 10}});
  EXPECT_FALSE(has_special(*t, ids));
  // Added tokens that are no control tokens are found everywhere.
  EXPECT_THAT(t->encode("<think>", kTextOnly), ElementsAre(3));
}

TEST(AddedTokens, LongestMatchStripsAndWords) {
  VocabData data = byte_level_data();
  data.added.push_back({.id = 4, .text = "ab"});
  data.added.push_back({.id = 5, .text = "abc", .lstrip = true});
  data.added.push_back({.id = 6, .text = "xy", .rstrip = true});
  data.added.push_back({.id = 7, .text = "cat", .single_word = true});
  const auto t = make_tokenizer(std::move(data));
  EXPECT_THAT(t->encode("abc", kAlone), ElementsAre(5));
  EXPECT_THAT(t->encode("ab \t\u3000abc", kAlone), ElementsAre(4, 5));
  EXPECT_THAT(t->encode("xy \n xy", kAlone), ElementsAre(6, 6));
  EXPECT_EQ(t->encode("cat concat cat_ cat", kAlone).front(), 7);
  const Ids cats = t->encode("cat concat cats cat", kAlone);
  EXPECT_EQ(std::count(cats.begin(), cats.end(), 7), 2);
  EXPECT_EQ(t->find_special("abc"), 5);
  EXPECT_EQ(t->find_special("abcd"), std::nullopt);
}

TEST(SentencePiece, PrefixSpaceFallbackAndScores) {
  const auto t = make_tokenizer(sentencepiece_data());
  EXPECT_THAT(t->encode("hello", kAlone), ElementsAre(*t->find_token("\u2581hello")));
  EXPECT_THAT(t->encode("<s>hello</s>hello", kAlone),
              ElementsAre(1, *t->find_token("\u2581hello"), 2, *t->find_token("\u2581hello")))
      << "every text after a special token gets its space";
  EXPECT_THAT(
      t->encode("\u00E9", kAlone),
      ElementsAre(*t->find_token("\u2581"), *t->find_token("<0xC3>"), *t->find_token("<0xA9>")));
  EXPECT_EQ(t->token_bytes(*t->find_token("<0xC3>")), "\xC3");
  EXPECT_EQ(t->token_bytes(*t->find_token("\u2581hello")), " hello");
  for (const char* text : {"hello  world", "\u4F60 \U0001F600", "", " ", "a\n b"}) {
    EXPECT_EQ(t->decode(t->encode(text)), text);
  }
}

TEST(BugI08, ByteLevelVocabularyWithoutMergesIsRefused) {
  GgufVocab file = gguf_vocab(byte_level_data(), "gpt2");
  ASSERT_TRUE(file.load().ok()) << file.load().status().to_string();
  file.merges.clear();
  EXPECT_EQ(file.load().status().code(), Code::kDataLoss);
  EXPECT_THAT(file.load().status().message(), HasSubstr("tokenizer.ggml.merges"));
  file = gguf_vocab(sentencepiece_data(), "llama");
  ASSERT_TRUE(file.load().ok()) << file.load().status().to_string();
  file.scores.clear();
  EXPECT_THAT(file.load().status().message(), HasSubstr("tokenizer.ggml.scores"));
}

TEST(BugI10, SwappedKindIsRefused) {
  GgufVocab bytes = gguf_vocab(byte_level_data(), "gpt2"),
            pieces = gguf_vocab(sentencepiece_data(), "llama");
  // Even with what the other kind needs.
  bytes.scores.assign(bytes.tokens.size(), 0.0f);
  pieces.merges = {"h e"};
  ASSERT_TRUE(bytes.load().ok());
  ASSERT_TRUE(pieces.load().ok());
  bytes.model = "llama";
  pieces.model = "gpt2";
  EXPECT_THAT(bytes.load().status().message(), HasSubstr("tokenizer.ggml.model is \"llama\", but"));
  EXPECT_THAT(pieces.load().status().message(), HasSubstr("tokenizer.ggml.model is \"gpt2\", but"));
}

TEST(GgufVocabulary, RefusesWhatItDoesNotKnowByName) {
  GgufVocab file = gguf_vocab(byte_level_data(), "gpt2");
  file.pre = "brand-new";
  EXPECT_EQ(file.load().status().code(), Code::kUnsupported);
  EXPECT_THAT(file.load().status().message(),
              HasSubstr("\"brand-new\"; known: codeshell, command-r"));
  file.pre = "";
  EXPECT_THAT(file.load().status().message(), HasSubstr("tokenizer.ggml.pre is missing"));
  file.pre = "gpt-2";
  file.model = "bert";
  EXPECT_THAT(file.load().status().message(), HasSubstr("\"bert\"; known: gpt2"));
  file.model = "";
  EXPECT_EQ(file.load().status().code(), Code::kNotFound);
}

TEST(GgufVocabulary, RefusesWhatDoesNotFitTogether) {
  const GgufVocab good = gguf_vocab(byte_level_data(), "gpt2");
  GgufVocab file = good;
  file.types.pop_back();
  EXPECT_THAT(file.load().status().message(),
              HasSubstr("token_type has 268 entries for 269 tokens"));
  file = good;
  file.types[5] = 9;
  EXPECT_THAT(file.load().status().message(), HasSubstr("token_type[5] is 9"));
  file = good;
  file.merges.push_back("nospace");
  EXPECT_THAT(file.load().status().message(), HasSubstr("merges[9] is \"nospace\""));
  file = good;
  file.merges.push_back("q zz");
  EXPECT_THAT(file.load().status().message(), HasSubstr("\"zz\" is not in the vocabulary"));
  file = gguf_vocab(sentencepiece_data(), "llama");
  file.scores[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(file.load().status().message(), HasSubstr("NaN"));
  file.scores.pop_back();
  EXPECT_THAT(file.load().status().message(), HasSubstr("scores has 279 entries for 280 tokens"));
}

TEST(Load, SaysWhatIsMissing) {
  EXPECT_EQ(Tokenizer::load("/nonexistent/model.gguf").status().code(), Code::kNotFound);
  EXPECT_EQ(Tokenizer::load("/nonexistent").status().code(), Code::kNotFound);
}

// The five prompts of the reference run (tests/golden/smollm2.json).
TEST(SmolLm2, GoldenPrompts) {
  const std::string root = ATTUNE_SOURCE_DIR,
                    model = root + "/build/models/smollm2-135m-instruct-q4_1.gguf";
  if (!std::filesystem::exists(model))
    GTEST_SKIP() << model << " is absent; `make build` fetches it";
  const auto t = Tokenizer::load(model);
  ASSERT_TRUE(t.ok()) << t.status().to_string();
  const auto golden = formats::parse_json(formats::read_file(root + "/tests/golden/smollm2.json"));
  ASSERT_TRUE(golden.ok());
  const auto& prompts = golden->find("prompts")->as_array();
  ASSERT_EQ(prompts.size(), 5u);
  for (const auto& prompt : prompts) {
    Ids ids, greedy;
    for (const auto& id : prompt.find("ids")->as_array())
      ids.push_back(static_cast<TokenId>(id.as_int()));
    for (const auto& id : prompt.find("greedy")->as_array())
      greedy.push_back(static_cast<TokenId>(id.as_int()));
    EXPECT_EQ((*t)->encode(prompt.find("text")->as_string()), ids);
    EXPECT_THAT(prompt.find("greedy_text")->as_string(),
                testing::AnyOf((*t)->decode(greedy), (*t)->decode(greedy, false)));
  }
  EXPECT_EQ((*t)->eos_id(), 2);
  EXPECT_THAT((*t)->eos_ids(), ElementsAre(2, 0));
  EXPECT_FALSE((*t)->add_bos());
  EXPECT_THAT((*t)->chat_template(), HasSubstr("<|im_start|>"));
}

// Long texts that cannot fit are not encoded to their end: pieces of any kind, one piece for all,
// and special tokens. Shorter ones are encoded as ever, a second BOS included.
TEST(Tokenizer, EncodingStopsBeyondTheLimit) {
  const auto repeat = [](std::string_view unit, int times) {
    std::string text;
    for (int i = 0; i < times; ++i) text += unit;
    return text;
  };
  const std::string word = repeat("a", 100'000), words = repeat(" hello", 20'000),
                    specials = repeat("<|im_start|>", 10'000), twice = "<|bos|>hello hello hello";
  for (VocabData (*make)() : {&byte_level_data, &sentencepiece_data}) {
    const auto tokenizer = Tokenizer::create(make());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
    for (const std::string& text : {word, words, specials, twice, std::string("hello")}) {
      const auto all = (*tokenizer)->encode(text);
      for (const size_t limit : {size_t{1}, size_t{2}, size_t{5}, size_t{1000}, all.size() - 1,
                                 all.size(), all.size() + 1}) {
        if (limit == 0) continue;
        const auto ids = (*tokenizer)->encode(text, {.max_tokens = limit});
        if (all.size() <= limit) {
          EXPECT_EQ(ids, all) << limit;
        } else {
          EXPECT_GT(ids.size(), limit);
        }
      }
      // Not all of the work is done: what comes back is hardly longer than asked for.
      if (all.size() > 5000) {
        EXPECT_LT((*tokenizer)->encode(text, {.max_tokens = 5}).size(), 30u);
      }
    }
  }
}

// decode() takes the space that SentencePiece puts in front of a text off; a token has it for good.
TEST(Tokenizer, ATokensStringKeepsItsSpace) {
  const auto tokenizer = Tokenizer::create(sentencepiece_data());
  ASSERT_TRUE(tokenizer.ok());
  const auto id = (*tokenizer)->find_token("\u2581hello");
  ASSERT_TRUE(id);
  EXPECT_EQ((*tokenizer)->token_string(*id), " hello");
  EXPECT_EQ((*tokenizer)->token_string(3 + 0xE2), "\uFFFD");
  EXPECT_EQ((*tokenizer)->token_string(-1), "");
}

}  // namespace
}  // namespace attune::text
