// What a GPU did, from its profiling interface (CUPTI), which is opened when a trace is asked for.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attune/status.h"

namespace attune::device {

// One kernel, copy or fill, in graphs too. Times are std::chrono::steady_clock's, in ns. A kernel
// that was launched with programmatic dependent launch (docs/cuda.md) begins while the one before
// it still runs, so times overlap.
struct Activity {
  enum class Kind : uint8_t { kKernel, kCopy, kFill };
  Kind kind = Kind::kKernel;
  uint32_t name = 0;  // index in Trace::names
  uint32_t stream = 0;
  int64_t begin_ns = 0, end_ns = 0;
  std::array<int32_t, 3> grid{}, block{};  // kernels only
  int64_t bytes = 0;                       // copies and fills only
};

struct Trace {
  std::vector<std::string> names;    // of kernels: demangled, with template arguments
  std::vector<Activity> activities;  // in order of begin_ns
};

// One at a time in a process, since CUPTI has one list of buffers. Not thread-safe.
class Tracer {
 public:
  virtual ~Tracer() = default;
  // REQUIRES: it does not run. Errors: internal: CUPTI's.
  virtual Status start() = 0;
  // Waits for the device and gives what began since start(). Errors: internal: CUPTI's, or
  // activities were lost.
  virtual Result<Trace> stop() = 0;
};

// `libraries`: as create_cuda_device has it. not_found with every place where CUPTI was looked for;
// unsupported: no driver, no CUDA in this build, or it was made without CUPTI's headers. REQUIRES:
// no other one is there.
Result<std::unique_ptr<Tracer>> create_cuda_tracer(const std::string& libraries);

}  // namespace attune::device
