#include "device/uploader.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "device/per_device.h"

namespace attune::device {
namespace {

constexpr int64_t kSlotBytes = 16 << 20;
constexpr int64_t kPieceBytes = 256 << 10;  // of one thread at a time
constexpr unsigned kMostThreads = 32;       // they are bound by memory

}  // namespace

std::shared_ptr<Uploader> Uploader::of(Device& device) {
  static PerDevice<Uploader> uploaders;
  const auto make = [&]() -> Result<std::shared_ptr<Uploader>> {
    return std::shared_ptr<Uploader>(new Uploader(device));
  };
  return uploaders.get(device, make).value();
}

Uploader::Uploader(Device& device)
    : device_(device),
      pool_(static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, kMostThreads))) {}

Uploader::~Uploader() {
  for (Slot& slot : slots_)
    if (slot.copied) slot.copied->wait();
}

// Waits until the slot is free, of which at least `bytes` are needed.
Status Uploader::reserve(Slot& slot, int64_t bytes) {
  if (slot.copied) slot.copied->wait();
  slot.copied.reset();
  if (slot.memory.bytes() >= bytes) return {};
  slot.memory.reset();
  ATTUNE_ASSIGN_OR_RETURN(slot.memory, device_.allocate_pinned(bytes, "weights on their way"));
  return {};
}

Status Uploader::write(void* to, int64_t count, int64_t unit_bytes, const Make& make,
                       Stream& stream) {
  const int64_t most = std::max<int64_t>(1, kSlotBytes / unit_bytes);  // units of a slot
  const int64_t grain = std::max<int64_t>(1, kPieceBytes / unit_bytes);
  for (int64_t first = 0; first < count;) {
    Slot& slot = slots_[next_];
    next_ = (next_ + 1) % slots_.size();
    const int64_t some = std::min(count - first, most);
    ATTUNE_RETURN_IF_ERROR(reserve(slot, some * unit_bytes));
    pool_.parallel_for(some, grain, [&](int64_t begin, int64_t end) {
      make(first + begin, first + end, slot.memory.as<uint8_t>() + begin * unit_bytes);
    });
    stream.copy(static_cast<uint8_t*>(to) + first * unit_bytes, slot.memory.data(),
                some * unit_bytes);
    slot.copied = stream.record();
    first += some;
  }
  return {};
}

Status Uploader::copy(void* to, const void* from, int64_t bytes, Stream& stream) {
  const auto* source = static_cast<const uint8_t*>(from);
  return write(
      to, bytes, 1,
      [source](int64_t begin, int64_t end, uint8_t* out) {
        std::memcpy(out, source + begin, static_cast<size_t>(end - begin));
      },
      stream);
}

}  // namespace attune::device
