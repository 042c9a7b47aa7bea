#include <cuda_runtime.h>

#include "attention/backends/cudnn/cuda/tables.h"
#include "device/cuda/launch.cuh"

namespace attune::attention::cudnn {
namespace {

constexpr int32_t kThreads = 128;

// A CTA per sequence, and one for the offsets' last element.
__global__ void __launch_bounds__(kThreads)
    fill(Batch::Arrays from, int32_t num_seqs, int32_t page_size, Tables to) {
  device::pdl_wait();
  device::pdl_trigger();
  const auto s = static_cast<int32_t>(blockIdx.x);
  const int32_t begin = from.q_indptr[min(s, num_seqs)];
  if (threadIdx.x == 0) {
    to.q_offsets[s] = begin * to.q_width;
    to.lse_offsets[s] = begin * to.q_heads;
  }
  if (s >= to.rows) return;
  const bool real = s < num_seqs;
  const int32_t q_len = real ? from.q_indptr[s + 1] - begin : 0;
  const int32_t kv_len = q_len > 0 ? from.kv_len[s] : 0;
  if (threadIdx.x == 0) {
    to.q_len[s] = q_len;
    to.kv_len[s] = kv_len;
  }
  const int32_t pages = min((kv_len + page_size - 1) / page_size, to.pitch);
  const int32_t first = pages > 0 ? from.page_indptr[s] : 0;
  const int32_t before = to.used[s];
  __syncthreads();  // all have read it
  if (threadIdx.x == 0) to.used[s] = pages;
  int32_t* row = to.pages + int64_t{s} * to.pitch;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < max(pages, before); i += kThreads)
    row[i] = i < pages ? from.page_slots[first + i] : kv::kPaddingSlot.value;
}

__global__ void __launch_bounds__(kThreads) scale(const int32_t* q_indptr, int32_t num_seqs,
                                                  int32_t rows, int64_t stride, int32_t* offsets) {
  device::pdl_wait();
  device::pdl_trigger();
  const auto s = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (s <= rows) offsets[s] = static_cast<int32_t>(q_indptr[min(s, num_seqs)] * stride);
}

}  // namespace

void fill_offsets(const int32_t* q_indptr, int32_t num_seqs, int32_t rows, int64_t stride,
                  int32_t* offsets, device::Stream& stream) {
  device::launch_kernel(stream, "cudnn_offsets",
                        {.grid = static_cast<uint32_t>(rows / kThreads + 1), .block = kThreads},
                        {{"seqs", num_seqs}, {"rows", rows}, {"stride", stride}}, scale, q_indptr,
                        num_seqs, rows, stride, offsets);
}

void fill_tables(const Batch::Arrays& from, int32_t num_seqs, int32_t page_size, const Tables& to,
                 device::Stream& stream) {
  device::launch_kernel(stream, "cudnn_tables",
                        {.grid = static_cast<uint32_t>(to.rows + 1), .block = kThreads},
                        {{"seqs", num_seqs}, {"rows", to.rows}, {"pitch", to.pitch}}, fill, from,
                        num_seqs, page_size, to);
}

}  // namespace attune::attention::cudnn
