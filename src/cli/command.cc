#include "cli/command.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/check.h"
#include "base/log.h"
#include "formats/json.h"
#include "formats/text_file.h"

namespace attune::cli {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;

bool asks_for_json(const Args& args) {
  auto flags_end = std::find(args.begin(), args.end(), "--");
  return std::any_of(args.begin(), flags_end, [](const std::string& arg) {
    return arg == "--json" || arg == "--json=true";
  });
}

std::vector<std::string> environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry; ++entry) entries.emplace_back(*entry);
  return entries;
}

Result<std::string> config_value(const std::string& where, const formats::Json& value) {
  if (value.is_string() && value.as_string().find('\0') != std::string::npos)
    return invalid_argument(base::cat(where, " holds a NUL character"));
  if (value.is_string()) return value.as_string();
  if (value.is_bool() || value.is_number()) return value.dump();
  return invalid_argument(base::cat(where, " is ", value.type_name(),
                                    "; it takes text, a number, true, false or a list of these"));
}

// Kept among the mistakes where they are gathered, so that what follows is read too.
Status kept(const Status& status, const char* flag, std::vector<base::FlagError>* mistakes) {
  if (status.ok() || !mistakes) return status;
  mistakes->push_back({flag, status.message(), "--help tells what is taken"});
  return {};
}

// A value of the wrong kind is left out where mistakes are gathered.
Result<std::vector<base::ConfigEntry>> read_config(const std::string& path,
                                                   std::vector<base::FlagError>* mistakes) {
  auto text = formats::read_text_file(path, kMaxConfigBytes);
  if (!text.ok()) return text.status().with_context("--config");
  auto document = formats::parse_json(*text);
  if (!document.ok())
    return invalid_argument(base::cat("--config: ", path, ": ", document.status().message()));
  if (!document->is_object())
    return invalid_argument(base::cat("--config: ", path, " is no JSON object"));
  std::vector<base::ConfigEntry> entries;
  for (const auto& [key, value] : document->as_object()) {
    base::ConfigEntry entry{key, {}};
    const std::string where = base::cat("--config: ", path, ": ", key);
    Status wrong;
    const auto add = [&](const formats::Json& one) {
      auto text_value = config_value(where, one);
      if (text_value.ok()) entry.values.push_back(std::move(*text_value));
      if (!text_value.ok() && wrong.ok()) wrong = text_value.status();
    };
    if (value.is_array()) {
      std::for_each(value.as_array().begin(), value.as_array().end(), add);
    } else {
      add(value);
    }
    ATTUNE_RETURN_IF_ERROR(kept(wrong, "--config", mistakes));
    if (wrong.ok()) entries.push_back(std::move(entry));
  }
  return entries;
}

base::LogLevel parse_log_level(std::string_view name) {
  if (name == "debug") return base::LogLevel::kDebug;
  if (name == "warning") return base::LogLevel::kWarning;
  return name == "error" ? base::LogLevel::kError : base::LogLevel::kInfo;
}

Status take_positionals(const Usage& usage, const base::ParsedFlags& parsed,
                        Invocation& invocation) {
  if (parsed.positionals.size() > usage.max_positionals) {
    return invalid_argument(
        base::cat("attune ", usage.name, " takes ", usage.max_positionals ? "at most " : "no ",
                  usage.max_positionals ? std::to_string(usage.max_positionals) + " " : "",
                  "arguments beside flags; '", parsed.positionals[usage.max_positionals],
                  "' is one too many"));
  }
  invocation.positionals = parsed.positionals;
  if (!usage.names_model || parsed.positionals.empty()) return {};
  return invocation.settings.apply_args({"--model=" + parsed.positionals[0]}).status();
}

Status read_layers(const Usage& usage, const std::string& config, const base::ParsedFlags& parsed,
                   Invocation& invocation) {
  auto* mistakes = invocation.gather_mistakes ? &invocation.mistakes : nullptr;
  ATTUNE_RETURN_IF_ERROR(kept(take_positionals(usage, parsed, invocation), "MODEL", mistakes));
  ATTUNE_RETURN_IF_ERROR(invocation.settings.apply_environment(environment(), mistakes));
  if (config.empty()) return {};
  auto entries = read_config(config, mistakes);
  if (!entries.ok()) return kept(entries.status(), "--config", mistakes);
  return invocation.settings.apply_config(config, *entries, mistakes);
}

std::string help_text(const Usage& usage, const std::vector<base::Flag>& own) {
  Options defaults;
  std::vector<base::Flag> rows = own;
  const auto shown = [&](std::string_view name) {
    return usage.shows.empty() ||
           std::find(usage.shows.begin(), usage.shows.end(), name) != usage.shows.end();
  };
  std::vector<base::Flag> settings = base::option_flags(defaults);
  for (const std::string_view name : usage.shows)
    ATTUNE_CHECK(std::any_of(settings.begin(), settings.end(), [&](const base::Flag& row) {
      return row.group == name || row.name == name;
    }));
  for (base::Flag& row : settings) {
    if (!base::find_flag(own, row.name) && (shown(row.group) || shown(row.name)))
      rows.push_back(row);
  }
  return base::cat(
      "usage: attune ", usage.name, " [FLAGS]", usage.positionals.empty() ? "" : " ",
      usage.positionals, "\n\n", usage.about, "\n", base::flags_help(rows),
      usage.shows.empty() ? "" : "\nThe other flags of `attune serve` are accepted too.\n");
}

}  // namespace

std::vector<std::string_view> engine_settings() {
  return {"model",
          "load-format",
          "tokenizer",
          "chat-template",
          "context-length",
          "random-seed",
          "Device",
          "Attention",
          "max-total-tokens",
          "mem-fraction-static",
          "chunked-prefill-size",
          "enable-deterministic-inference",
          "log-level"};
}

std::optional<int> read_command_line(const Usage& usage, const Args& args,
                                     std::vector<base::Flag> own, Invocation& invocation) {
  std::string config;
  std::string group = base::cat("attune ", usage.name);
  own.push_back({"json", &invocation.json, group, "", "only JSON on standard output"});
  own.push_back({"config", &config, group, "FILE", "JSON file with settings"});
  bool json = asks_for_json(args);

  auto* mistakes = invocation.gather_mistakes ? &invocation.mistakes : nullptr;
  auto parsed = invocation.settings.apply_args(args, own, mistakes);
  if (!parsed.ok()) return report(parsed.status(), json);
  if (parsed->help) {
    std::fputs(help_text(usage, own).c_str(), stdout);
    return kExitOk;
  }
  if (Status status = read_layers(usage, config, *parsed, invocation); !status.ok())
    return report(status, json);
  base::set_log_level(parse_log_level(invocation.settings.options().log_level));
  for (const std::string& warning : invocation.settings.warnings()) base::log_warning(warning);
  return std::nullopt;
}

int dispatch(std::string_view program, std::span<const Command> commands, const Args& args) {
  std::vector<std::string> names;
  for (const Command& command : commands) {
    if (!args.empty() && args[0] == command.name)
      return command.run({args.begin() + 1, args.end()});
    names.emplace_back(command.name);
  }
  const bool help = !args.empty() && (args[0] == "--help" || args[0] == "-h" || args[0] == "help");
  if (!args.empty() && !help) {
    return report(invalid_argument(base::cat(program, " has no command '", args[0], "'",
                                             base::did_you_mean(args[0], names), "; ", program,
                                             " --help lists all")),
                  asks_for_json(args));
  }
  std::FILE* out = help ? stdout : stderr;
  std::string text = base::cat("usage: ", program, " COMMAND [FLAGS]\n\n");
  for (const Command& command : commands) {
    std::string name = command.name;
    name.resize(14, ' ');
    text += base::cat("  ", name, command.summary, "\n");
  }
  std::fputs(base::cat(text, "\n", program, " COMMAND --help lists a command's flags.\n").c_str(),
             out);
  return help ? kExitOk : kExitUsage;
}

int report(const Status& status, bool json) {
  if (status.ok()) return kExitOk;
  if (json) {
    formats::Json error;
    error.set("code", code_name(status.code()));
    error.set("message", status.message());
    formats::Json document;
    document.set("error", std::move(error));
    std::printf("%s\n", document.dump().c_str());
  } else {
    std::fprintf(stderr, "attune: %s\n", status.message().c_str());
  }
  bool usage = status.code() == Code::kInvalidArgument || status.code() == Code::kUnsupported ||
               status.code() == Code::kNotFound;
  return usage ? kExitUsage : kExitFailed;
}

}  // namespace attune::cli
