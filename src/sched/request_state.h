// A request's life as the scheduler sees it. What a state holds (pages, prefix, place) are its
// move-only members; what a state must not touch, it does not have.
//
//   Waiting --admit--> Prefilling --last chunk--> Decoding --stop, length, abort, error--> Finished
//      ^                   |                         |
//      '---- Retracted <---'------ pool is full -----'
//
// Finished and Retracted keep the seat until no step in flight touches it.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "attune/request.h"
#include "kv/index/prefix_index.h"
#include "kv/pool/page_pool.h"
#include "sched/step_plan.h"

namespace attune::sched {

// A place on the device, given back when it dies. Move-only.
class PlaceLease {
 public:
  PlaceLease() = default;
  // REQUIRES: *free is not empty and outlives the lease
  explicit PlaceLease(std::vector<int32_t>* free) : free_(free), place_(free->back()) {
    free->pop_back();
  }
  PlaceLease(PlaceLease&& o) noexcept : free_(std::exchange(o.free_, nullptr)), place_(o.place_) {}
  PlaceLease& operator=(PlaceLease&& o) noexcept {
    std::swap(free_, o.free_);
    std::swap(place_, o.place_);
    return *this;
  }
  ~PlaceLease() {
    if (free_ != nullptr) free_->push_back(place_.value);
  }
  SeqPlace get() const { return place_; }

 private:
  std::vector<int32_t>* free_ = nullptr;
  SeqPlace place_;
};

// What a sequence on the device holds. Page i of it lies in slots[i]: the first prefix.pages() are
// shared and never written again; of the others own[i] is its owner.
struct Seat {
  PlaceLease place;
  kv::PrefixPin prefix;
  std::vector<kv::OwnedPage> own;  // as long as slots; empty where the prefix holds the page
  std::vector<kv::DeviceSlot> slots;
  // Pages of ours whose content the index had already, kept until the steps that read them are
  // over.
  struct Duplicate {
    uint64_t last_step;
    kv::OwnedPage page;
  };
  std::vector<Duplicate> duplicates;

  int32_t matched = 0;  // pages found in the index at admission, those loaded included
  int32_t cached = 0;   // tokens whose KV is complete: after the last committed step ...
  int32_t planned = 0;  // ... and after the steps in flight (the speculated state)

  int32_t pages() const { return static_cast<int32_t>(slots.size()); }
};

struct Waiting {};
struct Prefilling {
  Seat seat;
  int32_t target = 0;  // tokens to compute before the first draw
};
struct Decoding {
  Seat seat;
};
struct Retracted {
  std::optional<Seat> draining;
};
struct Finished {
  std::optional<Seat> draining;
};
using State = std::variant<Waiting, Prefilling, Decoding, Retracted, Finished>;

struct SeqState {
  RequestId id = 0;
  uint64_t arrival = 0;     // counts up
  SamplingParams sampling;  // with the seed; max_new_tokens as far as model and pool allow
  int32_t priority = 0;
  kv::PrefixSalt salt;
  std::vector<TokenId> tokens;  // prompt and what was generated, as far as committed
  int32_t prompt_tokens = 0;
  int32_t prompt_cached = -1;  // prompt tokens found at the first admission; -1: not admitted yet
  int32_t logprobs_next = -1;  // first prompt position whose logprob is still to come; -1: none
  int32_t rows_in_flight = 0;
  int32_t draws_in_flight = 0;  // of these rows, those that draw a token
  uint64_t last_step = 0;       // the last step with a row of it
  uint64_t void_until = 0;      // rows of steps up to this one read pages that did not come ...
  std::vector<kv::PageTransfer> failed_loads;  // ... into these, and may still read them
  bool no_loads = false;  // a load failed it: it computes what is not on the device

  // While it waits:
  uint64_t waiting_since = 0;  // number of the plan
  RequestId mate = 0;          // computes the first mate_tokens tokens that this one needs as well
  int32_t mate_tokens = 0;     // 0: no mate
  int32_t peeked = 0;          // tokens found in the index at its version peeked_version
  uint64_t peeked_version = 0;

  State state;

  int32_t length() const { return static_cast<int32_t>(tokens.size()); }
  int32_t generated() const { return length() - prompt_tokens; }
  // The speculated state: as if every step in flight had been committed and nobody had stopped.
  int32_t planned_length() const { return length() + draws_in_flight; }
  int32_t planned_remaining() const {
    return sampling.max_new_tokens - generated() - draws_in_flight;
  }

  Seat* seat() {
    if (auto* p = std::get_if<Prefilling>(&state)) return &p->seat;
    if (auto* d = std::get_if<Decoding>(&state)) return &d->seat;
    return nullptr;
  }
  const Seat* seat() const { return const_cast<SeqState*>(this)->seat(); }
  bool finished() const { return std::holds_alternative<Finished>(state); }
};

}  // namespace attune::sched
