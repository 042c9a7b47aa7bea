// A backend on a device, the outputs it gives for a Problem, and how outputs are compared.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "problem.h"

namespace attune::attention::test {

struct Output {
  std::vector<float> out;  // [tokens, q_heads, v_dim]
  std::vector<float> lse;  // [tokens, q_heads]; empty if the backend gives none
};

class Runner {
 public:
  Runner(const std::string& backend, const std::string& isa, int threads);
  // Plans and runs one layer. Rows of the output lie apart, and the gaps between them are checked
  // to be untouched; the workspace is full of NaN.
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
  // Made for the problem's limits, with a workspace that lives as long as the runner.
  std::unique_ptr<Plan> make_plan(const Problem& problem, const Tuning& tuning = {});
  Status plan_only(const Problem& problem, Phase phase) const;
  const Backend& backend() const { return *backend_; }
  device::Device& device() const { return *device_; }
  device::Stream& stream() const { return *stream_; }
  int threads() const { return threads_; }

 private:
  int threads_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<Backend> backend_;
  std::vector<device::Buffer> workspaces_;
};

// Names of the ISA levels this machine has.
std::vector<std::string> isa_levels();

// Fails with the first element further apart than atol + rtol * |want|; infinities must agree.
// LSEs are compared where both have them.
void expect_close(const Output& got, const Output& want, double atol, double rtol,
                  const std::string& what);
// Fails unless all bits agree.
void expect_same_bits(const Output& got, const Output& want, const std::string& what);

}  // namespace attune::attention::test
