// What an engine is made from, and how the resolver sees it: the model's file, this machine, and
// every backend that the sources know.
#pragma once

#include <memory>
#include <vector>

#include "attune/options.h"
#include "attune/status.h"
#include "device/device.h"
#include "formats/weight_source.h"
#include "resolve/resolve.h"

namespace attune::engine {

// What is taken where a setting leaves it open.
struct Defaults {
  // Without --max-total-tokens the KV pool takes this share of the memory free at start, less the
  // weights and the scratch of a step; the rest is for the system and neighbours, on a GPU for the
  // libraries' workspaces and graphs.
  double mem_fraction;
  // And no more tokens than this; 0: as many as fit. On a CPU memory that is not touched costs
  // nothing, but a prefix cache fills whatever it is given.
  int64_t kv_tokens;
  int32_t running_requests;
  // Prompt tokens of a step: enough for the matrix kernels to run at full speed, few enough that
  // decoding requests see pauses of a fraction of a second (docs/performance.md).
  int32_t chunk;
};
const Defaults& defaults_for(const device::DeviceInfo& info);

Result<std::unique_ptr<device::Device>> create_device(const Options& options);
// Opens and checks the files; weights are read later. Errors: invalid_argument and not_found when
// --model names nothing of the format; what is wrong inside the files, or not supported, is
// data_loss.
Result<formats::LoadedModel> open_model(const Options& options);

// Everything that resolve::resolve() takes. `weight_bytes`: what the weights will take of the
// device's memory.
resolve::Inputs resolver_inputs(const Options& options, const formats::ModelConfig& config,
                                device::Device& device, int64_t weight_bytes = 0);
// Its parts, for devices or models that are not there.
resolve::ModelTraits model_traits(const formats::ModelConfig& config);
resolve::DeviceInfo device_traits(const Options& options, const device::DeviceInfo& info);
// With a device, those that could serve such a model there are made, to see whether their libraries
// are on this machine; null: no device that is there.
std::vector<resolve::Descriptor> backend_descriptors(attention::AttentionKind kind,
                                                     device::Device* device);
// This machine's memory and, for a storage tier of files, its disk.
resolve::HostInfo host_traits(const Options& options);

// Errors: unsupported, for a setting that resolves but that this engine cannot follow yet.
Status check_built(const Options& options);

}  // namespace attune::engine
