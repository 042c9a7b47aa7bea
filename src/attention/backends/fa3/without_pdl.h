#pragma once

#include "device/device.h"

namespace attune::attention::fa3 {

// Programmatic dependent launch off for a while, on a stream that has it on.
class WithoutPdl {
 public:
  WithoutPdl(device::Stream& stream, bool off) : stream_(stream), was_(stream.pdl()) {
    if (off) stream_.set_pdl(false);
  }
  ~WithoutPdl() { stream_.set_pdl(was_); }
  WithoutPdl(const WithoutPdl&) = delete;
  WithoutPdl& operator=(const WithoutPdl&) = delete;

 private:
  device::Stream& stream_;
  const bool was_;
};

}  // namespace attune::attention::fa3
