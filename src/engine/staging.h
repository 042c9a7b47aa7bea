// What a step hands to the device: arrays of the host, gathered in pinned memory and sent by one
// copy. On the engine's thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "attune/status.h"
#include "base/check.h"
#include "device/device.h"

namespace attune::engine {

class Staging {
 public:
  // `capacity` bytes for each of `lanes` steps in flight. The device's side is one: the arrays of
  // equal steps lie at equal addresses, whichever lane they came by.
  static Result<Staging> create(device::Device& device, int64_t capacity, int lanes);

  // Starts a step; what was sent from this lane before has been copied.
  void begin(int lane) {
    lane_ = lane;
    used_ = 0;
  }
  // Where the values will be on the device once send() is done.
  template <typename T>
  const T* add(const T* values, size_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    const int64_t bytes = static_cast<int64_t>(count * sizeof(T));
    const int64_t at = used_;
    ATTUNE_CHECK(at + bytes <= device_.bytes());
    std::memcpy(pinned_[lane_].as<char>() + at, values, static_cast<size_t>(bytes));
    used_ = (at + bytes + kAlignment - 1) / kAlignment * kAlignment;
    return reinterpret_cast<const T*>(device_.as<char>() + at);
  }
  template <typename T>
  const T* add(const std::vector<T>& values) {
    return add(values.data(), values.size());
  }
  void send(device::Stream& stream) const {
    stream.copy(device_.data(), pinned_[lane_].data(), std::min(used_, device_.bytes()));
  }
  // Of `count` elements in such a step.
  static int64_t bytes_of(int64_t count, int64_t elem_bytes) {
    return (count * elem_bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

 private:
  static constexpr int64_t kAlignment = 64;

  device::Buffer device_;
  std::vector<device::Buffer> pinned_;  // [lanes]
  int lane_ = 0;
  int64_t used_ = 0;
};

}  // namespace attune::engine
