// What stands around attention in a decode step on a GPU: before it the kernel that makes its
// queries and appends the step's rows, after it the product with what it gave. Kernels that are
// launched with dependent launch overlap their neighbours, so that a backend's time alone is not
// what a step pays for it.
#pragma once

#include <memory>
#include <vector>

#include "attune/status.h"
#include "bench/attention.h"
#include "device/device.h"
#include "kv/layout/layout.h"
#include "ops/gemm/gemm.h"
#include "ops/ops.h"

namespace attune::bench {

// Weights that read what attention with these heads gives: W_o, [q * v_dim, q * v_dim], as if the
// model's width were that of its heads; of latent attention each head's up-projection of values,
// [128, 512]. As many copies as no L2 holds together.
struct OutputWeights {
  std::vector<std::vector<ops::PackedWeight>> copies;  // one weight, or one a head

  // Errors: resource_exhausted.
  static Result<OutputWeights> create(const AttentionHeads& heads, device::Device& device,
                                      device::Stream& stream);
};

// Of one decode case.
class Neighbours {
 public:
  // `slots`: where each sequence's token goes, page * page_size + offset. Errors:
  // resource_exhausted. The weights outlive it.
  static Result<std::unique_ptr<Neighbours>> create(const AttentionCase& what,
                                                    const std::vector<int64_t>& slots,
                                                    const OutputWeights& weights,
                                                    device::Device& device, device::Stream& stream);

  // Inside Stream::launch. MHA: rotary embedding into q, and the append of k and v; latent
  // attention: the rotated parts of q, the rest of which is there.
  void before(const kv::PagedKvView& kv, void* q) const;
  // The product of out, by a copy of the weights that call i - 1 did not read.
  void after(const void* out, int i) const;

 private:
  Neighbours(const AttentionCase& what, const OutputWeights& weights, const ops::OpTable& ops,
             device::Stream& stream)
      : case_(what), weights_(weights), ops_(ops), stream_(stream) {}

  const AttentionCase case_;
  const OutputWeights& weights_;
  const ops::OpTable& ops_;
  device::Stream& stream_;
  device::Buffer inputs_, cos_, sin_, slots_, y_;
  mutable std::vector<ops::LinearParams> items_;
};

}  // namespace attune::bench
