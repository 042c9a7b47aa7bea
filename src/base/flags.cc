#include "base/flags.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <type_traits>

#include "base/foreign_flags.h"
#include "base/log.h"
#include "base/quote.h"

namespace attune::base {
namespace {

constexpr size_t kHelpColumn = 36;
constexpr size_t kHelpWidth = 100;

std::string normalized(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

std::string joined(const std::vector<std::string_view>& items, std::string_view separator) {
  std::string out;
  for (std::string_view item : items) out.append(out.empty() ? "" : separator).append(item);
  return out;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

bool is_subsequence(std::string_view part, std::string_view whole) {
  size_t matched = 0;
  for (char c : whole) matched += matched < part.size() && c == part[matched];
  return matched == part.size();
}

// "seed" in "random-seed".
bool is_whole_words(std::string_view part, std::string_view whole) {
  const std::string text = "-" + normalized(whole) + "-";
  return text.find("-" + normalized(part) + "-") != std::string::npos;
}

// Whether somebody who wrote `name` may well have meant `candidate`, which is `distance` away.
bool is_near(std::string_view name, std::string_view candidate, size_t distance) {
  // A third of the letters wrong still reads as the same word; more is a guess.
  const size_t most = std::max<size_t>(name.size() / 3, name.size() > 3 ? 2 : 1);
  if (distance <= most && distance < candidate.size()) return true;
  if (name.size() < 3) return false;
  // "bf16" for "bfloat16": its letters, in order, from the first on, and no small part of it.
  const bool shortened = name[0] == candidate[0] && 2 * name.size() >= candidate.size() &&
                         is_subsequence(name, candidate);
  return shortened || is_whole_words(name, candidate);
}

// The shortest text that reads back as the same double; "1" for 1.0.
std::string number_text(double value) {
  char buffer[32];
  auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  return {buffer, end};
}

Status refused(std::string_view spelled, std::string_view text, const std::string& why) {
  return invalid_argument(cat(spelled, ": '", text, "' ", why));
}

std::string range_text(const Flag& flag) {
  bool low = flag.rule.min > -std::numeric_limits<double>::infinity();
  bool high = flag.rule.max < std::numeric_limits<double>::infinity();
  if (low && high)
    return cat("from ", number_text(flag.rule.min), " to ", number_text(flag.rule.max));
  if (low) return cat(number_text(flag.rule.min), " or more");
  if (high) return cat(number_text(flag.rule.max), " or less");
  return "";
}

template <typename T>
Status set_number(const Flag& flag, std::string_view spelled, std::string_view text, T* target) {
  T value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  bool whole = error == std::errc() && end == text.data() + text.size();
  // Written so that NaN is outside.
  if (!whole || !(double(value) >= flag.rule.min && double(value) <= flag.rule.max))
    return refused(spelled, text, "is not " + flag_values(flag));
  *target = value;
  return {};
}

Status set_bool(std::string_view spelled, std::string_view text, bool* target) {
  if (text == "true" || text == "1") {
    *target = true;
  } else if (text == "false" || text == "0") {
    *target = false;
  } else {
    return refused(spelled, text, "is not true or false");
  }
  return {};
}

Status check_choice(const Flag& flag, std::string_view spelled, std::string_view text) {
  if (flag.rule.choices.empty()) return {};
  if (std::find(flag.rule.choices.begin(), flag.rule.choices.end(), text) !=
      flag.rule.choices.end())
    return {};
  return refused(spelled, text,
                 cat("is not one of ", joined(flag.rule.choices, ", "),
                     did_you_mean(text, {flag.rule.choices.begin(), flag.rule.choices.end()})));
}

Status append_items(const Flag& flag, std::string_view spelled, std::string_view text,
                    std::vector<std::string>* target) {
  while (!text.empty()) {
    size_t comma = text.find(',');
    std::string_view item = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    if (item.empty()) return invalid_argument(cat(spelled, ": an item of the list is empty"));
    ATTUNE_RETURN_IF_ERROR(check_choice(flag, spelled, item));
    target->emplace_back(item);
  }
  return {};
}

bool is_switch(const Flag& flag) {
  return std::holds_alternative<bool*>(flag.target);
}

// A row and what the argument itself says of its value.
struct Match {
  const Flag* flag = nullptr;
  bool negated = false;
};

Match match_flag(const std::vector<Flag>& flags, std::string_view name) {
  if (const Flag* flag = find_flag(flags, name)) return {flag, false};
  std::string plain = normalized(name);
  if (plain.starts_with("no-")) {
    const Flag* flag = find_flag(flags, std::string_view(plain).substr(3));
    if (flag && is_switch(*flag)) return {flag, true};
  }
  return {};
}

// What to use instead of a flag that nobody reads, " (did you mean --threads?)", or "".
std::string instead_of(const std::vector<Flag>& flags, std::string_view spelled) {
  const ForeignFlag* foreign = find_foreign_flag(spelled);
  if (foreign && foreign->flag.empty()) return cat(": ", foreign->remark);
  if (foreign && find_flag(flags, foreign->flag)) {
    return cat(": here it is --", foreign->flag, foreign->remark.empty() ? "" : " (",
               foreign->remark, foreign->remark.empty() ? "" : ")");
  }
  if (!spelled.starts_with("--")) return "; flags start with --";
  std::vector<std::string> names;
  for (const Flag& flag : flags) names.push_back("--" + std::string(flag.name));
  return did_you_mean(normalized(spelled), names);
}

Status unknown_flag(const std::vector<Flag>& flags, std::string_view spelled) {
  return invalid_argument(
      cat("unknown flag ", spelled, instead_of(flags, spelled), "; --help lists all"));
}

// The head of a line of --help: "--page-size TOKENS".
std::string flag_head(const Flag& flag) {
  std::string head = "--" + std::string(flag.name);
  if (!flag.rule.choices.empty()) return head + " " + joined(flag.rule.choices, "|");
  if (!flag.value.empty()) head.append(" ").append(flag.value);
  return head;
}

// "page-size" of "--page-size=16".
std::string_view flag_name(std::string_view arg) {
  arg.remove_prefix(std::min(arg.find_first_not_of('-'), arg.size()));
  return arg.substr(0, arg.find('='));
}

FlagError flag_error(const std::vector<Flag>& flags, std::string_view arg, const Status& status) {
  const Flag* flag = match_flag(flags, flag_name(arg)).flag;
  const std::string spelled(arg.substr(0, arg.find('=')));
  if (flag) return {spelled, status.message(), flag_mend(*flag, spelled)};
  return {spelled, cat("unknown flag ", spelled, instead_of(flags, spelled)),
          "--help lists all flags"};
}

// Reads the flag args[i], and its value when that is the next argument; leaves `i` at the last one
// read.
Status read_flag(const std::vector<Flag>& flags, const std::vector<std::string>& args, size_t& i,
                 ParsedFlags& parsed) {
  std::string_view arg = args[i];
  size_t equals = arg.find('=');
  std::string_view name = arg.substr(2, equals == std::string_view::npos ? equals : equals - 2);
  std::string spelled = "--" + std::string(name);
  auto [flag, negated] = match_flag(flags, name);
  if (!flag) return unknown_flag(flags, spelled);
  bool first = std::find(parsed.set.begin(), parsed.set.end(), flag->name) == parsed.set.end();
  if (first) parsed.set.push_back(flag->name);
  if (auto* list = std::get_if<std::vector<std::string>*>(&flag->target); list && first)
    (*list)->clear();

  if (negated && equals != std::string_view::npos)
    return invalid_argument(cat(spelled, " takes no value"));
  std::string_view text;
  if (equals != std::string_view::npos) {
    text = arg.substr(equals + 1);
  } else if (is_switch(*flag)) {
    text = negated ? "false" : "true";
  } else if (i + 1 < args.size() && !args[i + 1].starts_with("--")) {
    text = args[++i];
  } else {
    return invalid_argument(cat(spelled, " needs a value: ", flag_head(*flag)));
  }
  return set_flag(*flag, spelled, text);
}

void append_wrapped(std::string& out, std::string_view text) {
  size_t column = kHelpColumn;
  while (!text.empty()) {
    size_t space = text.find(' ');
    std::string_view word = text.substr(0, space);
    text = space == std::string_view::npos ? std::string_view() : text.substr(space + 1);
    if (column > kHelpColumn && column + 1 + word.size() > kHelpWidth) {
      out.append("\n").append(kHelpColumn, ' ');
      column = kHelpColumn;
    } else if (column > kHelpColumn) {
      out.append(" ");
      ++column;
    }
    out.append(word);
    column += word.size();
  }
  out.append("\n");
}

}  // namespace

Status set_flag(const Flag& flag, std::string_view spelled, std::string_view text) {
  return std::visit(
      [&](auto* target) -> Status {
        using T = std::remove_pointer_t<decltype(target)>;
        if constexpr (std::is_same_v<T, bool>) {
          return set_bool(spelled, text, target);
        } else if constexpr (std::is_arithmetic_v<T>) {
          return set_number(flag, spelled, text, target);
        } else if constexpr (std::is_same_v<T, std::string>) {
          ATTUNE_RETURN_IF_ERROR(check_choice(flag, spelled, text));
          *target = text;
          return {};
        } else {
          return append_items(flag, spelled, text, target);
        }
      },
      flag.target);
}

std::string flag_values(const Flag& flag) {
  if (!flag.rule.choices.empty()) return joined(flag.rule.choices, ", ");
  return std::visit(
      [&](const auto* target) -> std::string {
        using T = std::remove_cvref_t<decltype(*target)>;
        if constexpr (std::is_same_v<T, bool>) {
          return "true or false";
        } else if constexpr (std::is_arithmetic_v<T>) {
          std::string range = range_text(flag);
          return cat(std::is_floating_point_v<T> ? "a number" : "a whole number",
                     range.empty() ? "" : " ", range);
        } else {
          return std::is_same_v<T, std::string> ? "text" : "a list";
        }
      },
      flag.target);
}

std::string flag_mend(const Flag& flag, std::string_view spelled) {
  return cat("give ", spelled, flag.rule.choices.empty() ? " " : " one of: ", flag_values(flag));
}

std::string flag_text(const Flag& flag) {
  return std::visit(
      [&](const auto* target) -> std::string {
        using T = std::remove_cvref_t<decltype(*target)>;
        if constexpr (std::is_same_v<T, bool>) {
          return *target ? "true" : "false";
        } else if constexpr (std::is_same_v<T, double>) {
          return number_text(*target);
        } else if constexpr (std::is_arithmetic_v<T>) {
          return std::to_string(*target);
        } else if constexpr (std::is_same_v<T, std::string>) {
          return flag.rule.secret && !target->empty() ? "***" : *target;
        } else {
          return joined({target->begin(), target->end()}, ",");
        }
      },
      flag.target);
}

std::string flag_json(const Flag& flag) {
  if (const auto* list = std::get_if<std::vector<std::string>*>(&flag.target)) {
    std::string out;
    for (const std::string& item : **list)
      out.append(out.empty() ? "" : ",").append(json_quote(item));
    return "[" + out + "]";
  }
  if (std::holds_alternative<std::string*>(flag.target)) return json_quote(flag_text(flag));
  return flag_text(flag);
}

const Flag* find_flag(const std::vector<Flag>& flags, std::string_view name) {
  std::string wanted = normalized(name);
  for (const Flag& flag : flags) {
    if (flag.name == wanted || (!flag.rule.alias.empty() && flag.rule.alias == wanted))
      return &flag;
  }
  return nullptr;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  // What all begin with ("--", "ATTUNE_") is no letter that agrees.
  std::string_view prefix = name.substr(0, name.find_last_of("-_") + 1);
  const auto begins_so = [&](const std::string& c) { return c.starts_with(prefix); };
  while (!std::all_of(candidates.begin(), candidates.end(), begins_so)) {
    prefix.remove_suffix(1);
    prefix = prefix.substr(0, prefix.find_last_of("-_") + 1);
  }
  const auto bare = [&](std::string_view text) { return text.substr(prefix.size()); };
  size_t best_distance = std::string::npos;
  const std::string* best = nullptr;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(bare(name), bare(candidate));
    if (distance >= best_distance || !is_near(bare(name), bare(candidate), distance)) continue;
    best_distance = distance;
    best = &candidate;
  }
  return best ? cat(" (did you mean ", *best, "?)") : "";
}

Result<ParsedFlags> parse_flags(const std::vector<Flag>& flags,
                                const std::vector<std::string>& args,
                                std::vector<FlagError>* errors) {
  ParsedFlags parsed;
  for (size_t i = 0; i < args.size(); ++i) {
    std::string_view arg = args[i];
    if (arg == "--") {
      parsed.positionals.insert(parsed.positionals.end(), args.begin() + i + 1, args.end());
      break;
    }
    if (arg == "--help" || arg == "-h") {
      parsed.help = true;
      break;
    }
    Status status;
    if (arg.starts_with("--")) {
      status = read_flag(flags, args, i, parsed);
    } else if (arg.size() > 1 && arg[0] == '-') {
      status = unknown_flag(flags, arg.substr(0, arg.find('=')));
    } else {
      parsed.positionals.emplace_back(arg);
    }
    if (status.ok()) continue;
    if (!errors) return status;
    errors->push_back(flag_error(flags, arg, status));
    const bool known = match_flag(flags, flag_name(arg)).flag != nullptr;
    if (!known && arg.find('=') == arg.npos && i + 1 < args.size() && !args[i + 1].starts_with("-"))
      ++i;
  }
  return parsed;
}

std::string flags_help(const std::vector<Flag>& flags) {
  std::string out;
  std::vector<std::string_view> groups;
  for (const Flag& flag : flags) {
    if (std::find(groups.begin(), groups.end(), flag.group) == groups.end())
      groups.push_back(flag.group);
  }
  for (std::string_view group : groups) {
    out.append("\n").append(group).append(":\n");
    for (const Flag& flag : flags) {
      if (flag.group != group) continue;
      std::string line = "  " + flag_head(flag);
      if (line.size() + 2 > kHelpColumn) {
        line.append("\n").append(kHelpColumn, ' ');
      } else {
        line.append(kHelpColumn - line.size(), ' ');
      }
      out.append(line);
      std::string value = is_switch(flag) && flag_text(flag) == "false" ? "" : flag_text(flag);
      append_wrapped(out, cat(flag.help, value.empty() ? "" : cat(" [", value, "]")));
    }
  }
  return out;
}

}  // namespace attune::base
