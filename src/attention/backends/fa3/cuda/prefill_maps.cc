#include "attention/backends/fa3/cuda/prefill_maps.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace attune::attention::fa3 {
namespace {

constexpr uint32_t kPieceDims = 64;

// Sizes and boxes from the fastest dimension on, strides in bytes from the second on.
template <size_t kRank>
CUtensorMap encode(const void* base, const std::array<int64_t, kRank>& sizes,
                   const std::array<int64_t, kRank - 1>& strides,
                   const std::array<uint32_t, kRank>& box) {
  std::array<cuuint64_t, kRank> size;
  std::array<cuuint64_t, kRank - 1> stride;
  std::array<cuuint32_t, kRank> step;
  std::copy(sizes.begin(), sizes.end(), size.begin());
  // Dense rows are one page that has no next; the driver wants some stride.
  std::transform(strides.begin(), strides.end(), stride.begin(), [](int64_t bytes) {
    return static_cast<cuuint64_t>(std::max<int64_t>(bytes, 16));
  });
  step.fill(1);
  CUtensorMap map{};
  const CUresult made =
      tensor_map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, kRank, const_cast<void*>(base),
                           size.data(), stride.data(), box.data(), step.data(),
                           CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  ATTUNE_CHECK(made == CUDA_SUCCESS);
  return map;
}

}  // namespace

CUtensorMap query_map(const void* q, int rows, int q_heads, int dim, int64_t token_stride,
                      int heads, int tokens) {
  return encode<3>(q, {dim, q_heads, rows}, {int64_t{dim} * 2, token_stride * 2},
                   {kPieceDims, static_cast<uint32_t>(heads), static_cast<uint32_t>(tokens)});
}

CUtensorMap piece_map(const kv::PagedKvView& kv, Which which, int rows) {
  const bool keys = which == Which::kKeys;
  return encode<4>(static_cast<const char*>(kv.base) + (keys ? 0 : kv.v_offset),
                   {keys ? kv.k_dim : kv.v_dim, kv.page_size, kv.kv_heads, kv.num_slots},
                   {keys ? kv.k_token_stride : kv.v_token_stride,
                    keys ? kv.k_head_stride : kv.v_head_stride, kv.page_stride},
                   {kPieceDims, static_cast<uint32_t>(rows), 1, 1});
}

}  // namespace attune::attention::fa3
