#include "attention/route.h"

#include <algorithm>
#include <utility>

#include "attention/registry.h"
#include "base/check.h"
#include "base/log.h"

namespace attune::attention {
namespace {

using base::cat;
using base::join;

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

// What of a batch the backend's capabilities already rule out: only the path varies by batch.
Support supports(const Backend& backend, const Batch& batch) {
  if (batch.phase == Phase::kPrefill && batch.path != Path::kPaged &&
      !takes_path(backend.capabilities(), batch.path))
    return {{cat("has no ", path_name(batch.path), " path")}};
  return backend.supports(batch);
}

// The names of a phase, each once.
std::vector<std::string> names_of(const PhaseOrder& order) {
  std::vector<std::string> names = order.backends;
  for (const SizedOrder& cell : order.sized)
    for (const std::string& name : cell.backends)
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  return names;
}

}  // namespace

Result<std::unique_ptr<Router>> Router::create(const BackendOrder& order, device::Device& device) {
  std::vector<std::string> known;
  std::vector<std::unique_ptr<Backend>> instances;
  for (const PhaseOrder& phase : order) {
    for (const std::string& name : names_of(phase)) {
      if (std::find(known.begin(), known.end(), name) != known.end()) continue;
      ATTUNE_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, create_backend(name, device));
      known.push_back(name);
      instances.push_back(std::move(backend));
    }
  }
  return std::make_unique<Router>(std::move(instances), order);
}

Router::Router(std::vector<std::unique_ptr<Backend>> backends, const BackendOrder& order)
    : backends_(std::move(backends)) {
  for (int phase = 0; phase < kNumPhases; ++phase) {
    List& list = lists_[phase];
    const std::vector<std::string> names = names_of(order[phase]);
    for (const std::string& name : names) {
      list.entries.push_back(std::make_unique<Entry>());
      list.entries.back()->backend = static_cast<int>(
          std::find_if(backends_.begin(), backends_.end(),
                       [&](const auto& b) { return b->capabilities().name == name; }) -
          backends_.begin());
      ATTUNE_CHECK(list.entries.back()->backend < num_backends());
    }
    list.sizes = order[phase].sized;
    if (list.sizes.empty()) list.sizes.emplace_back();
    for (const SizedOrder& size : list.sizes) {
      std::vector<size_t>& best_first = list.order_of.emplace_back();
      for (const std::string& name : order[phase].for_batch(size.sequences, size.tokens))
        best_first.push_back(std::find(names.begin(), names.end(), name) - names.begin());
    }
  }
}

Result<Choice> Router::route(const Batch& batch, const PlanFn& plan) {
  const List& list = lists_[static_cast<size_t>(batch.phase)];
  const SizedOrder& size = nearest(list.sizes, batch.num_seqs, batch.max_kv_len);
  const std::vector<size_t>& order = list.order_of[&size - list.sizes.data()];
  std::vector<std::string> refusals;
  for (size_t i = 0; i < order.size(); ++i) {
    Entry& entry = *list.entries[order[i]];
    const Backend& backend = *backends_[entry.backend];
    const std::string& name = backend.capabilities().name;
    const Support support = supports(backend, batch);
    if (!support.ok()) {
      refusals.push_back(cat(name, ": ", join(support.reasons)));
      continue;
    }
    const Choice choice{&backend, entry.backend};
    const Status planned = plan ? plan(choice) : Status();
    if (planned.code() == Code::kUnsupported) {
      refusals.push_back(cat(name, ": ", planned.message()));
      continue;
    }
    ATTUNE_RETURN_IF_ERROR(planned);
    const bool fallback = i > 0;
    const auto path = static_cast<size_t>(batch.path);
    entry.batches[path][fallback].fetch_add(1, std::memory_order_relaxed);
    // Once for each path: that a backend has no absorbed extend (M5) hides no other reason.
    if (fallback && !std::exchange(entry.told[path], true))
      base::log_warning("attention for ", phase_name(batch.phase), " (", path_name(batch.path),
                        ") falls back to ", name, " (", join(refusals),
                        "); later ones are only counted");
    return choice;
  }
  return unsupported(cat("no attention backend serves this ", phase_name(batch.phase),
                         " batch: ", order.empty() ? "the phase's list is empty" : join(refusals)));
}

std::vector<RouteCount> Router::counts() const {
  std::vector<RouteCount> all;
  for (int phase = 0; phase < kNumPhases; ++phase) {
    for (size_t i = 0; i < lists_[phase].entries.size(); ++i) {
      const Entry& e = *lists_[phase].entries[i];
      const std::string& name = backends_[e.backend]->capabilities().name;
      bool any = false;
      for (int path = 0; path < kNumPaths; ++path) {
        for (bool fallback : {false, true}) {
          const uint64_t count = e.batches[path][fallback].load(std::memory_order_relaxed);
          if (count == 0) continue;
          all.push_back(
              {static_cast<Phase>(phase), name, static_cast<Path>(path), count, fallback});
          any = true;
        }
      }
      if (!any) all.push_back({static_cast<Phase>(phase), name, Path::kPaged, 0, i > 0});
    }
  }
  return all;
}

}  // namespace attune::attention
