// CUDA's errors as Status.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <mutex>
#include <string>

#include "attune/status.h"
#include "device/cuda/launch_ring.h"

namespace attune::device {

// Whether the error stays: every later call of this process on the device fails with it.
bool is_sticky(cudaError_t error);
// ok for cudaSuccess; resource_exhausted for memory, unavailable where is_sticky, else internal:
// "CALL: an illegal memory access was encountered (cudaErrorIllegalAddress); the device is lost
// ...".
Status to_status(cudaError_t error, const std::string& call);
// For destructors: a failure is logged, unless it is sticky (that one was told where it arose) or
// the process is ending.
void log_failure(cudaError_t error, const char* call);

// What a stream, its events and its graphs know together: the last launches and the first failure.
// Thread-safe.
class Health {
 public:
  bool ok() const { return !failed_.load(std::memory_order_acquire); }
  Status status() const;
  // True when `error` is cudaSuccess; the first other one becomes the status.
  bool check(cudaError_t error, const char* call);
  // The same with a Status that is not ok.
  void fail(const Status& status);
  // `error` as a Status with the last launches.
  Status explain(cudaError_t error, const std::string& call) const;
  LaunchRing& launches() { return launches_; }

 private:
  LaunchRing launches_;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  Status status_;
};

}  // namespace attune::device
