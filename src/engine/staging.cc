#include "engine/staging.h"

namespace attune::engine {

Result<Staging> Staging::create(device::Device& device, int64_t capacity, int lanes) {
  Staging s;
  ATTUNE_ASSIGN_OR_RETURN(s.device_, device.allocate(capacity, "a step's arrays"));
  for (int i = 0; i < lanes; ++i) {
    ATTUNE_ASSIGN_OR_RETURN(device::Buffer pinned,
                            device.allocate_pinned(capacity, "a step's arrays"));
    s.pinned_.push_back(std::move(pinned));
  }
  return s;
}

}  // namespace attune::engine
