// Detokenizer, StopMatcher, TextStream.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "text/detokenizer.h"
#include "text/stop_strings.h"
#include "text/test_vocab.h"
#include "text/text_stream.h"

namespace attune::text {
namespace {

const Tokenizer& bytes_tokenizer() {
  static const auto tokenizer = make_tokenizer(byte_level_data());
  return *tokenizer;
}
const Tokenizer& spm_tokenizer() {
  static const auto tokenizer = make_tokenizer(sentencepiece_data());
  return *tokenizer;
}

// The ids of single bytes, whatever merges there are.
std::vector<TokenId> byte_ids(const Tokenizer& tokenizer, std::string_view bytes) {
  const TokenId first = &tokenizer == &spm_tokenizer() ? 3 : 4;
  std::vector<TokenId> ids;
  for (unsigned char b : bytes) ids.push_back(first + b);
  return ids;
}

const char* const kScripts[] = {"안녕하세요 세계",
                                "नमस्ते दुनिया क्षि",
                                "👩‍👩‍👧‍👦🏳️‍🌈👍🏽🇩🇪",
                                "你好，世界",
                                "e\u0301a\u0308 Ωμέγα",
                                "plain"};

TEST(BugG19, StreamNeverBreaksACharacter) {
  for (const Tokenizer* tokenizer : {&bytes_tokenizer(), &spm_tokenizer()}) {
    for (const std::string text : kScripts) {
      const auto ids = byte_ids(*tokenizer, text);
      for (size_t step = 1; step < 6; ++step) {
        Detokenizer stream(*tokenizer);
        std::string all;
        for (size_t at = 0; at < ids.size(); at += step) {
          const std::string part =
              stream.push(std::span(ids).subspan(at, std::min(step, ids.size() - at)));
          EXPECT_TRUE(is_valid_utf8(part));
          EXPECT_EQ(part.find(kReplacement), std::string::npos) << text;
          EXPECT_LE(stream.pending_bytes(), 3u);
          all += part;
        }
        EXPECT_EQ(all + stream.finish(), text);
      }
    }
  }
}

TEST(BugG19, InvalidBytesStillComeOutAndEqualDecode) {
  std::mt19937 random(3);
  for (const Tokenizer* tokenizer : {&bytes_tokenizer(), &spm_tokenizer()}) {
    for (int round = 0; round < 3000; ++round) {
      std::vector<TokenId> ids(std::uniform_int_distribution<size_t>(0, 12)(random));
      for (TokenId& id : ids)
        id = std::uniform_int_distribution(-1, tokenizer->vocab_size())(random);
      for (bool skip : {true, false}) {
        Detokenizer stream(*tokenizer, {.skip_special = skip});
        std::string all;
        for (TokenId id : ids) {
          all += stream.push(id);
          ASSERT_TRUE(is_valid_utf8(all));
        }
        ASSERT_EQ(all + stream.finish(), tokenizer->decode(ids, skip));
      }
    }
  }
  Detokenizer stream(bytes_tokenizer());
  EXPECT_EQ(stream.push(byte_ids(bytes_tokenizer(), "\xE4\xBD")), "");
  EXPECT_EQ(stream.push(byte_ids(bytes_tokenizer(), "!")), "\uFFFD!")
      << "no longer able to become a character";
  EXPECT_EQ(stream.push(byte_ids(bytes_tokenizer(), "\xF0\x9F")), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Detokenizer, SentencePieceLeadingSpace) {
  const Tokenizer& t = spm_tokenizer();
  const auto hello = t.encode("hello world", {.add_special_tokens = false});
  ASSERT_EQ(t.decode(hello), "hello world");
  Detokenizer whole(t), going_on(t, {.strip_leading_space = false});
  EXPECT_EQ(whole.push(hello), "hello world");
  EXPECT_EQ(going_on.push(hello), " hello world");
  // One space only, and only at the very start.
  const TokenId space = *t.find_token("\u2581");
  EXPECT_EQ(t.decode(std::vector<TokenId>{space, space, space}), "  ");
  EXPECT_EQ(t.decode(std::vector<TokenId>{*t.bos_id(), space, space}), " ");
}

TEST(Detokenizer, SpecialTokens) {
  const Tokenizer& t = bytes_tokenizer();
  const std::vector<TokenId> ids = {1, *t.find_token("hello"), 3, 2};
  EXPECT_EQ(t.decode(ids), "hello<think>");
  EXPECT_EQ(t.decode(ids, false), "<|im_start|>hello<think><|im_end|>");
}

// What came out, in pieces of `step` bytes.
struct Shown {
  std::vector<std::string> parts;
  std::string all;
  int which = -1;
};
Shown show(std::vector<std::string> stops, std::string_view text, size_t step, bool keep = false) {
  StopMatcher matcher(std::move(stops), keep);
  Shown result;
  for (size_t at = 0; at < text.size() && !matcher.stopped(); at += step) {
    auto out = matcher.push(text.substr(at, step));
    if (!out.text.empty()) result.parts.push_back(out.text);
  }
  if (std::string rest = matcher.finish(); !rest.empty()) result.parts.push_back(rest);
  for (const std::string& part : result.parts) result.all += part;
  result.which = matcher.which();
  return result;
}

TEST(BugG16, NothingOfAStopStringIsSent) {
  for (size_t step = 1; step < 12; ++step) {
    const Shown hit = show({"DEFGHIJ"}, "ABC DEFGHIJ more", step);
    EXPECT_EQ(hit.all, "ABC ") << step;
    EXPECT_EQ(hit.which, 0);
    EXPECT_EQ(show({"DEFGHIJ"}, "ABC DEFGHIX DEF", step).all, "ABC DEFGHIX DEF");
    EXPECT_EQ(show({"你好", "好吗"}, "说你好吗", step).all, "说") << "inside characters";
    EXPECT_EQ(show({"aab"}, "aaaaab!", step).all, "aaa") << "overlaps itself";
    EXPECT_EQ(show({"abcd", "bce"}, "xabce", step).all, "xa") << "overlapping stops";
    EXPECT_EQ(show({"end"}, "the end", step).all, "the ") << "at the very end";
    EXPECT_EQ(show({"stop"}, "stop", step).all, "");
    EXPECT_EQ(show({"DEFGHIJ"}, "ABC DEFGHIJ more", step, true).all, "ABC DEFGHIJ")
        << "no_stop_trim";
    EXPECT_EQ(show({"", "b"}, "abc", step).all, "a") << "an empty stop string never matches";
  }
}

TEST(BugG16, TheFirstToEndWinsThenTheLongest) {
  for (size_t step = 1; step < 8; ++step) {
    EXPECT_EQ(show({"bcd", "c"}, "abcd", step).which, 1);
    EXPECT_EQ(show({"bcd", "c"}, "abcd", step).all, "ab");
    EXPECT_EQ(show({"c", "abc"}, "xabc", step).which, 1);
    EXPECT_EQ(show({"c", "abc"}, "xabc", step).all, "x");
  }
}

// The naive definition, on all texts over a small alphabet.
TEST(StopMatcher, EqualsTheNaiveDefinition) {
  std::mt19937 random(5);
  auto word = [&](size_t low, size_t high) {
    std::string s(std::uniform_int_distribution(low, high)(random), ' ');
    for (char& c : s) c = static_cast<char>('a' + std::uniform_int_distribution(0, 2)(random));
    return s;
  };
  for (int round = 0; round < 20'000; ++round) {
    const std::vector<std::string> stops = {word(1, 4), word(1, 4), word(1, 5)};
    const std::string text = word(0, 16);
    std::string expected = text;
    for (size_t end = 1; end <= text.size() && expected == text; ++end) {
      size_t longest = 0;
      for (const std::string& stop : stops) {
        if (text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
      }
      if (longest > 0) expected = text.substr(0, end - longest);
      if (longest > 0) break;
    }
    for (size_t step : {1, 2, 3, 16}) ASSERT_EQ(show(stops, text, step).all, expected) << text;
  }
}

TEST(BugG18, HoldsBackOnlyARealBeginningOfAStop) {
  const Shown free = show({"zzzzzzzz"}, "The quick brown fox", 1);
  EXPECT_EQ(free.parts.size(), 19u) << "every character goes out at once";
  StopMatcher matcher({"zzzzzzzz"});
  EXPECT_EQ(matcher.push("Hello").text, "Hello");
  EXPECT_EQ(matcher.push(" zz").text, " ");
  EXPECT_EQ(matcher.pending_bytes(), 2u);
  EXPECT_EQ(matcher.push("a").text, "zza");
}

TEST(BugG27, StopStringsWorkOverTokens) {
  const Tokenizer& t = bytes_tokenizer();
  const std::string text = "say hello world and more";
  const auto ids = t.encode(text, {.add_special_tokens = false});
  const auto single = byte_ids(t, text);
  for (const auto& tokens : {ids, single}) {
    for (size_t step = 1; step < 7; ++step) {
      TextStream stream(t, {.stop = {"lo wor"}});
      std::string all;
      size_t used = 0;
      for (size_t at = 0; at < tokens.size() && !stream.stopped(); at += step) {
        const TextDelta delta =
            stream.push(std::span(tokens).subspan(at, std::min(step, tokens.size() - at)));
        all += delta.text;
        used += delta.tokens_used;
        EXPECT_EQ(delta.offsets.size(), delta.tokens_used);
      }
      EXPECT_EQ(all, "say hel");
      EXPECT_EQ(stream.stop_string(), "lo wor");
      EXPECT_EQ(static_cast<int64_t>(used), stream.tokens());
      // Up to the token that completed it, no further.
      EXPECT_EQ(t.decode(std::span(tokens).first(used)).find("lo wor") != std::string::npos, true);
      EXPECT_EQ(t.decode(std::span(tokens).first(used - 1)).find("lo wor"), std::string::npos);
      EXPECT_EQ(stream.push(tokens).tokens_used, 0u) << "nothing after a stop";
      EXPECT_EQ(stream.finish().text, "");
    }
  }
}

TEST(TextStream, OffsetsAreInCharacters) {
  const Tokenizer& t = bytes_tokenizer();
  TextStream stream(t, {.stop = {"never"}});
  auto ids = byte_ids(t, "é");
  ids.push_back(*t.find_token("hello"));
  for (TokenId id : byte_ids(t, "你n")) ids.push_back(id);
  const TextDelta delta = stream.push(ids);
  EXPECT_EQ(delta.text, "éhello你");
  EXPECT_THAT(delta.offsets, testing::ElementsAre(0, 0, 1, 6, 6, 6, 7));
  EXPECT_EQ(stream.finish().text, "n");
}

TEST(TextStream, FinishFlushesBothStages) {
  const Tokenizer& t = bytes_tokenizer();
  TextStream stream(t, {.stop = {"xyz"}});
  EXPECT_EQ(stream.push(byte_ids(t, "a xy\xE4")).text, "a ");
  const TextDelta last = stream.finish();
  EXPECT_EQ(last.text, "xy\uFFFD");
  EXPECT_FALSE(last.stopped);
  TextStream odd(t, {.stop = {"x\uFFFD"}});
  EXPECT_EQ(odd.push(byte_ids(t, "ax\xE4")).text, "a");
  EXPECT_TRUE(odd.finish().stopped);
}

}  // namespace
}  // namespace attune::text
