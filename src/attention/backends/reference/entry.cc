#include "attention/backends/reference/reference_backend.h"
#include "attention/registry.h"

namespace attune::attention {

BackendEntry reference_backend() {
  return {reference::capabilities(), "",
          [](device::Device& device) { return reference::create(device.info().kind); }};
}

}  // namespace attune::attention
