// Every backend that this source knows, built or not. A backend is a folder under backends/ with a
// descriptor.cc, which defines
//   namespace attune::attention::backends { const Descriptor& NAME(); }
// for its folder's name; CMake lists the folders in a generated table (backend_table.cc). Nothing
// is registered at run time, so neither link order nor initialisation order can lose one.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "attention/backend.h"

namespace attune::attention {

struct Descriptor {
  Capabilities capabilities;
  // Why this build cannot run it ("built without FlashInfer"); empty: it can.
  std::string unavailable;
  // null if unavailable. The device outlives the backend.
  std::unique_ptr<Backend> (*create)(device::Device& device) = nullptr;
};

// In the order of their names.
std::span<const Descriptor* const> descriptors();
const Descriptor* find_descriptor(std::string_view name);  // null: unknown

}  // namespace attune::attention
