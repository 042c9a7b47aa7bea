#include "attention/route.h"

#include <algorithm>

#include "attention/registry.h"
#include "base/log.h"

namespace attune::attention {
namespace {

using base::cat;

std::string join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

Result<std::unique_ptr<Backend>> create_backend(const std::string& name, device::Device& device) {
  const BackendEntry* entry = find_backend(name);
  if (!entry) {
    std::vector<std::string> known;
    for (const BackendEntry& e : backends()) known.push_back(e.capabilities.name);
    return not_found(cat("attention backend '", name, "' is unknown; there are ", join(known)));
  }
  if (!entry->unavailable.empty())
    return unsupported(cat("attention backend '", name, "': ", entry->unavailable));
  return entry->create(device);
}

}  // namespace

Result<std::unique_ptr<Router>> Router::create(const BackendOrder& order, device::Device& device) {
  std::vector<std::string> names;
  std::vector<std::unique_ptr<Backend>> instances;
  std::array<std::vector<int>, kNumPhases> indices;
  for (int phase = 0; phase < kNumPhases; ++phase) {
    for (const std::string& name : order[phase]) {
      auto it = std::find(names.begin(), names.end(), name);
      const int index = static_cast<int>(it - names.begin());
      if (it == names.end()) {
        ATTUNE_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, create_backend(name, device));
        names.push_back(name);
        instances.push_back(std::move(backend));
      }
      indices[phase].push_back(index);
    }
  }
  return std::make_unique<Router>(std::move(instances), std::move(indices));
}

Router::Router(std::vector<std::unique_ptr<Backend>> backends,
               std::array<std::vector<int>, kNumPhases> order)
    : backends_(std::move(backends)) {
  for (int phase = 0; phase < kNumPhases; ++phase) {
    for (int index : order[phase]) {
      order_[phase].push_back(std::make_unique<Entry>());
      order_[phase].back()->backend = index;
    }
  }
}

Result<Choice> Router::route(const Batch& batch) {
  const auto& list = order_[static_cast<size_t>(batch.phase)];
  std::vector<std::string> refusals;
  for (size_t i = 0; i < list.size(); ++i) {
    const Backend& backend = *backends_[list[i]->backend];
    const std::string& name = backend.capabilities().name;
    const Support support = backend.supports(batch);
    if (!support.ok()) {
      refusals.push_back(cat(name, ": ", join(support.reasons)));
      continue;
    }
    list[i]->batches[static_cast<size_t>(batch.path)].fetch_add(1, std::memory_order_relaxed);
    if (list[i]->all.fetch_add(1, std::memory_order_relaxed) == 0 && i > 0)
      base::log_warning("attention for ", phase_name(batch.phase), " falls back to ", name, " (",
                        join(refusals), "); later fallbacks are only counted");
    return Choice{&backend, list[i]->backend};
  }
  return unsupported(cat("no attention backend serves this ", phase_name(batch.phase),
                         " batch: ", list.empty() ? "the phase's list is empty" : join(refusals)));
}

std::vector<RouteCount> Router::counts() const {
  std::vector<RouteCount> all;
  for (int phase = 0; phase < kNumPhases; ++phase) {
    for (size_t i = 0; i < order_[phase].size(); ++i) {
      const Entry& e = *order_[phase][i];
      const std::string& name = backends_[e.backend]->capabilities().name;
      bool any = false;
      for (int path = 0; path < kNumPaths; ++path) {
        const uint64_t count = e.batches[path].load(std::memory_order_relaxed);
        if (count == 0) continue;
        all.push_back({static_cast<Phase>(phase), name, static_cast<Path>(path), count, i > 0});
        any = true;
      }
      if (!any) all.push_back({static_cast<Phase>(phase), name, Path::kPaged, 0, i > 0});
    }
  }
  return all;
}

}  // namespace attune::attention
