#include "attention/backends/cpu/cpu_backend.h"
#include "attention/registry.h"

namespace attune::attention {

BackendEntry cpu_backend() {
  return {cpu::capabilities(), "",
          [](device::Device& device) { return cpu::create(device.info().isa); }};
}

}  // namespace attune::attention
