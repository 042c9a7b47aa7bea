// The prefix cache: which token sequences have their KV in pages. A trie with one page per node;
// a node's identity is (parent, its page_size tokens), and a root's is its salt. All of it is
// compared in full: the hash only finds candidates, and is keyed with a seed of the process so that
// nobody can craft prompts that collide.
//
// A node stays while something below it does, so holding the deepest node of a path holds all of
// it. Only leaves that nobody holds are evicted. Memory is bounded by the pool's pages.
// Thread-compatible (the engine's thread).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attune/request.h"
#include "kv/policy/eviction_policy.h"
#include "kv/pool/page_pool.h"

namespace attune::kv {

// What besides tokens decides the content of a page, the same for every request of the index.
struct CacheIdentity {
  std::string model_fingerprint;  // content or revision, never a display name
  std::string kv_dtype;
  std::string layout;  // page order, heads per rank, format version
};

using HashSeed = std::array<uint64_t, 2>;
HashSeed random_hash_seed();

// The root of a family of prefixes; equal only when every part of it is equal.
class PrefixSalt {
 public:
  PrefixSalt() = default;
  bool operator==(const PrefixSalt&) const = default;
  auto operator<=>(const PrefixSalt&) const = default;

 private:
  friend class PrefixIndex;
  explicit PrefixSalt(std::string bytes) : bytes_(std::move(bytes)) {}
  std::string bytes_;
};

class PrefixIndex;

// Holds a path from its root down to one node: none of its pages is evicted. Move-only.
class PrefixPin {
 public:
  PrefixPin() = default;
  PrefixPin(PrefixPin&& o) noexcept
      : index_(std::exchange(o.index_, nullptr)),
        node_(o.node_),
        pages_(std::exchange(o.pages_, 0)) {}
  PrefixPin& operator=(PrefixPin&& o) noexcept {
    if (this != &o) {
      reset();
      index_ = std::exchange(o.index_, nullptr);
      node_ = o.node_;
      pages_ = std::exchange(o.pages_, 0);
    }
    return *this;
  }
  ~PrefixPin() { reset(); }

  int32_t pages() const { return pages_; }  // length of the path
  void reset();

 private:
  friend class PrefixIndex;
  PrefixPin(PrefixIndex* index, PageId node, int32_t pages)
      : index_(index), node_(node), pages_(pages) {}
  PrefixIndex* index_ = nullptr;
  PageId node_;
  int32_t pages_ = 0;
};

struct PrefixMatch {
  PrefixPin pin;
  std::vector<DeviceSlot> slots;  // one per page of the path, in order
};

class PrefixIndex {
 public:
  // The pool must outlive the index, the index every pin.
  PrefixIndex(PagePool& pool, std::unique_ptr<EvictionPolicy> policy, CacheIdentity identity,
              HashSeed seed = random_hash_seed());
  ~PrefixIndex();
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // `adapter`: unique id of its content, empty for none. `cache_salt`: the request's, any bytes.
  PrefixSalt salt(std::string_view adapter, std::string_view cache_salt) const;

  // The longest cached prefix in whole pages, pinned; a use of its pages by a
  // request of this priority. O(pages).
  PrefixMatch match(std::span<const TokenId> tokens, const PrefixSalt& salt, int32_t priority = 0);
  // How many tokens match() would find; no pin, no use.
  int32_t peek(std::span<const TokenId> tokens, const PrefixSalt& salt) const;

  // Puts one more complete page behind the path that `pin` holds (an empty pin: behind the salt's
  // root) and lengthens the pin by it. `tokens`: the page_size ids of that page; `page`: a filling
  // page with their KV. When the index has such a page already, the pin holds that one and `page`
  // comes back: from then on the caller reads the slot returned, and keeps `duplicate` alive while
  // a step on the device may still touch it.
  struct Extended {
    DeviceSlot slot;      // where the content is found
    OwnedPage duplicate;  // empty unless the index had it
  };
  Extended extend(PrefixPin& pin, const PrefixSalt& salt, std::span<const TokenId> tokens,
                  OwnedPage page, int32_t priority = 0);

  // Frees up to n evictable pages, in the policy's order; returns how many. O(log pages) each.
  int32_t evict(int32_t n);

  int32_t cached() const { return pages_; }         // pages in the index, held or not
  int32_t evictable() const { return evictable_; }  // of these, on no held path
  uint64_t evicted_total() const { return evicted_total_; }
  // Changes whenever a page enters or leaves.
  uint64_t version() const { return version_; }

  // The candidate-finding hash of a page behind `parent`.
  uint64_t hash(PageId parent, std::span<const TokenId> tokens) const;
  // Tests only: every page gets the same hash.
  void use_constant_hash_for_test() { constant_hash_ = true; }
  // Recounts everything by a walk; a sentence when a counter is wrong, else empty. For tests.
  std::string check() const;

 private:
  friend class PrefixPin;
  // Nodes are numbered by the PageId they hold; roots have the ids -2, -3, ... A page is in at most
  // one node.
  struct Node {
    OwnedPage page;
    PageId parent;
    int32_t next = -1;  // in the bucket
    uint32_t bucket = 0;
    int32_t children = 0;
    int32_t holds = 0;  // pins on it + children on a held path
    bool live = false;
  };
  using Roots = std::map<PrefixSalt, int32_t>;
  struct Root {
    Roots::iterator name;
    int32_t children = 0;
  };

  Node& node(PageId id) { return nodes_[static_cast<size_t>(id.value)]; }
  const Node& node(PageId id) const { return nodes_[static_cast<size_t>(id.value)]; }
  std::span<const TokenId> tokens_of(PageId id) const;
  PageId find_root(const PrefixSalt& salt) const;
  PageId make_root(const PrefixSalt& salt);
  PageId find_child(PageId parent, std::span<const TokenId> tokens) const;
  PageId add_child(PageId parent, std::span<const TokenId> tokens, OwnedPage page);
  void remove_leaf(PageId id);
  void add_children(PageId parent, int32_t delta);
  void hold(PageId id);
  void unhold(PageId id);
  template <typename Visit>
  PageId walk(std::span<const TokenId> tokens, const PrefixSalt& salt, Visit visit) const;

  PagePool& pool_;
  std::unique_ptr<EvictionPolicy> policy_;
  std::string identity_;
  HashSeed seed_;
  bool constant_hash_ = false;
  size_t page_size_;
  std::vector<Node> nodes_;       // [pool.total()]
  std::vector<TokenId> tokens_;   // [pool.total(), page_size]
  std::vector<int32_t> buckets_;  // power of two; first node or -1
  Roots roots_by_salt_;
  std::vector<Root> roots_;
  std::vector<int32_t> free_roots_;
  int32_t pages_ = 0, evictable_ = 0;
  uint64_t clock_ = 0, evicted_total_ = 0, version_ = 0;
};

inline void PrefixPin::reset() {
  if (index_ != nullptr) std::exchange(index_, nullptr)->unhold(node_);
  pages_ = 0;
}

}  // namespace attune::kv
