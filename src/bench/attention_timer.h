// How a case of `attune bench attention` is laid out on a device and timed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention/backend.h"
#include "attune/status.h"
#include "bench/attention.h"
#include "bench/attention_neighbours.h"
#include "device/device.h"
#include "engine/staging.h"

namespace attune::bench {

// Type of activations on this device.
tensor::DType activations_on(const device::DeviceInfo& info);

// What the cases of a run share, so that each begins at once.
class SharedMemory {
 public:
  SharedMemory(device::Device& device, device::Stream& stream) : device_(device), stream_(stream) {}

  // Memory full of random values of the type, at least `bytes`; the next call's takes its place.
  // Errors: resource_exhausted.
  Result<char*> values(tensor::DType dtype, int64_t bytes);
  // Uniform in [-1, 1).
  Status fill(device::Buffer& buffer, tensor::DType dtype);
  // Errors: resource_exhausted.
  Result<const OutputWeights*> output_weights(const AttentionHeads& heads);

 private:
  device::Device& device_;
  device::Stream& stream_;
  device::Buffer memory_;
  tensor::DType dtype_ = tensor::DType::kF32;  // of what is in it
  std::vector<std::pair<AttentionHeads, std::unique_ptr<OutputWeights>>> weights_;
};

// Calls that follow each other, ready to be launched again and again.
struct AttentionChain {
  int calls = 0;
  device::Buffer workspace;
  std::unique_ptr<attention::Plan> plan;
  std::unique_ptr<device::Graph> graph;
};

// One case on one device: pools, arrays, queries. Backends take turns on it.
class AttentionTimer {
 public:
  // Errors: resource_exhausted. Device and stream outlive it.
  static Result<std::unique_ptr<AttentionTimer>> create(const AttentionCase& c, Timing timing,
                                                        SharedMemory& shared,
                                                        device::Device& device,
                                                        device::Stream& stream,
                                                        const attention::Tuning& tuning = {});

  // Seconds of one layer's call. In a step: of the step with it, less what its neighbours take
  // without, which is measured once. Errors: the backend's plan()'s; unsupported.
  Result<double> time_backend(attention::Backend& backend, int repeats);
  // Errors: as time_backend's. Timer and backend outlive it.
  Result<AttentionChain> chain(attention::Backend& backend);
  // Seconds of a bulk read of kv_bytes(). Errors: unsupported: a case too small for one.
  Result<double> time_read(int repeats);

  // K and V of every key once. A prefix that several queries share is read once.
  int64_t kv_bytes() const;
  // Two products of 2 flop for each query and key that it sees.
  double flops() const;
  const attention::Batch& batch() const { return batch_; }

 private:
  AttentionTimer(const AttentionCase& c, Timing timing, device::Device& device,
                 device::Stream& stream)
      : case_(c), timing_(timing), device_(device), stream_(stream) {}

  void lay_out();
  Status make_pools(SharedMemory& shared);
  Status make_neighbours(SharedMemory& shared);
  Status make_rows(SharedMemory& shared);
  Status send_arrays();
  struct Prepared {
    device::Buffer workspace;
    std::unique_ptr<attention::Plan> plan;
  };
  Result<Prepared> prepare(attention::Backend& backend);
  void run(const attention::Backend& backend, attention::Plan& plan, int i) const;
  int calls() const;  // of a graph
  attention::Limits limits() const;
  attention::LayerParams layer() const;
  attention::Io io() const;
  // calls() of fn, `once` before each 32 of them.
  Result<std::unique_ptr<device::Graph>> capture(const std::function<void(int)>& fn,
                                                 const std::function<void()>& once);
  // Seconds of one call of fn: the median of `repeats` measurements of such a graph.
  Result<double> time(const std::function<void(int)>& fn, const std::function<void()>& once,
                      int repeats);

  attention::Tuning tuning_;
  const AttentionCase case_;
  const Timing timing_;
  device::Device& device_;
  device::Stream& stream_;
  std::vector<int32_t> q_indptr_, kv_len_, page_indptr_, page_slots_, kv_start_;
  std::vector<uint64_t> tree_;
  std::vector<kv::PagedKvView> views_;  // pools that no cache holds together
  int64_t pool_bytes_ = 0;
  device::Buffer q_, out_, sink_;
  engine::Staging staging_;
  attention::Batch batch_;
  std::unique_ptr<Neighbours> neighbours_;
  double step_without_ = 0;  // seconds of the neighbours alone; 0: not measured yet
};

}  // namespace attune::bench
