// Models and devices that `attune explain` knows without having them.
#include <algorithm>

#include "resolve/resolve.h"

namespace attune::resolve {
namespace {

using attention::Arch;
using attention::AttentionKind;
using tensor::DType;

struct Preset {
  const char* name;
  ModelTraits traits;
};

constexpr attention::HeadDims kLatent{512 + 64, 512}, kUpProjected{128 + 64, 128};

// From the config.json that each model is published with.
const std::vector<Preset>& presets() {
  constexpr auto kMha = AttentionKind::kMha, kMla = AttentionKind::kMla;
  static const std::vector<Preset> table = {
      {"smollm2", {kMha, 9, 3, {64, 64}, {}, 30}},  // 135M
      {"llama3-8b", {kMha, 32, 8, {128, 128}, {}, 32}},
      {"qwen3-32b", {kMha, 64, 8, {128, 128}, {}, 64}},
      {"qwen3-30b-a3b", {kMha, 32, 4, {128, 128}, {}, 48}},
      {"deepseek-v2-lite", {kMla, 16, 1, kLatent, kUpProjected, 27}},
      {"deepseek-v3", {kMla, 128, 1, kLatent, kUpProjected, 61}},
  };
  return table;
}

constexpr Arch kSimulated[] = {Arch::kCpu, Arch::kSm80, Arch::kSm89, Arch::kSm90, Arch::kSm100};

}  // namespace

std::optional<ModelTraits> model_preset(std::string_view name) {
  for (const Preset& p : presets())
    if (p.name == name) return p.traits;
  return std::nullopt;
}

const std::vector<std::string>& model_preset_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Preset& p : presets()) list.emplace_back(p.name);
    return list;
  }();
  return names;
}

std::optional<DeviceInfo> simulated_device(std::string_view name) {
  for (Arch arch : kSimulated) {
    if (name != attention::arch_name(arch)) continue;
    const bool gpu = arch != Arch::kCpu;
    DeviceInfo device{.name = std::string(name) + " (simulated)",
                      .arch = arch,
                      .simulated = true,
                      .bf16_products = gpu,
                      .fast_bf16 = gpu,
                      .f16_products = gpu,
                      .kv_dtypes = {DType::kF32, DType::kBF16, DType::kF16}};
    if (gpu) device.kv_dtypes.insert(device.kv_dtypes.end(), {DType::kF8E4M3, DType::kF8E5M2});
    return device;
  }
  return std::nullopt;
}

const std::vector<std::string>& simulated_device_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (Arch arch : kSimulated) list.emplace_back(attention::arch_name(arch));
    return list;
  }();
  return names;
}

}  // namespace attune::resolve
