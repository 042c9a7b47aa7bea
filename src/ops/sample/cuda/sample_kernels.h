// The sampler's kernels.
#pragma once

#include "ops/sample/cuda/place.h"
#include "ops/sample/device_sampler.h"

namespace attune::ops::cuda {

struct SampleArgs {
  const int32_t* places;     // [n]
  const int32_t* positions;  // [n]
  const float* logits;       // [n, vocab]
  int32_t vocab;
  Place* states;         // [max_places]
  uint32_t* counts;      // [max_places, vocab], see kInPrompt
  int32_t* last_tokens;  // [max_places]
  SampledRow* results;   // [n]
  int32_t* left;         // [n]: whether draw_kernel left the row to sample_kernel
  // A padded row each, where a slice does not fit in shared memory; else null.
  float* workspace;
};

struct LogprobArgs {
  const int32_t* ids;   // [n]
  const float* logits;  // [n, vocab]
  int32_t vocab, top;
  SampledRow* out;   // [n]
  float* workspace;  // see SampleArgs
};

// Bytes of shared memory that a block needs besides its slice of a row.
int64_t sampler_static_bytes();
// Once, before the first launch: `slice_bytes` of shared memory for a slice; 0: in the workspace.
Status prepare_sampler_kernels(int64_t slice_bytes);
Status prepare_draw_kernel();  // a part of it

// `cluster` blocks a row. Inside Stream::launch.
void launch_sample(const SampleArgs& args, int32_t n, int32_t cluster, int64_t slice_bytes,
                   device::Stream& stream);
// The first of launch_sample's kernels: rows of Way::kPeak and Way::kDraw (peak.cuh).
void launch_draw(const SampleArgs& args, int32_t n, int32_t cluster, device::Stream& stream);
void launch_logprobs(const LogprobArgs& args, int32_t n, int32_t cluster, int64_t slice_bytes,
                     device::Stream& stream);
// Adds ids [n] (which the device can read) to a place's counts; those from `first_output` on are
// the output's.
void launch_count(const int32_t* ids, int32_t n, int32_t first_output, int32_t vocab,
                  uint32_t* counts, device::Stream& stream);
void launch_fill_ids(int32_t* ids, int32_t n, const int32_t* last_tokens, device::Stream& stream);

}  // namespace attune::ops::cuda
