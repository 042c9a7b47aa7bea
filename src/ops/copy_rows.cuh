// Rows picked by index, copied in units as wide as they are aligned. For .cu files.
#pragma once

#include "ops/kernel_util.cuh"

namespace attune::ops::cuda {

constexpr uint32_t kCopyThreads = 256;

// Grid: rows, pieces of a row. Strides and lengths are in units.
template <typename Unit>
__global__ void __launch_bounds__(kCopyThreads)
    copy_rows_kernel(const Unit* x, int64_t ldx, const int32_t* rows, int64_t units, Unit* out) {
  pdl_trigger();
  pdl_wait();
  const int64_t i = int64_t{blockIdx.y} * kCopyThreads + threadIdx.x;
  if (i < units) out[blockIdx.x * units + i] = x[rows[blockIdx.x] * ldx + i];
}

// out[i] = x[rows[i]]; ldx and row_bytes are bytes.
inline void copy_rows_as_bytes(Stream& stream, const char* name, const void* x, int64_t ldx,
                               const int32_t* rows, int32_t count, int64_t row_bytes, void* out) {
  if (count == 0 || row_bytes == 0) return;
  const auto launch = [&](auto unit) {
    using Unit = decltype(unit);
    const int64_t units = row_bytes / int64_t{sizeof(Unit)};
    launch_kernel(stream, name,
                  {.grid = dim3(static_cast<uint32_t>(count),
                                static_cast<uint32_t>(ceil_div(units, kCopyThreads))),
                   .block = dim3(kCopyThreads)},
                  {{"count", count}, {"row_bytes", row_bytes}}, copy_rows_kernel<Unit>,
                  static_cast<const Unit*>(x), ldx / int64_t{sizeof(Unit)}, rows, units,
                  static_cast<Unit*>(out));
  };
  const std::initializer_list<int64_t> all = {address(x), address(out), ldx, row_bytes};
  if (all_multiples(16, all)) return launch(uint4{});
  if (all_multiples(4, all)) return launch(uint32_t{});
  launch(uint8_t{});
}

}  // namespace attune::ops::cuda
