// One region of device memory, taken once and handed out front to back: what the engine needs is
// known when it starts, and afterwards nothing is allocated. Nothing is given back singly.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attune/status.h"
#include "device/device.h"

namespace attune::device {

// One thread. The memory goes with the arena.
class Arena {
 public:
  // Every piece begins at a multiple of this: cache lines, TMA descriptors and vectors fit.
  static constexpr int64_t kAlignment = 256;

  // Takes `budget` bytes from the device.
  static Result<Arena> create(Device& device, int64_t budget, std::string what);

  // `bytes` bytes, zero, of which the caller owns nothing; 0 bytes: null. resource_exhausted when
  // they are not left.
  Result<void*> take(int64_t bytes, const std::string& what);

  int64_t budget() const { return memory_.bytes(); }
  int64_t used() const { return used_; }  // with what alignment costs
  int64_t left() const { return budget() - used_; }
  // "weights 1024 bytes, KV cache 2048 bytes; 512 of 3584 bytes are left".
  std::string describe() const;

 private:
  struct Piece {
    std::string what;
    int64_t bytes;
  };
  Arena(Buffer memory, std::string what) : memory_(std::move(memory)), what_(std::move(what)) {}

  Buffer memory_;
  std::string what_;
  int64_t used_ = 0;
  std::vector<Piece> pieces_;
};

}  // namespace attune::device
