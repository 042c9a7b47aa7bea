// A backend on a device, the outputs it gives for a Problem, and how outputs are compared.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "problem.h"

namespace attune::attention::test {

struct Output {
  std::vector<float> out;  // [tokens, q_heads, v_dim]
  std::vector<float> lse;  // [tokens, q_heads]; empty if the backend gives none
  int32_t v_dim = 0;       // of what others are compared with
};

// Host memory as a device's kernels see it: itself on a CPU; on a GPU a copy that lives as long as
// this object.
class DeviceMemory {
 public:
  DeviceMemory(device::Device& device, device::Stream& stream) : device_(device), stream_(stream) {}
  template <typename T>
  T* copy_of(T* host, int64_t count) {
    return static_cast<T*>(copy(host, count * int64_t{sizeof(T)}));
  }
  // Of `bytes` bytes; null of none.
  void* copy(const void* host, int64_t bytes);
  // What kernels made of the copy at `from`.
  void copy_back(void* host, const void* from, int64_t bytes);
  // The batch with its arrays on the GPU.
  Batch with_arrays(const Batch& batch);

 private:
  device::Device& device_;
  device::Stream& stream_;
  std::vector<device::Buffer> buffers_;
};

// Every plan's workspace is full of NaN when it is made. On the GPU what a problem holds is copied
// there for each run, in allocations of its own size, and the host's copy of a batch's arrays is
// overwritten once a plan is made. Where queries have 16
// bits there, an output of no type in particular (float32) has theirs.
class Runner {
 public:
  // isa kCuda: the first GPU, which must be there.
  Runner(const std::string& backend, const std::string& isa, int threads);
  // Plans and runs one layer. What lies around the output's rows is checked to be untouched, and
  // between them where they lie apart.
  Output run(const Problem& problem, Phase phase, const LayerParams& layer,
             tensor::DType out_dtype = tensor::DType::kF32, const Tuning& tuning = {}) const;
  Output run(const Problem& problem, Phase phase = Phase::kPrefill) const {
    return run(problem, phase, problem.layer());
  }
  // The same with a plan that the caller keeps, made for limits that hold the problem.
  Output run_with(Plan& plan, const Problem& problem, Phase phase, const LayerParams& layer,
                  tensor::DType out_dtype = tensor::DType::kF32) const;
  // One layer more of what was planned last.
  Output execute(Plan& plan, const Problem& problem, const LayerParams& layer,
                 tensor::DType out_dtype = tensor::DType::kF32) const;
  // Made for the problem's limits, with a workspace that lives as long as the runner; `calls`:
  // Limits::calls.
  std::unique_ptr<Plan> make_plan(const Problem& problem, const Tuning& tuning = {},
                                  std::vector<Call> calls = {});
  Status plan_only(const Problem& problem, Phase phase) const;
  // The problem's pages in a pool of `slots` slots that the caller filled.
  Output run_in(void* pool, int32_t slots, const Problem& problem, Phase phase) const;
  const Backend& backend() const { return *backend_; }
  device::Device& device() const { return *device_; }
  device::Stream& stream() const { return *stream_; }
  int threads() const { return threads_; }
  bool on_gpu() const { return device_->info().kind == device::Kind::kCuda; }

 private:
  device::Buffer workspace(const Limits& limits) const;
  // Guard elements behind each row of an output; on a GPU rows begin at multiples of 16 bytes.
  int64_t gap() const { return on_gpu() ? 8 : 5; }
  Status plan_batch(Plan& plan, const Problem& problem, Phase phase) const;
  // Of a run: types and strides, and an LSE that is not null where there will be one.
  Io io_of(const Shape& shape, tensor::DType out_dtype) const;
  Output execute_in(const kv::PagedKvView& view, Plan& plan, const Problem& problem,
                    const LayerParams& layer, tensor::DType out_dtype) const;

  int threads_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<Backend> backend_;
  std::vector<device::Buffer> workspaces_;
  // The arrays on the GPU of each plan's batch, from its plan to its last run.
  mutable std::map<const Plan*, std::unique_ptr<DeviceMemory>> arrays_;
};

// Floats as elements of another float type, and back.
std::vector<char> narrowed(const std::vector<float>& values, tensor::DType dtype);
std::vector<float> widened(const char* elements, tensor::DType dtype, int64_t count);

inline constexpr char kCuda[] = "cuda";
// Why no GPU can be used; empty: one can.
const std::string& gpu_missing();

// Names of the ISA levels this machine has.
std::vector<std::string> isa_levels();

// Fails with the first element further apart than atol + rtol * |want|, and with the first row
// further, relative by L2 norms, than the larger of these, 8e-3 at most: what averages of many
// values hide from atol. LSEs are compared where both have them, as elements, within 4e-3 at most.
// Infinities must agree, and nothing is NaN.
void expect_close(const Output& got, const Output& want, double atol, double rtol,
                  const std::string& what);
// Results over disjoint sets of keys, in their order, as the one over their union: by the CPU's op.
Output merge(const std::vector<Output>& parts, int32_t heads, int32_t v_dim);

// Fails unless all bits agree.
void expect_same_bits(const Output& got, const Output& want, const std::string& what);

}  // namespace attune::attention::test
