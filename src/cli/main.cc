// The command line: one file per subcommand, wiring only.
#include <cstdio>
#include <string>

#include "base/log.h"
#include "cli/command.h"

namespace attune::cli {
namespace {

int run_version(const Args&) {
  std::printf("attune %s\n", ATTUNE_VERSION);
  return kExitOk;
}

// docs/settings.md is this command's output; a test compares them.
int run_settings_doc(const Args&) {
  std::fputs(base::settings_markdown().c_str(), stdout);
  return kExitOk;
}

constexpr Command kCommands[] = {
    {"serve", "serve a model over HTTP", run_serve},
    {"generate", "continue a text", run_generate},
    {"chat", "talk with a model in the terminal", run_chat},
    {"explain", "show which backends and types would be used, and why", run_explain},
    {"inspect", "show what is in a GGUF or safetensors model", run_inspect},
    {"version", "print the version", run_version},
    {"settings-doc", "print docs/settings.md", run_settings_doc},
};

void print_help(std::FILE* out) {
  std::fputs("usage: attune COMMAND [FLAGS]\n\n", out);
  for (const Command& command : kCommands) {
    std::fprintf(out, "  %-14s%s\n", command.name, command.summary);
  }
  std::fputs("\nattune COMMAND --help lists a command's flags.\n", out);
}

int dispatch(const Args& args) {
  if (args.empty()) {
    print_help(stderr);
    return kExitUsage;
  }
  if (args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
    print_help(stdout);
    return kExitOk;
  }
  if (args[0] == "--version") return run_version({});
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    if (args[0] == command.name) return command.run({args.begin() + 1, args.end()});
    names.emplace_back(command.name);
  }
  return report(
      invalid_argument(base::cat("no command '", args[0], "'", base::did_you_mean(args[0], names),
                                 "; attune --help lists all")),
      false);
}

}  // namespace
}  // namespace attune::cli

int main(int argc, char** argv) {
  return attune::cli::dispatch({argv + 1, argv + argc});
}
