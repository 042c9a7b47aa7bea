// The prefix cache: which token sequences have their KV in pages, on the device or in the host. A
// trie with one page per node; a node's identity is (parent, its page_size tokens), and a root's is
// its salt. All of it is compared in full: the hash only finds candidates, and is keyed with a seed
// of the process so that nobody can craft prompts that collide.
//
// A node stays while something below it does, so holding the deepest node of a path holds all of
// it. Pages on the device have all their parents there: a path is first on the device, then in the
// host. Only what nobody holds leaves the device, deepest pages first: a page with a copy in the
// host stays there, another one is gone with all that is below it. Memory is bounded by the pool's
// pages. Thread-compatible (the engine's thread).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attune/request.h"
#include "kv/layout/page_key.h"
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
  PrefixPin pin;                  // of the pages on the device
  std::vector<DeviceSlot> slots;  // one per page of the pin, in order
  int32_t host_pages = 0;         // pages behind these that load() can bring up
  bool loading = false;           // the page behind these is just coming up for somebody else
};

// When a page's copy in the host is made.
enum class WritePolicy : uint8_t {
  kWriteThrough,           // once it is full
  kWriteThroughSelective,  // once it was used again
  kWriteBack,              // before it leaves the device
};

// What there is besides the device.
struct TierPlan {
  WritePolicy write = WritePolicy::kWriteThrough;
  bool storage = false;
  std::string root_salt;      // of the storage
  int64_t storage_pages = 0;  // it drops the oldest above so many; 0: it does not
};

class PrefixIndex {
 public:
  using MakePolicy = std::function<std::unique_ptr<EvictionPolicy>(int32_t max_pages)>;
  // The pool must outlive the index, the index every pin.
  PrefixIndex(PagePool& pool, const MakePolicy& make_policy, CacheIdentity identity,
              HashSeed seed = random_hash_seed(), TierPlan tiers = {});
  ~PrefixIndex();
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // `adapter`: unique id of its content, empty for none. `cache_salt`: the request's, any bytes.
  PrefixSalt salt(std::string_view adapter, std::string_view cache_salt) const;

  // The longest cached prefix in whole pages; what is on the device is pinned. O(pages).
  PrefixMatch match(std::span<const TokenId> tokens, const PrefixSalt& salt);
  // A request of this priority uses what match() finds of these tokens. O(pages log pages).
  void use(std::span<const TokenId> tokens, const PrefixSalt& salt, int32_t priority = 0);
  // How many tokens match() would find, in any tier; no pin, no use.
  int32_t peek(std::span<const TokenId> tokens, const PrefixSalt& salt) const;

  // Puts one more complete page behind the path that `pin` holds (an empty pin: behind the salt's
  // root) and lengthens the pin by it. `tokens`: the page_size ids of that page; `page`: a filling
  // page with their KV. When the index has such a page on the device already, the pin holds that
  // one and `page` comes back: from then on the caller reads the slot returned, and keeps
  // `duplicate` alive while a step on the device may still touch it.
  // REQUIRES: !next_is_loading(pin, salt, tokens)
  struct Extended {
    DeviceSlot slot;      // where the content is found
    OwnedPage duplicate;  // empty unless the index had it
  };
  Extended extend(PrefixPin& pin, const PrefixSalt& salt, std::span<const TokenId> tokens,
                  OwnedPage page, int32_t priority = 0);
  // Whether that page is just coming up from the host, for somebody else.
  bool next_is_loading(const PrefixPin& pin, const PrefixSalt& salt,
                       std::span<const TokenId> tokens) const;

  // Frees up to n pages of the device, in the policy's order; returns how many. O(log pages) each.
  int32_t evict(int32_t n);
  // Forgets every page that nobody holds, in every tier but storage.
  void clear();

  // ---- copies; each is ended by finish() ----

  // Brings up the n pages behind the path that `pin` holds and lengthens the pin by them. `tokens`:
  // the sequence's. REQUIRES: n <= host_pages of match() just before; n <= fresh.size()
  std::vector<PageTransfer> load(PrefixPin& pin, const PrefixSalt& salt,
                                 std::span<const TokenId> tokens, int32_t n,
                                 PageReservation& fresh);
  // The next pages to copy into the host by the policy, at most `max`; each is held until then.
  std::vector<PageTransfer> begin_saves(int32_t max);
  // Pages of the device that are free or can go without loss.
  int32_t spare() const { return pool_.free() + evictable_ - dirty_; }
  // kWriteBack: has copies made of the coldest pages until there will be so many spare ones.
  void save_ahead(int32_t pages);
  // Whether there is room in the host for one more page.
  bool can_save() const { return pool_.host_free() > 0 || host_policy_->victim(); }
  struct Store {
    PageTransfer transfer;
    PageIdentity page;
  };
  // The next pages to copy into storage, at most `max`.
  std::vector<Store> begin_stores(int32_t max);
  // Room in the host for a page from storage; older ones go for it. Nothing: there is none.
  std::optional<PagePool::Fetch> begin_fetch();
  // Puts a page that came from storage, ready in the host, where `tokens` (ending with its own)
  // lead to. Gone if its parent is not there any more, or the page is there already.
  // Whether it was put there.
  bool insert_fetched(std::span<const TokenId> tokens, const PrefixSalt& salt, OwnedPage page);
  // `complete`: every byte is in place; else it failed and the page is as before.
  void finish(PageTransfer transfer, bool complete);
  // Pages without a copy below them are to be copied, as far as there is room without others going:
  // before a stop.
  void want_all();
  void forget_stored();  // storage has been emptied
  bool wants_saves() const { return !to_save_.empty(); }
  bool wants_copies() const { return wants_saves() || !to_store_.empty(); }

  // The names by which storage knows the pages of `tokens` from page `first` on.
  // REQUIRES: storage
  std::vector<PageIdentity> identities(std::span<const TokenId> tokens, const PrefixSalt& salt,
                                       int32_t first) const;

  int32_t cached() const { return resident_; }      // pages on the device, held or not
  int32_t evictable() const { return evictable_; }  // of these, on no held path
  int32_t pages() const { return pages_; }          // in any tier
  uint64_t evicted_total() const { return evicted_total_; }
  uint64_t host_evicted_total() const { return host_evicted_total_; }
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
    int32_t first_child = -1, next_sibling = -1, previous_sibling = -1;
    int32_t children = 0, resident_children = 0;
    int32_t unsaved_children = 0;  // on the device alone, and no copy is wanted yet
    int32_t dirty_children = 0;
    int32_t holds = 0;  // pins on it + children on a held path
    int32_t uses = 0;   // as many as the write policy asks about
    bool live = false;
    uint64_t stored_at = 0;  // when storage got it, see in_storage; 0: it has not
    bool wanted = false;     // in to_save_
    bool storing = false;    // in to_store_, or under way
    // What is counted, and known to the policies. Dirty: cannot go without the loss of it or of a
    // page below it.
    bool resident = false, evictable = false, dirty = false, unsaved = false;
    bool leaf = false, clean_leaf = false, unsaved_leaf = false, host_leaf = false;
  };
  using Roots = std::map<PrefixSalt, int32_t>;
  struct Root {
    Roots::iterator name;
    PageKey key;
    int32_t first_child = -1;
    int32_t children = 0;
  };
  // A page that may be somebody else's by now.
  struct Ref {
    PageId id;
    uint32_t generation;
  };

  static constexpr int32_t kFirstRoot = -2;  // PageId(-2 - r) stands for root r as a parent
  static bool is_root(PageId id) { return id.value <= kFirstRoot; }
  static size_t root_number(PageId id) { return static_cast<size_t>(kFirstRoot - id.value); }
  static PageId root_id(size_t number) { return PageId(kFirstRoot - static_cast<int32_t>(number)); }
  Node& node(PageId id) { return nodes_[static_cast<size_t>(id.value)]; }
  const Node& node(PageId id) const { return nodes_[static_cast<size_t>(id.value)]; }
  Node* find(const Ref& ref);
  std::span<const TokenId> tokens_of(PageId id) const;
  PageId find_root(const PrefixSalt& salt) const;
  PageId make_root(const PrefixSalt& salt);
  PageId find_child(PageId parent, std::span<const TokenId> tokens) const;
  PageId add_child(PageId parent, std::span<const TokenId> tokens, OwnedPage page);
  void remove_leaf(PageId id);
  void remove_tree(PageId id);
  int32_t& first_child(PageId parent);
  PageId parent_of(const PrefixPin& pin, const PrefixSalt& salt) const;
  std::optional<PageId> device_victim() const;
  bool evict_host();
  void want_save(PageId id);
  void want_store(PageId id);
  bool in_storage(const Node& n, int64_t newest) const;
  void use(PageId id, uint64_t now, int32_t priority = 0);
  void update(PageId id);
  bool update_one(PageId id);
  void tell(EvictionPolicy& policy, PageId id, bool& known, bool evictable);
  void hold(PageId id);
  void unhold(PageId id, bool used = true);
  // The last page of `tokens` that is there and visit(id) goes on behind; the root if none is.
  template <typename Visit>
  PageId walk(std::span<const TokenId> tokens, const PrefixSalt& salt, Visit visit) const;

  PagePool& pool_;
  // Leaves of what is on the device; those with a copy in the host (kWriteBack; else null); leaves
  // of what is on the device alone; leaves in the host.
  std::unique_ptr<EvictionPolicy> policy_, clean_policy_, unsaved_policy_, host_policy_;
  std::vector<EvictionPolicy*> policies_;
  std::string identity_;
  HashSeed seed_;
  TierPlan tiers_;
  bool constant_hash_ = false;
  bool keeps_host_ = false;  // see want_all
  size_t page_size_;
  std::vector<Node> nodes_;       // [pool.max_pages()]
  std::vector<TokenId> tokens_;   // [pool.max_pages(), page_size]
  std::vector<PageKey> keys_;     // [pool.max_pages()] with storage, else empty
  std::vector<int32_t> buckets_;  // power of two; first node or -1
  Roots roots_by_salt_;
  std::vector<Root> roots_;
  std::vector<int32_t> free_roots_;
  std::deque<Ref> to_save_, to_store_;
  int32_t pages_ = 0, resident_ = 0, evictable_ = 0, dirty_ = 0;
  uint64_t stores_ = 0;        // pages that storage got or gave, so far
  int32_t failed_stores_ = 0;  // in a row
  uint64_t clock_ = 0, evicted_total_ = 0, host_evicted_total_ = 0, version_ = 0;
};

template <typename Visit>
PageId PrefixIndex::walk(std::span<const TokenId> tokens, const PrefixSalt& salt,
                         Visit visit) const {
  PageId at = find_root(salt);
  if (!is_root(at)) return PageId();
  for (; tokens.size() >= page_size_; tokens = tokens.subspan(page_size_)) {
    const PageId child = find_child(at, tokens.first(page_size_));
    if (!child.valid() || !visit(child)) break;
    at = child;
  }
  return at;
}

inline void PrefixPin::reset() {
  if (index_ != nullptr) std::exchange(index_, nullptr)->unhold(node_);
  pages_ = 0;
}

}  // namespace attune::kv
