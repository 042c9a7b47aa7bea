// Typed command-line flags as a table: each row names a variable, what it accepts and what it is
// for. Settings (base/settings.h) and each subcommand's own flags (src/cli) are both such tables.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "attune/status.h"

namespace attune::base {

// What a flag accepts beyond its type; every member may be left out.
struct FlagRule {
  std::vector<std::string_view> choices = {};  // empty: anything of the type within [min, max]
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  std::string_view alias = {};  // a second name, for those who know it from elsewhere
  bool secret = false;          // never shown
};

struct Flag {
  using Target = std::variant<bool*, int32_t*, int64_t*, uint64_t*, double*, std::string*,
                              std::vector<std::string>*>;

  std::string_view name;   // "page-size": --page-size and --page_size
  Target target;           // not owned; holds the default until something is set
  std::string_view group;  // heading in --help
  std::string_view value;  // placeholder in --help: "TOKENS"; empty for switches and choices
  std::string_view help;
  FlagRule rule = {};
};

// Parses `text` into the flag's target. `spelled` is how the user wrote the name ("--page-size",
// "ATTUNE_PAGE_SIZE", "page_size in FILE"); errors start with it and say what is allowed. A list
// takes "a,b" and appends to what is there.
Status set_flag(const Flag& flag, std::string_view spelled, std::string_view text);

// The variable's value as text: "true", "16", "0.9", "a,b". Secrets read "***" unless empty.
std::string flag_text(const Flag& flag);
// The same as a JSON value: true, 16, 0.9, ["a","b"], "...".
std::string flag_json(const Flag& flag);

// What it accepts, in words: "a whole number from 0 to 65535", "auto, cpu, cuda", "true or false".
std::string flag_values(const Flag& flag);
// How to mend a bad value: "give --port a whole number from 0 to 65535".
std::string flag_mend(const Flag& flag, std::string_view spelled);

// The row called `name` (either spelling, or the alias), or null.
const Flag* find_flag(const std::vector<Flag>& flags, std::string_view name);
// " (did you mean X?)" with the candidate nearest to `name`, or "" when none is near.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

// A mistake of a user's that is told beside others, instead of ending the reading.
struct FlagError {
  std::string flag;  // as it was spelled: "--page-sise", "ATTUNE_PORT"
  std::string text, mend;
};

struct ParsedFlags {
  std::vector<std::string_view> set;     // names of the rows given, in order, each once
  std::vector<std::string> positionals;  // the rest
  bool help = false;                     // --help or -h was there; nothing after it was read
};
// Reads `args` (without the program's and subcommand's names): --name VALUE, --name=VALUE,
// --switch,
// --no-switch, --switch=true|false; "--" ends the flags. Values are set as they are read.
// The last of several values wins; lists gather theirs. invalid_argument names the flag, the value
// and what is allowed. With `errors`, mistakes are added to it and reading goes on: a bad value
// leaves its target as it is, and an unknown flag takes the argument behind it as its value.
Result<ParsedFlags> parse_flags(const std::vector<Flag>& flags,
                                const std::vector<std::string>& args,
                                std::vector<FlagError>* errors = nullptr);

// "--help" text: the groups in order of first appearance, one flag after the other, 100 columns.
std::string flags_help(const std::vector<Flag>& flags);

}  // namespace attune::base
