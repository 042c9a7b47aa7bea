// Which backend serves a batch: the first of its phase's list that can. Knows no backend by name.
// An MLA model will split its batch by sequence into sub-batches, each with a backend and a path;
// what is chosen stays a property of the batch, and no flag lives on a backend.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "attention/backend.h"

namespace attune::attention {

// Names of backends for each phase, best first, as the resolver gives them.
using BackendOrder = std::array<std::vector<std::string>, kNumPhases>;

struct Choice {
  const Backend* backend = nullptr;
  int index = 0;  // of num_backends(): for a caller's plans and workspaces
};

struct RouteCount {
  std::string name;  // "prefill/cpu"
  uint64_t count;    // batches
  bool fallback;     // not the first of its phase's list
};

class Router {
 public:
  // One instance of each backend that is named, also when several phases name it. Errors: not_found
  // and unsupported with the name and what there is.
  static Result<std::unique_ptr<Router>> create(const BackendOrder& order, device::Device& device);

  // For tests: backends that the registry does not know; `order` holds indices into them.
  Router(std::vector<std::unique_ptr<Backend>> backends,
         std::array<std::vector<int>, kNumPhases> order);

  // Once per batch and step, from one thread. A fallback is counted, and logged the first time with
  // its reason. Errors: unsupported, with every backend's reasons.
  Result<Choice> route(const Batch& batch);

  int num_backends() const { return static_cast<int>(backends_.size()); }
  const Backend& backend(int index) const { return *backends_[index]; }
  // How often each was chosen, in the lists' order; from any thread.
  std::vector<RouteCount> counts() const;

 private:
  struct Entry {
    int backend;
    std::atomic<uint64_t> batches{0};
  };
  std::vector<std::unique_ptr<Backend>> backends_;
  std::array<std::vector<std::unique_ptr<Entry>>, kNumPhases> order_;
};

}  // namespace attune::attention
