// Launches of the kernel of decode.cuh, by the rows of an item.
#pragma once

#include <algorithm>

#include "attention/backends/fa3/cuda/decode.cuh"
#include "attention/backends/fa3/cuda/tensor_maps.h"
#include "attention/backends/fa3/launches.h"

namespace attune::attention::fa3 {

// As many as fit.
template <typename S, int kStages = kMostStages>
constexpr int decode_stages() {
  if constexpr (sizeof(DecodeShared<S, kStages>) <= device::kMostSharedBytes) {
    return kStages;
  } else {
    return decode_stages<S, kStages - 1>();
  }
}

template <typename Kv, int kDim, int kRows, bool kGather>
void launch_decode_rows(device::Stream& stream, const kv::PagedKvView& kv, const DecodeArgs& args,
                        int32_t ctas) {
  using S = DecodeShape<Kv, kDim, kRows, kGather>;
  constexpr int kStages = decode_stages<S>();
  constexpr auto kShared = static_cast<uint32_t>(sizeof(DecodeShared<S, kStages>));
  const auto kernel = decode_kernel<Kv, kDim, kRows, kGather, kStages>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(kShared));  // a failure is the launch's
  const int rows = std::min(kv.page_size, kUnit);
  device::launch_kernel(
      stream, "fa3_decode",
      {.grid = static_cast<uint32_t>(ctas), .block = S::kThreads, .shared_bytes = kShared},
      {{"heads", args.heads},
       {"group", args.group.size},
       {"dim", kDim},
       {"page", kv.page_size},
       {"window", args.layer.window},
       {"early", args.early}},
      kernel, page_map(kv, KvSide::kKeys, rows), page_map(kv, KvSide::kValues, rows), args);
}

template <typename Kv, int kDim, bool kGather>
void launch_decode_paged(device::Stream& stream, const kv::PagedKvView& kv, const DecodeArgs& args,
                         int32_t block_rows, int32_t ctas) {
  const auto launch = block_rows == 8    ? launch_decode_rows<Kv, kDim, 8, kGather>
                      : block_rows == 16 ? launch_decode_rows<Kv, kDim, 16, kGather>
                      : block_rows == 32 ? launch_decode_rows<Kv, kDim, 32, kGather>
                                         : launch_decode_rows<Kv, kDim, 64, kGather>;
  launch(stream, kv, args, ctas);
}

template <typename Kv, int kDim>
void launch_decode(device::Stream& stream, const kv::PagedKvView& kv, const DecodeArgs& args,
                   int32_t block_rows, int32_t ctas) {
  if (kv.page_size < kLeastBox)
    return launch_decode_paged<Kv, kDim, true>(stream, kv, args, block_rows, ctas);
  launch_decode_paged<Kv, kDim, false>(stream, kv, args, block_rows, ctas);
}

}  // namespace attune::attention::fa3
