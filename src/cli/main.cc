// The command line: one file per subcommand, wiring only.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

#include "cli/bench.h"
#include "cli/command.h"

namespace attune::cli {
namespace {

int run_version(const Args& args) {
  Invocation call;
  const Usage usage{"version", "", "Prints the version.", 0, false, {"log-level"}};
  if (auto code = read_command_line(usage, args, {}, call)) return *code;
  std::printf(call.json ? "{\"version\":\"%s\"}\n" : "attune %s\n", ATTUNE_VERSION);
  return kExitOk;
}

// docs/settings.md is this command's output; a test compares them.
int run_settings_doc(const Args& args) {
  Invocation call;
  const Usage usage{"settings-doc", "", "Prints docs/settings.md.", 0, false, {"log-level"}};
  if (auto code = read_command_line(usage, args, {}, call)) return *code;
  std::fputs(base::settings_markdown().c_str(), stdout);
  return kExitOk;
}

constexpr Command kBenches[] = {
    {"attention", "every attention backend over a grid of shapes", run_bench_attention},
    {"hicache", "copies of KV pages between device and host", run_bench_hicache},
    {"latency", "prompts and decode steps of the engine in process", run_bench_latency},
    {"serving", "throughput and times of any server over HTTP", run_bench_serving},
};

int run_bench(const Args& args) {
  return dispatch("attune bench", kBenches, args);
}

constexpr Command kCommands[] = {
    {"serve", "serve a model over HTTP", run_serve},
    {"generate", "continue a text", run_generate},
    {"chat", "talk with a model in the terminal", run_chat},
    {"bench", "measure the engine or a server", run_bench},
    {"explain", "show which backends and types would be used, and why", run_explain},
    {"inspect", "show what is in a model file, or where KV pages are (inspect kv)", run_inspect},
    {"version", "print the version", run_version},
    {"settings-doc", "print docs/settings.md", run_settings_doc},
};

// A standard stream that came closed would give its number to the next file or socket that is
// opened, and what is printed would go there.
void open_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) (void)::open("/dev/null", O_RDWR);
  }
}

// Output that was lost (a full disk) is no success.
int check_output(int code) {
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (!lost || code != kExitOk) return code;
  std::fprintf(stderr, "attune: cannot write standard output\n");
  return kExitFailed;
}

int run(const Args& args) {
  if (!args.empty() && args[0] == "--version") return run_version({args.begin() + 1, args.end()});
  return dispatch("attune", kCommands, args);
}

}  // namespace
}  // namespace attune::cli

int main(int argc, char** argv) {
  attune::cli::open_standard_streams();
  return attune::cli::check_output(attune::cli::run({argv + 1, argv + argc}));
}
