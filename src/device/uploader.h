// Brings a model's weights into a device's memory: threads put them into pinned host memory, in the
// form that the device wants, and the device copies that while they make the next piece. A copy
// from memory that is not pinned goes at the pace of one thread of the driver.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "attune/status.h"
#include "base/thread_pool.h"
#include "device/device.h"

namespace attune::device {

// One thread at a time.
class Uploader {
 public:
  // The device's, made anew where nobody holds it: hold it for as long as there is more to bring.
  static std::shared_ptr<Uploader> of(Device& device);
  // Waits for the last copies.
  ~Uploader();

  // Writes units [begin, end) of the whole to `out`. On any thread, several at once.
  using Make = std::function<void(int64_t begin, int64_t end, uint8_t* out)>;
  // `count` units of `unit_bytes` each at `to`. When this returns all are made, and what is
  // launched on `stream` afterwards sees them; a failed copy is in its status().
  // Errors: resource_exhausted.
  Status write(void* to, int64_t count, int64_t unit_bytes, const Make& make, Stream& stream);
  // The same of bytes that lie in host memory.
  Status copy(void* to, const void* from, int64_t bytes, Stream& stream);

 private:
  struct Slot {
    Buffer memory;
    std::shared_ptr<Event> copied;  // null: nothing was copied from it
  };
  explicit Uploader(Device& device);
  Status reserve(Slot& slot, int64_t bytes);

  Device& device_;
  base::ThreadPool pool_;
  std::array<Slot, 3> slots_;
  size_t next_ = 0;
};

}  // namespace attune::device
