#include "engine/inputs.h"

#include <algorithm>
#include <filesystem>
#include <thread>

#include "attention/arch.h"
#include "attention/registry.h"
#include "base/log.h"
#include "device/host_memory.h"
#include "kv/tier/make_tier.h"
#include "model/family.h"

namespace attune::engine {
namespace {

using base::cat;
using tensor::DType;

// Settings whose rules are resolved and explained before their part of the engine is there.
struct Unbuilt {
  const char* flag;
  bool (*asked)(const Options& options);
  const char* what;
};
constexpr Unbuilt kUnbuilt[] = {
    {"--speculative-eagle-topk", [](const Options& o) { return o.speculative_eagle_topk > 1; },
     "it comes with the drafters"},
};

// What a host pool leaves to the system and to others: SGLang's 10 GiB, less on small machines.
// RLIMIT_MEMLOCK is no bound: it counts what mlock() holds, not what the CUDA driver pins, and a
// CPU's host pool is ordinary memory.
constexpr int64_t kMostReserve = int64_t{10} << 30, kReservePart = 10;

}  // namespace

const Defaults& defaults_for(const device::DeviceInfo& info) {
  static constexpr Defaults kCpu = {
      .mem_fraction = 0.4, .kv_tokens = 131072, .running_requests = 64, .chunk = 256};
  static constexpr Defaults kCuda = {
      .mem_fraction = 0.88, .kv_tokens = 0, .running_requests = 256, .chunk = 8192};
  return info.kind == device::Kind::kCpu ? kCpu : kCuda;
}

Result<std::unique_ptr<device::Device>> create_device(const Options& options) {
  if (options.device != "cpu") {
    auto cuda = device::create_cuda_device(0, options.cuda_libraries);
    if (cuda.ok()) return cuda;
    if (options.device == "cuda") return cuda.status().with_context("--device cuda");
    base::log_debug("no GPU: ", cuda.status().message());
  }
  const int most = std::max(16, 4 * static_cast<int>(std::thread::hardware_concurrency()));
  if (options.threads > most)
    return invalid_argument(cat("--threads ", options.threads, ": more than ", most,
                                " only wait for each other on this machine's cores: lower it, or "
                                "leave it out for one per core"));
  return device::create_cpu_device(options.threads, options.cpu_isa);
}

Result<formats::LoadedModel> open_model(const Options& options) {
  ATTUNE_RETURN_IF_ERROR(formats::locate_model(options.model, options.load_format).status());
  const std::vector<formats::FamilyTraits> families = model::family_traits();
  auto model =
      formats::open_model(options.model, options.load_format, options.random_seed, families);
  if (model.ok()) return model;
  // The file is there as it was asked for: what is wrong is in it, not in the settings.
  const Code code = model.status().code();
  const bool of_the_file =
      code == Code::kInvalidArgument || code == Code::kNotFound || code == Code::kUnsupported;
  return Status(of_the_file ? Code::kDataLoss : code, model.status().message());
}

resolve::ModelTraits model_traits(const formats::ModelConfig& c) {
  resolve::ModelTraits m{
      .q_heads = c.num_heads,
      .kv_heads = c.num_kv_heads,
      .head = {c.head_dim, c.v_head_dim},
      .layers = c.num_layers,
      .window = std::any_of(c.windows.begin(), c.windows.end(), [](int32_t w) { return w > 0; }),
      .soft_cap = c.attn_logit_softcap > 0};
  if (c.has_mla()) {
    m.kind = attention::AttentionKind::kMla;
    m.kv_heads = 1;
    m.head = {c.mla.kv_lora_rank + c.rope.dim, c.mla.kv_lora_rank};
    m.ragged = {c.head_dim, c.v_head_dim};
  }
  return m;
}

resolve::DeviceInfo device_traits(const Options& options, const device::DeviceInfo& info) {
  const Defaults& defaults = defaults_for(info);
  const double fraction =
      options.mem_fraction_static > 0 ? options.mem_fraction_static : defaults.mem_fraction;
  const bool gpu = info.kind == device::Kind::kCuda;
  resolve::DeviceInfo device = {
      .name = info.name,
      .arch = attention::arch_of(info),
      .bf16_products = gpu || info.isa >= device::CpuIsa::kAvx512Bf16,
      .fast_bf16 = gpu || info.fast_bf16,
      .kv_dtypes = {DType::kF32, DType::kBF16, DType::kF16},
      .kv_budget = static_cast<int64_t>(fraction * static_cast<double>(info.free_memory)),
      .kv_token_cap = defaults.kv_tokens,
      .memory = info.total_memory};
  if (gpu)
    for (DType fp8 : {DType::kF8E4M3, DType::kF8E5M2}) device.kv_dtypes.push_back(fp8);
  return device;
}

std::vector<resolve::Descriptor> backend_descriptors(attention::AttentionKind kind,
                                                     device::Device* device) {
  const auto has = [](const auto& list, auto item) {
    return std::find(list.begin(), list.end(), item) != list.end();
  };
  std::vector<resolve::Descriptor> all;
  for (const attention::BackendEntry& b : attention::backends()) {
    const bool fits = device && has(b.capabilities.archs, attention::arch_of(device->info())) &&
                      has(b.capabilities.kinds, kind);
    all.push_back({b.capabilities, fits ? attention::unavailable_on(b, *device) : b.unavailable});
  }
  return all;
}

resolve::HostInfo host_traits(const Options& options) {
  const device::HostMemory memory = device::host_memory();
  resolve::HostInfo host{
      .memory = memory.total,
      .pinnable = std::max<int64_t>(
          0, memory.available - std::min(kMostReserve, memory.total / kReservePart))};
  if (options.hicache_storage_backend != "file") return host;
  std::error_code error;
  std::filesystem::path folder = std::filesystem::absolute(
      options.hicache_storage_dir.empty() ? kv::default_storage_dir() : options.hicache_storage_dir,
      error);
  while (!std::filesystem::exists(folder, error) && folder.has_relative_path())
    folder = folder.parent_path();
  const auto space = std::filesystem::space(folder, error);
  if (error) return host;
  host.storage = static_cast<int64_t>(space.capacity);
  host.storage_free = static_cast<int64_t>(space.available);
  return host;
}

resolve::Inputs resolver_inputs(const Options& options, const formats::ModelConfig& config,
                                device::Device& device, int64_t weight_bytes) {
  resolve::Inputs inputs{.model = model_traits(config),
                         .device = device_traits(options, device.info()),
                         .host = host_traits(options),
                         .build = {.assume = options.assume},
                         .settings = options};
  inputs.backends = backend_descriptors(inputs.model.kind, &device);
  inputs.device.kv_budget = std::max<int64_t>(0, inputs.device.kv_budget - weight_bytes);
  return inputs;
}

Status check_built(const Options& options) {
  for (const Unbuilt& row : kUnbuilt)
    if (row.asked(options))
      return unsupported(cat(row.flag, ": this build cannot do it yet, ", row.what,
                             " (attune explain tells how it resolves): drop the flag"));
  return {};
}

}  // namespace attune::engine
