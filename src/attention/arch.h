// The architecture of a device, as descriptors name it.
#pragma once

#include "attention/capabilities.h"
#include "device/device.h"

namespace attune::attention {

inline Arch arch_of(const device::DeviceInfo& info) {
  if (info.kind == device::Kind::kCpu) return Arch::kCpu;
  return info.sm >= 100  ? Arch::kSm100
         : info.sm >= 90 ? Arch::kSm90
         : info.sm >= 89 ? Arch::kSm89
                         : Arch::kSm80;
}

}  // namespace attune::attention
