// The kernels that this build has, behind plain structs. Each launch belongs inside Stream::launch,
// and a failure is the stream's.
#pragma once

#include <cstdint>

#include "attention/backends/fa3/work.h"
#include "device/device.h"
#include "kv/layout/layout.h"

namespace attune::attention::fa3 {

// Query rows of a block: what one item has at most, of 8, 16, 32 and 64.
constexpr int32_t decode_rows(int64_t rows) {
  return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
}

// Whether the driver makes what the copy engine needs to know of a pool.
bool has_tensor_maps();

void launch_plan(device::Stream& stream, const PlanArgs& args);

// One layer; block_rows: as planned. null: there is no such kernel.
using DecodeLaunch = void (*)(device::Stream& stream, const kv::PagedKvView& kv,
                              const DecodeArgs& args, int32_t block_rows, int32_t ctas);
DecodeLaunch decode_launch(int32_t head_dim, tensor::DType kv_dtype);

}  // namespace attune::attention::fa3
