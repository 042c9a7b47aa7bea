// attune explain: what the engine would choose for a model on this machine or another, and why.
#include <cstdio>

#include "base/log.h"
#include "cli/command.h"
#include "engine/inputs.h"

namespace attune::cli {
namespace {

using base::cat;

// What explain alone takes.
struct Request {
  std::string preset;
  std::vector<std::string> without;
};

// Sets the device, its host and the backends, those of inputs.model's kind as this machine has
// them. A simulated CPU computes in the types of this machine's.
Status add_device(const Options& options, resolve::Inputs& inputs) {
  auto simulated = resolve::simulated_device(options.device);
  if (simulated && simulated->arch != attention::Arch::kCpu) {
    inputs.device = *simulated;
    inputs.backends = engine::backend_descriptors(inputs.model.kind, nullptr);
    return {};
  }
  ATTUNE_ASSIGN_OR_RETURN(auto device, engine::create_device(options));
  inputs.host = engine::host_traits(options);
  inputs.device = engine::device_traits(options, device->info());
  inputs.device.simulated = simulated.has_value();
  inputs.backends = engine::backend_descriptors(inputs.model.kind, device.get());
  return {};
}

Result<resolve::ModelTraits> model_of(const Options& options, const std::string& preset) {
  if (preset.empty()) {
    ATTUNE_ASSIGN_OR_RETURN(auto model, engine::open_model(options));
    return engine::model_traits(model.config);
  }
  if (auto traits = resolve::model_preset(preset)) return *traits;
  return not_found(cat("--model-preset ", preset, ": there is no such preset",
                       base::did_you_mean(preset, resolve::model_preset_names())));
}

// What could not be had, under the flag that its message begins with.
resolve::Conflict mistake(const std::string& text, const std::string& flag,
                          const std::string& mend) {
  const std::string named = text.substr(0, text.find_first_of(" :"));
  if (!named.starts_with("--") || named == flag) return {"flag", {flag}, text, mend};
  return {"flag", {named}, text, cat("change ", named, ", or leave it out")};
}

// The resolution as far as it goes: what cannot be read is a conflict, and told beside the others.
resolve::Resolution explain(const Invocation& call, const Request& request) {
  const Options& options = call.settings.options();
  resolve::Inputs inputs{.build = {request.without, options.assume}, .settings = options};
  std::vector<resolve::Conflict> mistakes;
  bool device_known = true;
  for (const base::FlagError& m : call.mistakes) {
    mistakes.push_back({"flag", {m.flag}, m.text, m.mend});
    device_known &= m.flag != "--device" && m.flag != "ATTUNE_DEVICE" && m.flag != "device";
  }
  if (!request.preset.empty() && call.settings.source("model") == base::SettingSource::kCommandLine)
    mistakes.push_back({"flag",
                        {"--model-preset", "--model"},
                        cat("--model-preset ", request.preset, " with a model's file (",
                            options.model, "): both say which model"),
                        "name one of the two"});
  auto model = model_of(options, request.preset);
  if (model.ok()) inputs.model = *model;
  const Status device = add_device(options, inputs);
  if (!device.ok())
    mistakes.push_back(mistake(device.message(), "--device",
                               "use --device cpu, or simulate one of sm80, sm89, sm90, sm100"));
  if (!model.ok())
    mistakes.push_back(mistake(model.status().message(),
                               request.preset.empty() ? "--model" : "--model-preset",
                               "name a GGUF file or a model folder, or --model-preset one of: " +
                                   base::join(resolve::model_preset_names())));
  resolve::Resolution resolution;
  if (device_known && device.ok() && model.ok()) resolution = resolve::resolve(inputs);
  resolution.conflicts.insert(resolution.conflicts.begin(), mistakes.begin(), mistakes.end());
  return resolution;
}

}  // namespace

int run_explain(const Args& args) {
  Invocation call;
  call.gather_mistakes = true;
  call.settings.allow("device", resolve::simulated_device_names());
  Request request;
  const Usage usage{
      "explain", "[MODEL]",
      "Shows which attention backends, page size, types and cache IO would be used, each with its\n"
      "reason, without loading the weights. Takes every flag of `attune serve`. Exit code 2: the\n"
      "settings contradict each other.\n\n"
      "--device takes cpu, sm80, sm89, sm90 and sm100 too: a simulated device has every backend\n"
      "built, less --without, and its memory is not checked.",
      1, true};
  const std::string_view group = "attune explain";
  std::vector<base::Flag> own = {
      {"model-preset", &request.preset, group, "NAME",
       "a well-known model's shape instead of a file: smollm2, llama3-8b, qwen3-32b, "
       "qwen3-30b-a3b, deepseek-v2-lite, deepseek-v3"},
      {"without", &request.without, group, "NAME,...", "explain a build without these backends"},
  };
  if (auto code = read_command_line(usage, args, own, call)) return *code;
  const resolve::Resolution resolution = explain(call, request);
  std::printf("%s\n", call.json ? resolve::to_json(resolution).c_str()
                                : resolve::to_table(resolution).c_str());
  return resolution.conflicts.empty() ? kExitOk : kExitUsage;
}

}  // namespace attune::cli
