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
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 9, 3, 64, DType::kBF16, 1, 64, 1024, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 9, 3, 64, DType::kBF16, 16, 64, 1024, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 9, 3, 64, DType::kBF16, 64, 64, 1024, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 1, 1, 1024, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 1, 1, 8192, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 1, 1, 32768, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 1, 4, 1024, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 1, 8, 4096, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 1, 16, 2048, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 1, 64, 4096, {"flashinfer", "fa3"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 1, 128, 2048, {"flashinfer", "fa3"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 1, 256, 1024, {"flashinfer", "fa3"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 16, 1, 1024, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 16, 1, 8192, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 16, 1, 32768, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 16, 4, 1024, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 16, 8, 4096, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 16, 16, 2048, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 16, 64, 4096, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 16, 128, 2048, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 16, 256, 1024, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 64, 1, 1024, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 64, 1, 8192, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 64, 1, 32768, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 64, 4, 1024, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 64, 8, 4096, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 64, 16, 2048, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 64, 64, 4096, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 64, 128, 2048, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kBF16, 64, 256, 1024, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kF8E4M3, 1, 1, 8192, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kF8E4M3, 1, 64, 4096, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kF8E4M3, 16, 1, 8192, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kF8E4M3, 16, 64, 4096, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kF8E4M3, 64, 1, 8192, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 8, 128, DType::kF8E4M3, 64, 64, 4096, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 32, 128, DType::kBF16, 1, 64, 2048, {"flashinfer", "fa3"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 32, 128, DType::kBF16, 16, 64, 2048, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 32, 32, 128, DType::kBF16, 64, 64, 2048, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 64, 8, 128, DType::kBF16, 1, 64, 4096, {"flashinfer", "fa3"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 64, 8, 128, DType::kBF16, 16, 64, 4096, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kDecode, 64, 8, 128, DType::kBF16, 64, 64, 4096, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kPrefill, 32, 8, 128, DType::kBF16, 16, 1, 16384, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kPrefill, 32, 8, 128, DType::kBF16, 16, 4, 4096, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kPrefill, 32, 8, 128, DType::kBF16, 16, 8, 8704, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kPrefill, 32, 8, 128, DType::kBF16, 16, 16, 1024, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kPrefill, 32, 8, 128, DType::kBF16, 64, 1, 16384, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kPrefill, 32, 8, 128, DType::kBF16, 64, 4, 4096, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kPrefill, 32, 8, 128, DType::kBF16, 64, 8, 8704, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kPrefill, 32, 8, 128, DType::kBF16, 64, 16, 1024, {"fa3", "flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kPrefill, 32, 8, 128, DType::kF8E4M3, 16, 1, 16384, {"flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kPrefill, 32, 8, 128, DType::kF8E4M3, 16, 4, 4096, {"flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kPrefill, 32, 8, 128, DType::kF8E4M3, 16, 8, 8704, {"flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kPrefill, 32, 8, 128, DType::kF8E4M3, 16, 16, 1024, {"flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kPrefill, 32, 8, 128, DType::kF8E4M3, 64, 1, 16384, {"flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kPrefill, 32, 8, 128, DType::kF8E4M3, 64, 4, 4096, {"flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kPrefill, 32, 8, 128, DType::kF8E4M3, 64, 8, 8704, {"flashinfer"}},
    {Arch::kSm90, AttentionKind::kMha, Phase::kPrefill, 32, 8, 128, DType::kF8E4M3, 64, 16, 1024, {"flashinfer"}},
    {Arch::kSm90, AttentionKind::kMla, Phase::kDecode, 16, 1, 576, DType::kBF16, 16, 1, 8192, {"flashinfer_mla"}},
    {Arch::kSm90, AttentionKind::kMla, Phase::kDecode, 16, 1, 576, DType::kBF16, 16, 16, 4096, {"flashinfer_mla"}},
    {Arch::kSm90, AttentionKind::kMla, Phase::kDecode, 16, 1, 576, DType::kBF16, 16, 64, 4096, {"flashinfer_mla"}},
    {Arch::kSm90, AttentionKind::kMla, Phase::kDecode, 16, 1, 576, DType::kBF16, 16, 128, 2048, {"flashinfer_mla"}},
    {Arch::kSm90, AttentionKind::kMla, Phase::kDecode, 16, 1, 576, DType::kBF16, 64, 1, 8192, {"flashinfer_mla"}},
    {Arch::kSm90, AttentionKind::kMla, Phase::kDecode, 16, 1, 576, DType::kBF16, 64, 16, 4096, {"flashinfer_mla"}},
    {Arch::kSm90, AttentionKind::kMla, Phase::kDecode, 16, 1, 576, DType::kBF16, 64, 64, 4096, {"flashinfer_mla"}},
    {Arch::kSm90, AttentionKind::kMla, Phase::kDecode, 16, 1, 576, DType::kBF16, 64, 128, 2048, {"flashinfer_mla"}},
    {Arch::kSm90, AttentionKind::kMla, Phase::kDecode, 128, 1, 576, DType::kBF16, 16, 1, 8192, {"flashinfer_mla"}},
    {Arch::kSm90, AttentionKind::kMla, Phase::kDecode, 128, 1, 576, DType::kBF16, 16, 16, 4096, {"flashinfer_mla"}},
    {Arch::kSm90, AttentionKind::kMla, Phase::kDecode, 128, 1, 576, DType::kBF16, 16, 64, 4096, {"flashinfer_mla"}},
    {Arch::kSm90, AttentionKind::kMla, Phase::kDecode, 128, 1, 576, DType::kBF16, 16, 128, 2048, {"flashinfer_mla"}},
    {Arch::kSm90, AttentionKind::kMla, Phase::kDecode, 128, 1, 576, DType::kBF16, 64, 1, 8192, {"flashinfer_mla"}},
    {Arch::kSm90, AttentionKind::kMla, Phase::kDecode, 128, 1, 576, DType::kBF16, 64, 16, 4096, {"flashinfer_mla"}},
    {Arch::kSm90, AttentionKind::kMla, Phase::kDecode, 128, 1, 576, DType::kBF16, 64, 64, 4096, {"flashinfer_mla"}},
    {Arch::kSm90, AttentionKind::kMla, Phase::kDecode, 128, 1, 576, DType::kBF16, 64, 128, 2048, {"flashinfer_mla"}},
  };
}
// clang-format on

}  // namespace attune::resolve
