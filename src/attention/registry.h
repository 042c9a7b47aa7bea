// Every backend that this source knows, built or not. A backend is a folder under backends/ with an
// entry.cc, which defines, for its folder's name,
//   namespace attune::attention { BackendEntry NAME_backend(); }
// CMake lists the folders in a generated table, so neither link order nor initialisation order can
// lose one.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "attention/backend.h"

namespace attune::attention {

struct BackendEntry {
  Capabilities capabilities;
  // Why this build cannot run it ("built without FlashInfer"); empty: it can.
  std::string unavailable;
  // null if unavailable. The device outlives the backend.
  std::unique_ptr<Backend> (*create)(device::Device& device) = nullptr;
};

// In the order of their names; made once, never changed.
const std::vector<BackendEntry>& backends();
const BackendEntry* find_backend(std::string_view name);  // null: unknown

// Why it cannot run on this device: it is not built, or a library or driver that it opens is not
// there. Empty: it can. Makes the backend, and so opens its library.
std::string unavailable_on(const BackendEntry& entry, device::Device& device);

}  // namespace attune::attention
