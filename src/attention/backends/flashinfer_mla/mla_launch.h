// FlashInfer's kernels for absorbed latent attention, behind a plain struct. A launch belongs
// inside Stream::launch, and a failure is the stream's.
#pragma once

#include <cstdint>

namespace attune::attention::flashinfer_mla {

// Strides count elements; everything but the LSE is bfloat16.
struct MlaCall {
  const void* q = nullptr;   // [tokens, heads, 512 + 64]
  int64_t q_stride = 0;      // of a token
  const void* kv = nullptr;  // rows of 512 + 64
  int64_t page_stride = 0, token_stride = 0;
  int32_t page_size = 0, heads = 0;
  const int32_t* page_slots = nullptr;
  void* out = nullptr;  // [tokens, heads, 512]
  int64_t out_stride = 0;
  float* lse = nullptr;  // [tokens, heads], base 2 and not below about -5e4, or -inf; or null
  float scale = 0;
  // The schedule's arrays in device memory (mla_schedule.h).
  const int32_t *work_indptr = nullptr, *q_indptr = nullptr, *kv_indptr = nullptr,
                *partial_indptr = nullptr, *q_len = nullptr, *kv_len = nullptr, *q_start = nullptr,
                *kv_start = nullptr, *kv_end = nullptr, *row_start = nullptr, *row_end = nullptr,
                *partial_start = nullptr, *partial_end = nullptr, *partial_stride = nullptr;
  int32_t cluster = 1, clusters = 0;
  void* partial = nullptr;  // [rows, 512]
  float* partial_lse = nullptr;
  void* stream = nullptr;  // cudaStream_t
};

// Both are cooperative launches of one block to a multiprocessor, which all have to run at once: a
// kernel that holds a multiprocessor for ever holds them up for ever.
using MlaLaunch = void (*)(const MlaCall&);
void launch_fa2(const MlaCall& call);
void launch_hopper(const MlaCall& call);  // sm90; in builds for 90a

}  // namespace attune::attention::flashinfer_mla
