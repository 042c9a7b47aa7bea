// Every setting of the engine and server: the one table that binds each member of attune::Options
// to its flag (--page-size), environment name (ATTUNE_PAGE_SIZE), JSON key (page_size), type, range
// and help text. A value set on the command line wins over the environment, which wins over a
// configuration file, which wins over the default.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attune/options.h"
#include "attune/status.h"
#include "base/flags.h"

namespace attune::base {

enum class SettingSource : uint8_t { kDefault, kConfigFile, kEnvironment, kCommandLine };
const char* setting_source_name(SettingSource source);  // "default", "config", "env", "flag"

// The rows, bound to `options`, which must outlive them.
std::vector<Flag> option_flags(Options& options);

// One key of a configuration file with its value as text; a list has any number of values.
struct ConfigEntry {
  std::string key;
  std::vector<std::string> values;
};

// Options together with where each value came from. Layers may be applied in any order: a value is
// never replaced by one of a weaker source. Not thread-safe; not movable (the rows point inside).
class Settings {
 public:
  Settings();
  Settings(const Settings&) = delete;
  Settings& operator=(const Settings&) = delete;

  const Options& options() const { return options_; }
  // For defaults of a subcommand's own, before the layers are applied.
  Options& mutable_options() { return options_; }

  // For a subcommand that takes more values of a setting than the rest.
  void allow(std::string_view name, const std::vector<std::string>& choices);

  // With `errors`, a layer's mistakes are added to it and what they touch stays as it is.

  // Reads settings and the subcommand's `own` flags from the command line; an own flag hides a
  // setting of its name.
  Result<ParsedFlags> apply_args(const std::vector<std::string>& args,
                                 const std::vector<Flag>& own = {},
                                 std::vector<FlagError>* errors = nullptr);
  // Reads every ATTUNE_... variable of `environ`-like strings "NAME=value". A name in our namespace
  // that nobody reads is not an error; warnings() says so.
  Status apply_environment(const std::vector<std::string>& environment,
                           std::vector<FlagError>* errors = nullptr);
  // Reads the members of one JSON object; `file` is for messages. Unknown keys are errors.
  Status apply_config(std::string_view file, const std::vector<ConfigEntry>& entries,
                      std::vector<FlagError>* errors = nullptr);

  SettingSource source(std::string_view name) const;
  const std::vector<std::string>& warnings() const { return warnings_; }

  // {"page_size":{"value":16,"source":"flag"},...}, in the table's order; secrets are masked.
  std::string to_json() const;
  // Flag, value and source in aligned columns; with `changed_only`, only what is not a default.
  std::string to_table(bool changed_only = false) const;

 private:
  Status set(size_t row, std::string_view spelled, const std::vector<std::string>& values,
             SettingSource source);

  Options options_;
  std::vector<Flag> rows_;
  std::vector<SettingSource> sources_;
  std::vector<std::string> warnings_;
  std::vector<std::vector<std::string>> extra_choices_;  // what allow() added, to point into
};

// "ATTUNE_PAGE_SIZE" and "page_size" for "page-size".
std::string environment_name(std::string_view flag);
std::string json_key(std::string_view flag);

// docs/settings.md, whole.
std::string settings_markdown();

}  // namespace attune::base
