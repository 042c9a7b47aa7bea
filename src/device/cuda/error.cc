#include "device/cuda/error.h"

#include "base/log.h"

namespace attune::device {

bool is_sticky(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorContained:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorExternalDevice:
    case cudaErrorMpsClientTerminated:
    case cudaErrorContextIsDestroyed:
      return true;
    default:
      return false;
  }
}

Status to_status(cudaError_t error, const std::string& call) {
  if (error == cudaSuccess) return {};
  std::string text =
      base::cat(call, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
  if (is_sticky(error))
    return unavailable(text + "; the device is lost to this process: restart it");
  if (error == cudaErrorMemoryAllocation) return resource_exhausted(text);
  return internal_error(text);
}

void log_failure(cudaError_t error, const char* call) {
  if (error == cudaSuccess || is_sticky(error) || error == cudaErrorCudartUnloading) return;
  base::log_warning(to_status(error, call).to_string());
}

Status Health::status() const {
  if (ok()) return {};
  std::lock_guard lock(mutex_);
  return status_;
}

bool Health::check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return true;
  cudaGetLastError();  // it is told here, and must not be taken for the next call's
  fail(explain(error, call));
  return false;
}

void Health::fail(const Status& status) {
  std::lock_guard lock(mutex_);
  if (status_.ok()) status_ = status;
  failed_.store(true, std::memory_order_release);
}

Status Health::explain(cudaError_t error, const std::string& call) const {
  const Status plain = to_status(error, call);
  if (plain.ok()) return plain;
  return {plain.code(), base::cat(plain.message(), "; ", launches_.describe())};
}

}  // namespace attune::device
