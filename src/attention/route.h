// Which backend serves a batch: the first of its phase's list that can. Knows no backend by name.
// An MLA model's extend batch is first split by sequence (split_extend), each part with a path;
// what is chosen is a property of the batch, and no flag lives on a backend.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/order.h"

namespace attune::attention {

struct Choice {
  const Backend* backend = nullptr;
  int index = 0;  // of num_backends(): for a caller's plans and workspaces
};

struct RouteCount {
  Phase phase;
  std::string backend;
  Path path;
  uint64_t count;  // batches
  bool fallback;   // it was not the first of its batch's order
};

// Rows M1 to M4 for one sequence of an extend batch. REQUIRES: new_tokens > 0.
Path mla_path(int32_t new_tokens, int32_t prefix, const MlaPolicy& policy);

// Some sequences of an extend batch that go one path together.
struct ExtendPart {
  Path path = Path::kPaged;
  std::vector<int32_t> seqs;  // indices into the batch, rising
};
// Every sequence in exactly one part. The keys of a kOneShot part (prefix and new) are within the
// capacity together, which may make several of it.
struct ExtendSeq {
  int32_t new_tokens = 0, prefix = 0;
};
std::vector<ExtendPart> split_extend(const std::vector<ExtendSeq>& seqs, const MlaPolicy& policy);

// One call over a part of a kChunked part's prefixes.
struct PrefixChunk {
  struct Range {
    int32_t seq = 0;             // of the part
    int32_t begin = 0, end = 0;  // positions in its prefix
  };
  std::vector<Range> ranges;  // of neighbouring sequences
};
// Cuts the prefixes, in order, into chunks of at most `capacity` keys, each as full as it can be.
// Sequences without a prefix are in none; no range is empty.
std::vector<PrefixChunk> chunk_prefixes(const std::vector<int32_t>& prefixes, int64_t capacity);

class Router {
 public:
  // One instance of each backend that is named, also when several phases name it. Errors: not_found
  // and unsupported with the name and what there is.
  static Result<std::unique_ptr<Router>> create(const BackendOrder& order, device::Device& device);

  // For tests: backends that the registry does not know. REQUIRES: every name is one of theirs.
  Router(std::vector<std::unique_ptr<Backend>> backends, const BackendOrder& order);

  // Once per batch and step, from one thread. A fallback is counted, and on each path logged the
  // first time with its reason. `plan` makes a choice ready: where it says unsupported, the next
  // one is tried; its other errors are returned. Errors: unsupported, with every backend's reasons.
  using PlanFn = std::function<Status(const Choice&)>;
  Result<Choice> route(const Batch& batch, const PlanFn& plan = nullptr);

  int num_backends() const { return static_cast<int>(backends_.size()); }
  const Backend& backend(int index) const { return *backends_[index]; }
  // How often each was chosen, in the lists' order; what never happened is left out, but a backend
  // that was never chosen has one entry of 0. From any thread.
  std::vector<RouteCount> counts() const;

 private:
  struct Entry {
    int backend;
    std::array<std::array<std::atomic<uint64_t>, 2>, kNumPaths> batches{};  // by path and fallback
    std::array<bool, kNumPaths> told{};                                     // of a fallback
  };
  struct List {
    std::vector<std::unique_ptr<Entry>> entries;
    std::vector<SizedOrder> sizes;              // at least one; their names are not used
    std::vector<std::vector<size_t>> order_of;  // each size's entries, best first
  };

  std::vector<std::unique_ptr<Backend>> backends_;
  std::array<List, kNumPhases> lists_;
};

}  // namespace attune::attention
