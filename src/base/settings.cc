#include "base/settings.h"

#include <algorithm>
#include <cctype>

#include "base/check.h"
#include "base/log.h"
#include "base/quote.h"

namespace attune::base {

const char* setting_source_name(SettingSource source) {
  switch (source) {
    case SettingSource::kDefault:
      return "default";
    case SettingSource::kConfigFile:
      return "config";
    case SettingSource::kEnvironment:
      return "env";
    case SettingSource::kCommandLine:
      return "flag";
  }
  return "unknown";
}

namespace {

constexpr std::string_view kEnvironmentPrefix = "ATTUNE_";

// "page_size" for "ATTUNE_PAGE_SIZE".
std::string flag_of_environment(std::string_view name) {
  std::string flag(name.substr(kEnvironmentPrefix.size()));
  for (char& c : flag) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return flag;
}

// The status, unless its mistake goes to `errors`.
Status noted(Status status, std::string_view flag, std::string mend,
             std::vector<FlagError>* errors) {
  if (status.ok() || !errors) return status;
  errors->push_back({std::string(flag), status.message(), std::move(mend)});
  return {};
}

}  // namespace

std::string environment_name(std::string_view flag) {
  std::string name(kEnvironmentPrefix);
  for (char c : flag)
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

std::string json_key(std::string_view flag) {
  std::string key(flag);
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

Settings::Settings()
    : rows_(option_flags(options_)), sources_(rows_.size(), SettingSource::kDefault) {}

void Settings::allow(std::string_view name, const std::vector<std::string>& choices) {
  const Flag* flag = find_flag(rows_, name);
  ATTUNE_CHECK(flag != nullptr);
  Flag& row = rows_[flag - rows_.data()];
  for (const std::string& choice : extra_choices_.emplace_back(choices))
    if (std::find(row.rule.choices.begin(), row.rule.choices.end(), choice) ==
        row.rule.choices.end())
      row.rule.choices.push_back(choice);
}

Status Settings::set(size_t row, std::string_view spelled, const std::vector<std::string>& values,
                     SettingSource source) {
  // A weaker layer is read all the same, so that its mistakes are heard, but changes nothing.
  Options scratch = options_;
  bool weaker = source < sources_[row];
  Flag target = rows_[row];
  if (weaker) target.target = option_flags(scratch)[row].target;
  if (auto* list = std::get_if<std::vector<std::string>*>(&target.target)) {
    (*list)->clear();
  } else if (values.size() != 1) {
    return invalid_argument(cat(spelled, " takes one value, not a list"));
  }
  for (const std::string& value : values) ATTUNE_RETURN_IF_ERROR(set_flag(target, spelled, value));
  if (!weaker) sources_[row] = source;
  return {};
}

Result<ParsedFlags> Settings::apply_args(const std::vector<std::string>& args,
                                         const std::vector<Flag>& own,
                                         std::vector<FlagError>* errors) {
  std::vector<Flag> all = own;
  for (const Flag& row : rows_) {
    if (!find_flag(own, row.name)) all.push_back(row);
  }
  ATTUNE_ASSIGN_OR_RETURN(ParsedFlags parsed, parse_flags(all, args, errors));
  for (std::string_view name : parsed.set) {
    if (find_flag(own, name)) continue;
    sources_[find_flag(rows_, name) - rows_.data()] = SettingSource::kCommandLine;
  }
  return parsed;
}

Status Settings::apply_environment(const std::vector<std::string>& environment,
                                   std::vector<FlagError>* errors) {
  std::vector<std::string> known;
  for (const Flag& flag : rows_) known.push_back(environment_name(flag.name));
  for (const std::string& entry : environment) {
    size_t equals = entry.find('=');
    std::string name = entry.substr(0, equals);
    if (equals == std::string::npos || !name.starts_with(kEnvironmentPrefix)) continue;
    if (const Flag* flag = find_flag(rows_, flag_of_environment(name))) {
      ATTUNE_RETURN_IF_ERROR(noted(
          set(flag - rows_.data(), name, {entry.substr(equals + 1)}, SettingSource::kEnvironment),
          name, flag_mend(*flag, name), errors));
    } else {
      warnings_.push_back(cat("environment variable ", name, " is no setting and has no effect",
                              did_you_mean(name, known)));
    }
  }
  return {};
}

Status Settings::apply_config(std::string_view file, const std::vector<ConfigEntry>& entries,
                              std::vector<FlagError>* errors) {
  std::vector<std::string> keys;
  for (const Flag& flag : rows_) keys.push_back(json_key(flag.name));
  for (const ConfigEntry& entry : entries) {
    const Flag* flag = find_flag(rows_, entry.key);
    const Status status = flag ? set(flag - rows_.data(), cat(file, ": ", entry.key), entry.values,
                                     SettingSource::kConfigFile)
                               : invalid_argument(cat(file, ": unknown key '", entry.key, "'",
                                                      did_you_mean(entry.key, keys)));
    ATTUNE_RETURN_IF_ERROR(
        noted(status, entry.key,
              flag ? flag_mend(*flag, entry.key) : "docs/settings.md lists all keys", errors));
  }
  return {};
}

SettingSource Settings::source(std::string_view name) const {
  const Flag* flag = find_flag(rows_, name);
  ATTUNE_CHECK(flag != nullptr);
  return sources_[flag - rows_.data()];
}

std::string Settings::to_json() const {
  std::string out;
  for (size_t i = 0; i < rows_.size(); ++i) {
    out +=
        cat(i ? "," : "", json_quote(json_key(rows_[i].name)), ":{\"value\":", flag_json(rows_[i]),
            ",\"source\":\"", setting_source_name(sources_[i]), "\"}");
  }
  return "{" + out + "}";
}

std::string Settings::to_table(bool changed_only) const {
  size_t name_width = 0, value_width = 0;
  auto shown = [&](size_t i) { return !changed_only || sources_[i] != SettingSource::kDefault; };
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (!shown(i)) continue;
    name_width = std::max(name_width, rows_[i].name.size());
    value_width = std::max(value_width, flag_text(rows_[i]).size());
  }
  std::string out;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (!shown(i)) continue;
    std::string name(rows_[i].name), value = flag_text(rows_[i]);
    name.resize(name_width + 2, ' ');
    value.resize(value_width + 2, ' ');
    out += cat(name, value, setting_source_name(sources_[i]), "\n");
  }
  return out;
}

}  // namespace attune::base
