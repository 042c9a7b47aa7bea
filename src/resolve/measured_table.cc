// Made by tools/measured_table.py from bench/attention-*.jsonl: do not edit.
#include "resolve/preferences.h"

namespace attune::resolve {

using attention::Arch;
using attention::AttentionKind;
using attention::Phase;
using tensor::DType;

// clang-format off
std::vector<MeasuredCell> measured_table() {
  return {
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 16, 1, 1024, {"flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 16, 1, 8192, {"flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 16, 1, 32768, {"flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 16, 4, 1024, {"flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 16, 8, 4096, {"flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 16, 16, 2048, {"flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 16, 64, 4096, {"flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 16, 128, 2048, {"flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 16, 256, 1024, {"flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kPrefill, 32, 8, 128, DType::kBF16, 16, 1, 16384, {"flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kPrefill, 32, 8, 128, DType::kBF16, 16, 4, 4096, {"flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kPrefill, 32, 8, 128, DType::kBF16, 16, 16, 1024, {"flashinfer"}},
  };
}
// clang-format on

}  // namespace attune::resolve
