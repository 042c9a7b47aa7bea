// What every subcommand shares: how its command line is read and how it reports.
// Exit codes (README.md): 0 done; 1 failed, a broken or unsupported model file included; 2
// the command line or the configuration cannot work as asked, a file that is not there included.
// With --json, standard output gets one JSON document (or one a line) and nothing else, whatever
// the exit code; logs and messages go to standard error.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/settings.h"

namespace attune::cli {

constexpr int kExitOk = 0;
constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

using Args = std::vector<std::string>;

// One subcommand; main.cc lists them.
struct Command {
  const char* name;
  const char* summary;  // one line of `attune --help`
  int (*run)(const Args& args);
};

// Runs the command that args[0] names with the rest, or tells which there are.
int dispatch(std::string_view program, std::span<const Command> commands, const Args& args);

int run_serve(const Args& args);
int run_generate(const Args& args);
int run_chat(const Args& args);
int run_inspect(const Args& args);
int run_inspect_kv(const Args& args);
int run_explain(const Args& args);

// How a subcommand presents itself in --help.
struct Usage {
  std::string_view name;         // "inspect"
  std::string_view positionals;  // "[FILE]"
  std::string_view about;        // a few lines
  size_t max_positionals = 0;
  bool names_model = false;  // the positional is another way to write --model
  // Groups and flags of the settings that matter here, for --help; all are accepted anyway.
  std::vector<std::string_view> shows = {};
};

// Settings that matter to whatever runs the engine by itself.
std::vector<std::string_view> engine_settings();

// A command line as read: settings in all their layers, and whether to answer in JSON.
struct Invocation {
  base::Settings settings;
  bool json = false;
  std::vector<std::string> positionals;
  // Set before reading: mistakes are gathered in `mistakes` instead of ending the command.
  bool gather_mistakes = false;
  std::vector<base::FlagError> mistakes;
};

// Reads --config, the environment and `args` (with the subcommand's `own` flags) into `invocation`,
// logs warnings, sets the log level. A value: the exit code to end with at once (help, errors).
std::optional<int> read_command_line(const Usage& usage, const Args& args,
                                     std::vector<base::Flag> own, Invocation& invocation);

// Tells what went wrong, as a line on standard error or, with `json`, as {"error":{...}} on
// standard output; gives the exit code.
int report(const Status& status, bool json);

}  // namespace attune::cli
