#include "base/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace attune::base {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const void* address_of(const Flag& flag) {
  return std::visit([](const auto* target) -> const void* { return target; }, flag.target);
}

// That no member is left out does not compile otherwise (settings_table.cc); here: none is bound
// twice, none lies outside, no name clashes.
TEST(Settings, EachRowBindsAMemberOfItsOwn) {
  Options options;
  std::set<const void*> members;
  std::set<std::string_view> names;
  for (const Flag& flag : option_flags(options)) {
    auto* address = static_cast<const char*>(address_of(flag));
    EXPECT_GE(address, reinterpret_cast<const char*>(&options));
    EXPECT_LT(address, reinterpret_cast<const char*>(&options + 1));
    EXPECT_TRUE(members.insert(address).second) << flag.name;
    EXPECT_TRUE(names.insert(flag.name).second) << flag.name;
    EXPECT_FALSE(flag.help.empty() || flag.group.empty()) << flag.name;
  }
}

// What a row says is allowed is what it takes, and the default is among it.
TEST(Settings, DefaultsAndChoicesAreAccepted) {
  Options options;
  for (const Flag& flag : option_flags(options)) {
    std::string text = flag_text(flag);
    EXPECT_TRUE(text.empty() || set_flag(flag, flag.name, text).ok()) << flag.name;
    for (std::string_view choice : flag.rule.choices)
      EXPECT_TRUE(set_flag(flag, flag.name, choice).ok());
  }
}

TEST(Settings, FlagBeatsEnvironmentBeatsFileBeatsDefaultInAnyOrder) {
  auto check = [](const Settings& settings) {
    const Options& options = settings.options();
    EXPECT_EQ(options.page_size, 64);
    EXPECT_EQ(settings.source("page-size"), SettingSource::kCommandLine);
    EXPECT_EQ(options.port, 2);
    EXPECT_EQ(settings.source("port"), SettingSource::kEnvironment);
    EXPECT_EQ(options.threads, 3);
    EXPECT_EQ(settings.source("threads"), SettingSource::kConfigFile);
    EXPECT_EQ(options.host, "127.0.0.1");
    EXPECT_EQ(settings.source("host"), SettingSource::kDefault);
  };
  const std::vector<std::string> args = {"--page-size", "64"};
  const std::vector<std::string> environment = {"HOME=/", "ATTUNE_PAGE_SIZE=32", "ATTUNE_PORT=2"};
  const std::vector<ConfigEntry> config = {
      {"page_size", {"16"}}, {"port", {"1"}}, {"threads", {"3"}}};
  {
    Settings settings;
    ASSERT_TRUE(settings.apply_config("f", config).ok());
    ASSERT_TRUE(settings.apply_environment(environment).ok());
    ASSERT_TRUE(settings.apply_args(args).ok());
    check(settings);
  }
  {
    Settings settings;
    ASSERT_TRUE(settings.apply_args(args).ok());
    ASSERT_TRUE(settings.apply_environment(environment).ok());
    ASSERT_TRUE(settings.apply_config("f", config).ok());
    check(settings);
  }
}

TEST(Settings, AWeakerLayersMistakeIsHeardThoughItWouldNotCount) {
  Settings settings;
  ASSERT_TRUE(settings.apply_args({"--port", "1"}).ok());
  Status status = settings.apply_environment({"ATTUNE_PORT=none"});
  EXPECT_EQ(status.message(), "ATTUNE_PORT: 'none' is not a whole number from 0 to 65535");
  EXPECT_EQ(settings.options().port, 1);
}

TEST(Settings, ConfigFilesAreReadStrictly) {
  Settings settings;
  EXPECT_THAT(settings.apply_config("c.json", {{"page_sise", {"16"}}}).message(),
              HasSubstr("c.json: unknown key 'page_sise' (did you mean page_size?)"));
  EXPECT_THAT(settings.apply_config("c.json", {{"port", {"1", "2"}}}).message(),
              HasSubstr("c.json: port takes one value"));
  ASSERT_TRUE(settings
                  .apply_config("c.json", {{"allowed_origins", {"http://a", "http://b"}},
                                           {"log_requests", {"true"}}})
                  .ok());
  EXPECT_THAT(settings.options().allowed_origins, ElementsAre("http://a", "http://b"));
  EXPECT_TRUE(settings.options().log_requests);
}

TEST(Settings, OwnFlagsOfASubcommandStandBesideTheSettings) {
  Settings settings;
  int32_t prompts = 0;
  auto parsed = settings.apply_args({"--num-prompts=5", "--port=9", "x"},
                                    {{"num-prompts", &prompts, "bench", "N", "requests"}});
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(prompts, 5);
  EXPECT_EQ(settings.options().port, 9);
  EXPECT_THAT(parsed->positionals, ElementsAre("x"));
}

TEST(Settings, MistakesOfEveryLayerCanBeGathered) {
  Settings settings;
  std::vector<FlagError> errors;
  ASSERT_TRUE(settings.apply_args({"--page-size=x", "--dtype=float32"}, {}, &errors).ok());
  ASSERT_TRUE(settings.apply_environment({"ATTUNE_PORT=y", "ATTUNE_THREADS=3"}, &errors).ok());
  ASSERT_TRUE(
      settings.apply_config("f.json", {{"page_sise", {"1"}}, {"host", {"h"}}}, &errors).ok());
  ASSERT_EQ(errors.size(), 3u);
  EXPECT_EQ(errors[0].flag, "--page-size");
  EXPECT_EQ(errors[1].flag, "ATTUNE_PORT");
  EXPECT_EQ(errors[1].mend, "give ATTUNE_PORT a whole number from 0 to 65535");
  EXPECT_EQ(errors[2].flag, "page_sise");
  EXPECT_EQ(settings.options().page_size, 0);
  EXPECT_EQ(settings.options().dtype, "float32");
  EXPECT_EQ(settings.options().threads, 3);
  EXPECT_EQ(settings.options().host, "h");
}

TEST(Settings, ASubcommandMayAllowMoreChoicesInEveryLayer) {
  Settings strict;
  EXPECT_FALSE(strict.apply_args({"--device=sm90"}).ok());
  Settings settings;
  settings.allow("device", {"cpu", "sm90"});
  ASSERT_TRUE(settings.apply_environment({"ATTUNE_DEVICE=sm90"}).ok());
  EXPECT_EQ(settings.options().device, "sm90");
  ASSERT_TRUE(settings.apply_args({"--device=cuda"}).ok());
  ASSERT_TRUE(settings.apply_config("f", {{"device", {"sm90"}}}).ok());
  EXPECT_EQ(settings.options().device, "cuda");
}

TEST(Settings, AnOwnFlagHidesTheSettingOfItsName) {
  Settings settings;
  std::string model;
  ASSERT_TRUE(
      settings.apply_args({"--model=x"}, {{"model", &model, "bench", "NAME", "name"}}).ok());
  EXPECT_EQ(model, "x");
  EXPECT_EQ(settings.options().model, Options().model);
  EXPECT_EQ(settings.source("model"), SettingSource::kDefault);
}

TEST(BugB01, AnEnvironmentNameThatNobodyReadsIsTold) {
  Settings settings;
  ASSERT_TRUE(settings
                  .apply_environment({"ATTUNE_ATENTION_BACKEND=cpu", "ATTUNE_MODEL_PATH=x",
                                      "ATTUNE_COLOUR=red", "OTHER=1"})
                  .ok());
  EXPECT_EQ(settings.options().model, "x");  // a second name is one all the same
  ASSERT_EQ(settings.warnings().size(), 2u);
  EXPECT_THAT(settings.warnings()[0],
              HasSubstr("ATTUNE_ATENTION_BACKEND is no setting and has no effect (did you mean "
                        "ATTUNE_ATTENTION_BACKEND?)"));
  EXPECT_THAT(settings.warnings()[1], HasSubstr("ATTUNE_COLOUR is no setting"));
}

// /get_server_info and the start's summary show these: values in force with their sources, never
// keys.
TEST(Settings, ShowsValuesSourcesAndNoSecrets) {
  Settings settings;
  ASSERT_TRUE(settings.apply_args({"--api-key=hunter2", "--dtype=float32"}).ok());
  std::string json = settings.to_json();
  EXPECT_THAT(json, HasSubstr("\"dtype\":{\"value\":\"float32\",\"source\":\"flag\"}"));
  EXPECT_THAT(json, HasSubstr("\"port\":{\"value\":30000,\"source\":\"default\"}"));
  EXPECT_THAT(json, Not(HasSubstr("hunter2")));
  EXPECT_THAT(settings.to_table(), Not(HasSubstr("hunter2")));
  EXPECT_EQ(settings.to_table(true), "dtype    float32  flag\napi-key  ***      flag\n");
}

}  // namespace
}  // namespace attune::base
