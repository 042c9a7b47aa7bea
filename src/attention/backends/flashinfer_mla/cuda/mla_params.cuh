#pragma once

#include <cuda_bf16.h>

#include <flashinfer/attention/mla_params.cuh>

#include "attention/backends/flashinfer_mla/mla_launch.h"

namespace attune::attention::flashinfer_mla {

inline ::flashinfer::MLAParams<nv_bfloat16, nv_bfloat16, nv_bfloat16, int32_t> mla_params(
    const MlaCall& c) {
  const auto arg = [](const int32_t* p) { return const_cast<int32_t*>(p); };
  const auto rows = [](const void* p) { return static_cast<nv_bfloat16*>(const_cast<void*>(p)); };
  constexpr int kLatent = 512, kRow = 576;
  ::flashinfer::MLAParams<nv_bfloat16, nv_bfloat16, nv_bfloat16, int32_t> p{};
  p.q_nope = rows(c.q);
  p.q_pe = rows(c.q) + kLatent;
  p.ckv = rows(c.kv);
  p.kpe = rows(c.kv) + kLatent;
  p.partial_o = rows(c.partial);
  p.partial_lse = c.partial_lse;
  p.final_o = rows(c.out);
  p.final_lse = c.lse;
  p.q_indptr = arg(c.q_indptr);
  p.kv_indptr = arg(c.kv_indptr);
  p.partial_indptr = arg(c.partial_indptr);
  p.merge_packed_offset_start = arg(c.row_start);
  p.merge_packed_offset_end = arg(c.row_end);
  p.merge_partial_packed_offset_start = arg(c.partial_start);
  p.merge_partial_packed_offset_end = arg(c.partial_end);
  p.merge_partial_stride = arg(c.partial_stride);
  p.kv_indices = arg(c.page_slots);
  p.q_len = arg(c.q_len);
  p.kv_len = arg(c.kv_len);
  p.q_start = arg(c.q_start);
  p.kv_start = arg(c.kv_start);
  p.kv_end = arg(c.kv_end);
  p.work_indptr = arg(c.work_indptr);
  p.block_size = ::flashinfer::uint_fastdiv(c.page_size);
  p.num_heads = ::flashinfer::uint_fastdiv(c.heads);
  p.q_nope_stride_n = p.q_pe_stride_n = static_cast<uint32_t>(c.q_stride);
  p.q_nope_stride_h = p.q_pe_stride_h = kRow;
  p.ckv_stride_page = p.kpe_stride_page = static_cast<uint32_t>(c.page_stride);
  p.ckv_stride_n = p.kpe_stride_n = static_cast<uint32_t>(c.token_stride);
  p.o_stride_n = static_cast<uint32_t>(c.out_stride);
  p.o_stride_h = kLatent;
  p.sm_scale = c.scale;
  return p;
}

}  // namespace attune::attention::flashinfer_mla
