// What is shared by all who use a device, for as long as one of them holds it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "attune/status.h"

namespace attune::device {

class Device;

// Thread-safe.
template <typename T>
class PerDevice {
 public:
  // The device's, or what make() gives where nobody holds one: a Result<std::shared_ptr<T>>.
  template <typename Make>
  Result<std::shared_ptr<T>> get(const Device& device, Make make) {
    std::lock_guard lock(mutex_);
    std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
    if (const auto found = known_.find(&device); found != known_.end())
      if (std::shared_ptr<T> there = found->second.lock()) return there;
    Result<std::shared_ptr<T>> made = make();
    if (made.ok()) known_[&device] = *made;
    return made;
  }

 private:
  std::mutex mutex_;
  std::map<const Device*, std::weak_ptr<T>> known_;
};

}  // namespace attune::device
