// attune explain: what the engine would choose for a model on this machine, and why.
#include <cstdio>

#include "cli/command.h"
#include "engine/load.h"
#include "resolve/resolve.h"

namespace attune::cli {

int run_explain(const Args& args) {
  Invocation call;
  const Usage usage{
      "explain", "[MODEL]",
      "Shows attention backends, page size and types that would be used, each with its "
      "reason,\nwithout loading the weights. Exit code 2: the settings contradict each other.",
      1};
  if (auto code = read_command_line(usage, args, {}, call)) return *code;
  if (!call.positionals.empty()) call.settings.mutable_options().model = call.positionals[0];
  auto resolution = engine::explain(call.settings.options());
  if (!resolution.ok()) return report(resolution.status(), call.json);
  std::printf("%s\n", call.json ? resolve::to_json(*resolution).c_str()
                                : resolve::to_table(*resolution).c_str());
  return resolution->conflicts.empty() ? kExitOk : kExitUsage;
}

}  // namespace attune::cli
