// The one place where backends have names (docs/selection-rules.md, S4 to S7 and H2).
#include "resolve/preferences.h"

namespace attune::resolve {

using attention::Arch;
using attention::AttentionKind;
using attention::Phase;

const Preferences& default_preferences() {
  constexpr auto kMha = AttentionKind::kMha, kMla = AttentionKind::kMla;
  constexpr auto kPrefill = Phase::kPrefill, kDecode = Phase::kDecode;
  static const std::vector<Arch> not_hopper = {Arch::kSm80, Arch::kSm89, Arch::kSm100};
  static const std::vector<Arch> gpus = {Arch::kSm80, Arch::kSm89, Arch::kSm90, Arch::kSm100};
  // clang-format off
  static const Preferences preferences = {
    .orders = {
      {"S4", {Arch::kSm90}, kMha, {kPrefill, kDecode}, {"fa3", "flashinfer", "cudnn", "reference"}},
      {"S5", not_hopper,    kMha, {kPrefill, kDecode}, {"flashinfer", "cudnn", "reference"}},
      {"S6", {Arch::kSm90}, kMla, {kPrefill},          {"trtllm_mla", "flashinfer_mla", "reference"}},
      {"S6", {Arch::kSm90}, kMla, {kDecode},           {"flashmla", "flashinfer_mla", "reference"}},
      {"S6", not_hopper,    kMla, {kPrefill, kDecode}, {"flashinfer_mla", "reference"}},
      {"S7", {Arch::kCpu},  kMha, {kPrefill, kDecode}, {"cpu", "reference"}},
      {"S7", {Arch::kCpu},  kMla, {kPrefill, kDecode}, {"cpu", "reference"}},
    },
    .safe_decode = {
      {gpus,         kMha, {"flashinfer", "cudnn"}},
      {gpus,         kMla, {"flashinfer_mla"}},
      {{Arch::kCpu}, kMha, {"cpu", "reference"}},
      {{Arch::kCpu}, kMla, {"cpu", "reference"}},
    },
    .aliases = {
      {kMla, "flashinfer", "flashinfer_mla"},
    },
    .measured = measured_table(),
  };
  // clang-format on
  return preferences;
}

}  // namespace attune::resolve
