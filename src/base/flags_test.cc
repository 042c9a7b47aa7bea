#include "base/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace attune::base {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Values {
  bool quiet = false, no_fallback = false;
  int32_t count = 3;
  int64_t bytes = 0;
  uint64_t seed = 0;
  double share = 0.5;
  std::string name = "x", key, kind = "auto";
  std::vector<std::string> origins = {"default"};

  std::vector<Flag> flags() {
    return {
        {"quiet", &quiet, "G", "", "say less"},
        {"no-fallback", &no_fallback, "G", "", "a switch whose own name begins with no-"},
        {"count", &count, "G", "N", "how many", {.min = -1, .max = 100, .alias = "number"}},
        {"max-bytes", &bytes, "G", "N", "bytes"},
        {"seed", &seed, "G", "N", "seed"},
        {"share", &share, "H", "X", "share", {.min = 0, .max = 1}},
        {"name", &name, "H", "TEXT", "name"},
        {"api-key", &key, "H", "KEY", "key", {.secret = true}},
        {"kind", &kind, "H", "", "kind", {.choices = {"auto", "float32", "bfloat16"}}},
        {"origins", &origins, "H", "A,B", "origins"},
    };
  }
};

std::string error_of(std::vector<std::string> args) {
  Values v;
  auto parsed = parse_flags(v.flags(), args);
  return parsed.ok() ? "no error" : parsed.status().message();
}

TEST(Flags, ReadsEveryTypeAndSpelling) {
  Values v;
  auto parsed = parse_flags(v.flags(), {"--quiet", "--count", "-1", "--max_bytes=9000000000",
                                        "--seed", "18446744073709551615", "--share=0.25", "--name",
                                        "a b", "file", "--kind", "bfloat16", "--", "--seed"});
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_TRUE(v.quiet);
  EXPECT_EQ(v.count, -1);
  EXPECT_EQ(v.bytes, 9000000000);
  EXPECT_EQ(v.seed, UINT64_MAX);
  EXPECT_EQ(v.share, 0.25);
  EXPECT_EQ(v.name, "a b");
  EXPECT_EQ(v.kind, "bfloat16");
  EXPECT_THAT(parsed->positionals, ElementsAre("file", "--seed"));
  EXPECT_THAT(parsed->set,
              ElementsAre("quiet", "count", "max-bytes", "seed", "share", "name", "kind"));
}

TEST(Flags, SwitchesCanBeTurnedOff) {
  Values v;
  v.quiet = true;
  ASSERT_TRUE(parse_flags(v.flags(), {"--no-quiet", "--no-fallback"}).ok());
  EXPECT_FALSE(v.quiet);
  EXPECT_TRUE(v.no_fallback);
  ASSERT_TRUE(parse_flags(v.flags(), {"--quiet=true", "--no-no-fallback"}).ok());
  EXPECT_TRUE(v.quiet);
  EXPECT_FALSE(v.no_fallback);
  EXPECT_THAT(error_of({"--no-quiet=true"}), HasSubstr("--no-quiet takes no value"));
  EXPECT_THAT(error_of({"--no-count"}), HasSubstr("unknown flag --no-count"));
}

TEST(Flags, ListsReplaceTheDefaultAndGather) {
  Values v;
  ASSERT_TRUE(parse_flags(v.flags(), {"--origins", "a,b", "--origins=c"}).ok());
  EXPECT_THAT(v.origins, ElementsAre("a", "b", "c"));
  ASSERT_TRUE(parse_flags(v.flags(), {"--origins="}).ok());
  EXPECT_TRUE(v.origins.empty());
  EXPECT_THAT(error_of({"--origins", "a,,b"}), HasSubstr("an item of the list is empty"));
}

TEST(Flags, TheLastValueWinsAndAliasesCount) {
  Values v;
  ASSERT_TRUE(parse_flags(v.flags(), {"--count", "1", "--number=2"}).ok());
  EXPECT_EQ(v.count, 2);
}

TEST(Flags, RefusalsNameTheFlagTheValueAndWhatIsAllowed) {
  EXPECT_EQ(error_of({"--count", "12x"}), "--count: '12x' is not a whole number from -1 to 100");
  EXPECT_EQ(error_of({"--count=101"}), "--count: '101' is not a whole number from -1 to 100");
  EXPECT_EQ(error_of({"--count=99999999999"}),
            "--count: '99999999999' is not a whole number from -1 to 100");
  EXPECT_EQ(error_of({"--count="}), "--count: '' is not a whole number from -1 to 100");
  EXPECT_EQ(error_of({"--seed=-1"}), "--seed: '-1' is not a whole number");
  EXPECT_EQ(error_of({"--share=nan"}), "--share: 'nan' is not a number from 0 to 1");
  EXPECT_EQ(error_of({"--share=1.5"}), "--share: '1.5' is not a number from 0 to 1");
  EXPECT_EQ(error_of({"--quiet=maybe"}), "--quiet: 'maybe' is not true or false");
  EXPECT_EQ(error_of({"--kind=bf16"}),
            "--kind: 'bf16' is not one of auto, float32, bfloat16 (did you mean bfloat16?)");
  EXPECT_EQ(error_of({"--count"}), "--count needs a value: --count N");
  EXPECT_EQ(error_of({"--name", "--quiet"}), "--name needs a value: --name TEXT");
  EXPECT_THAT(error_of({"--max-byte", "3"}),
              HasSubstr("unknown flag --max-byte (did you mean --max-bytes?)"));
  EXPECT_THAT(error_of({"--utterly-else"}),
              HasSubstr("unknown flag --utterly-else; --help lists all"));
  EXPECT_EQ(error_of({"-x", "3"}), "unknown flag -x; flags start with --; --help lists all");
  EXPECT_THAT(error_of({"--="}), HasSubstr("unknown flag --"));
}

TEST(Flags, SuggestsWhatIsNearestAndNothingWhenNothingIsNear) {
  const std::vector<std::string> flags = {"--chat-template",      "--served-model-name",
                                          "--random-seed",        "--port",
                                          "--max-prefill-tokens", "--max-total-tokens"};
  EXPECT_EQ(did_you_mean("--tp", flags), "");
  EXPECT_EQ(did_you_mean("--seed", flags), " (did you mean --random-seed?)");
  EXPECT_EQ(did_you_mean("--prot", flags), " (did you mean --port?)");
  EXPECT_EQ(did_you_mean("--max-totl-tokens", flags), " (did you mean --max-total-tokens?)");
  EXPECT_EQ(did_you_mean("--x", flags), "");
  EXPECT_EQ(did_you_mean("ATTUNE_TP", {"ATTUNE_DTYPE", "ATTUNE_PORT"}), "");
  EXPECT_EQ(did_you_mean("ATTUNE_DTIPE", {"ATTUNE_DTYPE"}), " (did you mean ATTUNE_DTYPE?)");
  EXPECT_EQ(did_you_mean("srve", {"serve", "chat"}), " (did you mean serve?)");
  EXPECT_EQ(did_you_mean("--x", {"serve"}), "");
  EXPECT_EQ(did_you_mean("_-_", {"serve"}), "");
  EXPECT_EQ(did_you_mean("-", {"serve"}), "");
  EXPECT_EQ(did_you_mean("bf16", {"float16", "bfloat16", "float32"}), " (did you mean bfloat16?)");
}

TEST(Flags, ThoseOfOtherEnginesAreToldOurs) {
  int32_t length = 0, threads = 0;
  const std::vector<Flag> flags = {{"context-length", &length, "G", "N", "length"},
                                   {"threads", &threads, "G", "N", "threads"}};
  const auto refusal = [&](std::vector<std::string> args) {
    return parse_flags(flags, args).status().message();
  };
  for (const char* name : {"-c", "--ctx-size", "--max-model-len", "--max_model_len"}) {
    EXPECT_THAT(refusal({name, "10"}), HasSubstr("here it is --context-length")) << name;
    EXPECT_THAT(refusal({std::string(name) + "=10"}), HasSubstr("--context-length")) << name;
  }
  EXPECT_THAT(refusal({"-t", "2"}), HasSubstr("here it is --threads"));
  EXPECT_THAT(refusal({"--tp", "2"}), HasSubstr("single device"));
  EXPECT_THAT(refusal({"-m", "x"}), testing::Not(HasSubstr("here it is")));  // no such row here
}

TEST(Flags, ARefusedValueChangesNothing) {
  Values v;
  EXPECT_FALSE(parse_flags(v.flags(), {"--count", "1000"}).ok());
  EXPECT_EQ(v.count, 3);
}

TEST(Flags, MistakesCanBeGatheredWhileTheRestIsRead) {
  Values v;
  std::vector<FlagError> errors;
  auto parsed = parse_flags(v.flags(),
                            {"--count=many", "--quite", "--unknown", "its-value", "-z", "--seed",
                             "7", "--kind=avto", "file"},
                            &errors);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(v.count, 3);
  EXPECT_EQ(v.seed, 7u);
  EXPECT_THAT(parsed->positionals, ElementsAre("file"));
  ASSERT_EQ(errors.size(), 5u);
  EXPECT_EQ(errors[0].flag, "--count");
  EXPECT_EQ(errors[0].mend, "give --count a whole number from -1 to 100");
  EXPECT_EQ(errors[1].text, "unknown flag --quite (did you mean --quiet?)");
  EXPECT_EQ(errors[2].flag, "--unknown");
  EXPECT_EQ(errors[3].flag, "-z");
  EXPECT_THAT(errors[4].mend, HasSubstr("give --kind one of: "));
}

TEST(Flags, HelpEndsTheReading) {
  Values v;
  auto parsed = parse_flags(v.flags(), {"--help", "--nonsense"});
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE(parsed->help);
  std::string help = flags_help(v.flags());
  EXPECT_THAT(help, HasSubstr("\nG:\n  --quiet"));
  EXPECT_THAT(help, HasSubstr("--count N                         how many [3]"));
  EXPECT_THAT(help, HasSubstr("--kind auto|float32|bfloat16"));
  for (size_t at = 0; at < help.size();) {
    size_t end = help.find('\n', at);
    EXPECT_LE(end - at, 100u) << help.substr(at, end - at);
    at = end + 1;
  }
}

TEST(Flags, SecretsAreNeverShown) {
  Values v;
  ASSERT_TRUE(parse_flags(v.flags(), {"--api-key", "hunter2"}).ok());
  EXPECT_EQ(v.key, "hunter2");
  auto flags = v.flags();
  EXPECT_EQ(flag_text(*find_flag(flags, "api-key")), "***");
  EXPECT_EQ(flag_json(*find_flag(flags, "api-key")), "\"***\"");
  EXPECT_THAT(flags_help(flags), testing::Not(HasSubstr("hunter2")));
}

TEST(Flags, ValuesReadBackAsTheyAreWritten) {
  Values v;
  auto flags = v.flags();
  for (const char* text : {"0.1", "1", "0.30000000000000004", "1e-300"}) {
    ASSERT_TRUE(set_flag(*find_flag(flags, "share"), "x", text).ok());
    EXPECT_EQ(flag_text(*find_flag(flags, "share")), text);
  }
  EXPECT_EQ(flag_json(*find_flag(flags, "origins")), "[\"default\"]");
  EXPECT_EQ(flag_json(*find_flag(flags, "quiet")), "false");
}

}  // namespace
}  // namespace attune::base
