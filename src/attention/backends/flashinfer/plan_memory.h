// What a plan keeps from plan() to run(): made on the host, copied to the device.
#pragma once

#include <array>
#include <cstdint>

#include "device/device.h"

namespace attune::attention::flashinfer {

class PlanMemory {
 public:
  // Errors: status().
  PlanMemory(device::Device& device, int64_t bytes, const char* what)
      : status_(allocate(device, bytes, what)) {}

  const Status& status() const { return status_; }
  // Pinned memory for a step, not that of the step before, which may still be copied from.
  char* next() {
    now_ ^= 1;
    return host();
  }
  char* host() { return staged_[now_].as<char>(); }
  const char* on_device() const { return on_device_.as<char>(); }
  // Bytes [at, at + bytes) of host() to where the device reads them.
  void copy(int64_t at, int64_t bytes, device::Stream& stream) {
    stream.copy(on_device_.as<char>() + at, host() + at, bytes);
  }

 private:
  Status allocate(device::Device& device, int64_t bytes, const char* what) {
    ATTUNE_ASSIGN_OR_RETURN(on_device_, device.allocate(bytes, what));
    for (device::Buffer& staged : staged_) {
      ATTUNE_ASSIGN_OR_RETURN(staged, device.allocate_pinned(bytes, what));
    }
    return {};
  }

  device::Buffer on_device_;
  std::array<device::Buffer, 2> staged_;
  int now_ = 0;
  Status status_;
};

}  // namespace attune::attention::flashinfer
