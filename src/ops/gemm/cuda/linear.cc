// Which way a product goes: few rows through the kernels that read weights as they lie, many
// through cuBLASLt, for which codes are first made bfloat16.
#include <algorithm>

#include "base/check.h"
#include "ops/cuda_kernels.h"
#include "ops/gemm/cuda/context.h"
#include "ops/gemm/cuda/gemv.h"
#include "ops/gemm/cuda/grouped.h"
#include "ops/gemm/cuda/rows.h"
#include "ops/gemm/gemm.h"

namespace attune::ops::cuda {
namespace {

// Rows that choose the tile of grouped products where it must be the same for every batch.
constexpr int32_t kOneTile = 1;

using gemm::CudaLayout;
using gemm::kGemvRows;
using gemm::Product;

// Up to here weights in codes are read once for each kGemvRows rows; from there on writing them out
// as bfloat16 costs less.
constexpr int32_t kCodeRows = 4 * kGemvRows;

CudaLayout layout_of(const LinearParams& p) {
  return static_cast<CudaLayout>(p.weight->layout);
}

int64_t y_bytes(const LinearParams& p) {
  return p.y_dtype == DType::kBF16 ? 2 : 4;
}

bool aligned(const void* x, int64_t ldx) {
  return (reinterpret_cast<uint64_t>(x) | static_cast<uint64_t>(ldx * 2)) % 16 == 0;
}

// Rows of y from outputs [first, first + n) of the weight; first is a multiple of kTileRows.
void few_rows(const LinearParams& p, int64_t first, int64_t n, Stream& stream) {
  const gemm::CudaContext& context = *p.weight->cuda;
  const int64_t row_bytes =
      gemm::weight_bytes(layout_of(p), gemm::kTileRows, p.weight->k) / gemm::kTileRows;
  for (int32_t row = 0; row < p.m; row += kGemvRows)
    gemm::gemv({.w = p.weight->data.as<uint8_t>() + first * row_bytes,
                .n = static_cast<int32_t>(n),
                .k = p.weight->k,
                .m = std::min(kGemvRows, p.m - row),
                .x = static_cast<const uint16_t*>(p.x) + row * p.ldx,
                .ldx = p.ldx,
                .bias = p.bias ? p.bias + first : nullptr,
                .y = static_cast<char*>(p.y) + (row * p.ldy + first) * y_bytes(p),
                .ldy = p.ldy,
                .y_bf16 = p.y_dtype == DType::kBF16,
                .accumulate = p.accumulate},
               layout_of(p), context.info(), stream);
}

Product product(const LinearParams& p, const void* w, int64_t first, int64_t n) {
  return {.n = static_cast<int32_t>(n),
          .k = p.weight->k,
          .m = p.m,
          .f32 = layout_of(p) == CudaLayout::kF32,
          .y_bf16 = p.y_dtype == DType::kBF16,
          .w = w,
          .w_is_new = w != p.weight->data.data(),
          .x = p.x,
          .ldx = p.ldx,
          .y = static_cast<char*>(p.y) + first * y_bytes(p),
          .ldy = p.ldy,
          .beta = p.accumulate ? 1.0f : 0.0f,
          .deterministic = p.deterministic};
}

// By cuBLASLt or the kernel for a decode batch; false: neither can, and y is as it was.
bool whole(const LinearParams& p, Stream& stream) {
  if (!p.weight->cuda->multiply(product(p, p.weight->data.data(), 0, p.weight->n), stream))
    return false;
  if (p.bias) gemm::add_bias(p, stream);
  return true;
}

// Codes, as many rows of the weight at a time as the scratch takes.
void in_parts(const LinearParams& p, Stream& stream) {
  gemm::CudaContext& context = *p.weight->cuda;
  const int64_t fit = context.scratch().bytes() / (p.weight->k * int64_t{2});
  const int64_t most = fit / gemm::kTileRows * gemm::kTileRows;
  for (int64_t first = 0; first < p.weight->n; first += most) {
    const int64_t n = std::min(most, p.weight->n - first);
    gemm::dequantize({.w = p.weight->data.as<uint8_t>(),
                      .k = p.weight->k,
                      .first_row = first,
                      .rows = n,
                      .out = context.scratch().data()},
                     layout_of(p), stream);
    LinearParams part = p;
    part.bias = nullptr;
    if (!context.multiply(product(part, context.scratch().data(), first, n), stream))
      few_rows(part, first, n, stream);
  }
  if (p.bias) gemm::add_bias(p, stream);
}

// By one launch; false: they are not alike enough.
bool at_once(const LinearParams* items, int32_t count, gemm::ProblemList& list, Stream& stream) {
  const LinearParams& head = items[0];
  int32_t most = 0;
  list.count = count;
  for (int32_t i = 0; i < count; ++i) {
    const LinearParams& p = items[i];
    if (p.weight->layout != head.weight->layout || p.weight->k != head.weight->k ||
        p.y_dtype != head.y_dtype || p.accumulate != head.accumulate || p.bias != nullptr ||
        layout_of(p) == CudaLayout::kF32 || !aligned(p.x, p.ldx))
      return false;
    list.problems[i] = {.w = p.weight->data.as<uint8_t>(),
                        .x = static_cast<const uint8_t*>(p.x),
                        .y = p.y,
                        .ldx = p.ldx,
                        .ldy = p.ldy,
                        .m = p.m,
                        .n = p.weight->n};
    most = std::max(most, p.m);
  }
  gemm::grouped(list,
                {.k = head.weight->k,
                 .layout = layout_of(head),
                 .y_bf16 = head.y_dtype == DType::kBF16,
                 .accumulate = head.accumulate,
                 .typical_m = head.deterministic ? kOneTile : most},
                head.weight->cuda->info(), stream);
  return true;
}

}  // namespace

void linear(const LinearParams& p, Stream& stream) {
  if (p.m == 0) return;
  const bool few = !p.deterministic && p.m <= kGemvRows;
  switch (layout_of(p)) {
    case CudaLayout::kF32:
      if (few || p.deterministic || !whole(p, stream)) gemm::linear_f32(p, stream);
      return;
    case CudaLayout::kBF16:
      if (few || !whole(p, stream)) few_rows(p, 0, p.weight->n, stream);
      return;
    default:
      if (!p.deterministic && p.m <= kCodeRows) return few_rows(p, 0, p.weight->n, stream);
      return in_parts(p, stream);
  }
}

void linear_group(const LinearParams* items, int32_t count, Stream& stream) {
  gemm::ProblemList list;
  for (int32_t first = 0; first < count; first += gemm::kMostListed) {
    const int32_t some = std::min(gemm::kMostListed, count - first);
    if (some == 1 || !at_once(items + first, some, list, stream))
      for (int32_t i = first; i < first + some; ++i) linear(items[i], stream);
  }
}

void expert_linear(const ExpertLinearParams& p, Stream& stream) {
  const auto experts = static_cast<int32_t>(p.weights->weights.size());
  if (p.rows == 0) return;
  const PackedWeight& head = *p.weights->weights[0];
  static_assert(kMostGpuExperts <= gemm::kMostProblems);
  ATTUNE_CHECK(experts <= kMostGpuExperts && head.act == DType::kBF16 &&
               p.x_dtype == DType::kBF16 && aligned(p.x, p.ldx));
  gemm::grouped({.w = p.weights->table.as<const uint8_t*>(),
                 .x = static_cast<const uint8_t*>(p.x),
                 .y = p.y,
                 .ldx = p.ldx,
                 .ldy = p.ldy,
                 .offsets = p.offsets,
                 .n = head.n,
                 .count = experts},
                {.k = head.k,
                 .layout = static_cast<CudaLayout>(head.layout),
                 .y_bf16 = p.y_dtype == DType::kBF16,
                 .accumulate = false,
                 .typical_m = p.deterministic ? kOneTile : (p.rows + experts - 1) / experts},
                head.cuda->info(), stream);
}

}  // namespace attune::ops::cuda
