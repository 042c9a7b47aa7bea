#include "kv/index/prefix_index.h"

#include <algorithm>
#include <bit>
#include <random>

#include "base/check.h"
#include "kv/index/page_key.h"

namespace attune::kv {
namespace {

// SipHash-1-3 (Aumasson and Bernstein, 2012) over 64-bit words: a keyed hash whose collisions
// cannot be found without the key.
class SipHash {
 public:
  explicit SipHash(const HashSeed& k)
      : v_{k[0] ^ 0x736f6d6570736575, k[1] ^ 0x646f72616e646f6d, k[0] ^ 0x6c7967656e657261,
           k[1] ^ 0x7465646279746573} {}
  void add(uint64_t word) {
    v_[3] ^= word;
    round();
    v_[0] ^= word;
  }
  uint64_t finish() {
    v_[2] ^= 0xff;
    for (int i = 0; i < 3; ++i) round();
    return v_[0] ^ v_[1] ^ v_[2] ^ v_[3];
  }

 private:
  void round() {
    v_[0] += v_[1], v_[1] = std::rotl(v_[1], 13) ^ v_[0], v_[0] = std::rotl(v_[0], 32);
    v_[2] += v_[3], v_[3] = std::rotl(v_[3], 16) ^ v_[2];
    v_[0] += v_[3], v_[3] = std::rotl(v_[3], 21) ^ v_[0];
    v_[2] += v_[1], v_[1] = std::rotl(v_[1], 17) ^ v_[2], v_[2] = std::rotl(v_[2], 32);
  }
  uint64_t v_[4];
};

constexpr int32_t kStorageDown = 16;  // stores that fail in a row

// Length first, so that no bytes of one field can pass for another field.
void append_field(std::string& out, std::string_view field) {
  const uint64_t n = field.size();
  for (int shift = 0; shift < 64; shift += 8) out.push_back(static_cast<char>(n >> shift));
  out.append(field);
}

}  // namespace

HashSeed random_hash_seed() {
  std::random_device device;
  auto word = [&] { return uint64_t{device()} << 32 | device(); };
  return {word(), word()};
}

PrefixIndex::PrefixIndex(PagePool& pool, const MakePolicy& make_policy, CacheIdentity identity,
                         HashSeed seed, TierPlan tiers)
    : pool_(pool),
      policy_(make_policy(pool.max_pages())),
      clean_policy_(tiers.write == WritePolicy::kWriteBack ? make_policy(pool.max_pages())
                                                           : nullptr),
      unsaved_policy_(make_policy(pool.max_pages())),
      host_policy_(make_policy(pool.max_pages())),
      seed_(seed),
      tiers_(std::move(tiers)),
      page_size_(static_cast<size_t>(pool.page_size())) {
  for (auto* policy : {&policy_, &clean_policy_, &unsaved_policy_, &host_policy_})
    if (*policy) policies_.push_back(policy->get());
  append_field(identity_, identity.model_fingerprint);
  append_field(identity_, identity.kv_dtype);
  append_field(identity_, identity.layout);
  const auto pages = static_cast<size_t>(pool.max_pages());
  nodes_.resize(pages);
  tokens_.resize(pages * page_size_);
  if (tiers_.storage) keys_.resize(pages);
  buckets_.assign(std::bit_ceil(pages + pages / 2), -1);
}

PrefixIndex::~PrefixIndex() {
  ATTUNE_CHECK(evictable_ == resident_);  // a pin outlives its index
  clear();
}

PrefixSalt PrefixIndex::salt(std::string_view adapter, std::string_view cache_salt) const {
  std::string bytes = identity_;
  append_field(bytes, adapter);
  append_field(bytes, cache_salt);
  return PrefixSalt(std::move(bytes));
}

uint64_t PrefixIndex::hash(PageId parent, std::span<const TokenId> tokens) const {
  if (constant_hash_) return 7;
  SipHash h(seed_);
  h.add(static_cast<uint32_t>(parent.value) | uint64_t{tokens.size()} << 32);
  size_t i = 0;
  for (; i + 1 < tokens.size(); i += 2)
    h.add(static_cast<uint32_t>(tokens[i]) | uint64_t{static_cast<uint32_t>(tokens[i + 1])} << 32);
  if (i < tokens.size()) h.add(static_cast<uint32_t>(tokens[i]));
  return h.finish();
}

std::span<const TokenId> PrefixIndex::tokens_of(PageId id) const {
  return {tokens_.data() + static_cast<size_t>(id.value) * page_size_, page_size_};
}

PageId PrefixIndex::find_root(const PrefixSalt& salt) const {
  const auto found = roots_by_salt_.find(salt);
  return found == roots_by_salt_.end() ? PageId() : root_id(static_cast<size_t>(found->second));
}

PageId PrefixIndex::make_root(const PrefixSalt& salt) {
  if (const PageId id = find_root(salt); is_root(id)) return id;
  if (free_roots_.empty()) {
    free_roots_.push_back(static_cast<int32_t>(roots_.size()));
    roots_.emplace_back();
  }
  const int32_t number = free_roots_.back();
  free_roots_.pop_back();
  Root& root = roots_[static_cast<size_t>(number)];
  root = Root{};
  root.name = roots_by_salt_.emplace(salt, number).first;
  if (tiers_.storage) root.key = root_key(salt.bytes_, tiers_.root_salt);
  return root_id(static_cast<size_t>(number));
}

PageId PrefixIndex::find_child(PageId parent, std::span<const TokenId> tokens) const {
  for (int32_t i = buckets_[hash(parent, tokens) & (buckets_.size() - 1)]; i >= 0;) {
    const PageId id(i);
    if (node(id).parent == parent && std::ranges::equal(tokens_of(id), tokens)) return id;
    i = node(id).next;
  }
  return PageId();
}

PrefixMatch PrefixIndex::match(std::span<const TokenId> tokens, const PrefixSalt& salt) {
  PrefixMatch found;
  PageId last;
  walk(tokens, salt, [&](PageId id) {
    const Node& n = node(id);
    if (n.page.state() == PageState::kReady) {
      found.slots.push_back(n.page.slot());
      last = id;
    } else if (n.page.state() == PageState::kFilling) {
      found.loading = found.host_pages == 0;
      return false;
    } else {
      ++found.host_pages;
    }
    return true;
  });
  if (found.slots.empty()) return found;
  hold(last);
  found.pin = PrefixPin(this, last, static_cast<int32_t>(found.slots.size()));
  return found;
}

void PrefixIndex::use(std::span<const TokenId> tokens, const PrefixSalt& salt, int32_t priority) {
  const uint64_t now = ++clock_;
  walk(tokens, salt, [&](PageId id) {
    if (node(id).page.state() == PageState::kFilling) return false;
    use(id, now, priority);
    return true;
  });
}

int32_t PrefixIndex::peek(std::span<const TokenId> tokens, const PrefixSalt& salt) const {
  int32_t pages = 0;
  walk(tokens, salt, [&](PageId) { return ++pages, true; });
  return pages * static_cast<int32_t>(page_size_);
}

PageId PrefixIndex::parent_of(const PrefixPin& pin, const PrefixSalt& salt) const {
  return pin.pages_ > 0 ? pin.node_ : find_root(salt);
}

PrefixIndex::Extended PrefixIndex::extend(PrefixPin& pin, const PrefixSalt& salt,
                                          std::span<const TokenId> tokens, OwnedPage page,
                                          int32_t priority) {
  ATTUNE_CHECK(tokens.size() == page_size_);
  const PageId parent = pin.pages_ > 0 ? pin.node_ : make_root(salt);
  PageId child = find_child(parent, tokens);
  if (!child.valid()) {
    page.publish();
    child = add_child(parent, tokens, std::move(page));
  } else if (node(child).page.state() == PageState::kAbsent) {
    pool_.adopt(node(child).page, std::move(page));  // computed again: the host has it still
    ++version_;
  }
  const int32_t length = pin.pages_ + 1;
  hold(child);
  use(child, ++clock_, priority);
  update(child);
  pin = PrefixPin(this, child, length);  // lets the parent go only now
  return {node(child).page.slot(), std::move(page)};
}

bool PrefixIndex::next_is_loading(const PrefixPin& pin, const PrefixSalt& salt,
                                  std::span<const TokenId> tokens) const {
  const PageId parent = parent_of(pin, salt);
  const PageId child = is_root(parent) || parent.valid() ? find_child(parent, tokens) : PageId();
  return child.valid() && node(child).page.state() == PageState::kFilling;
}

// ---- nodes -------------------------------------------------------------------------------------

int32_t& PrefixIndex::first_child(PageId parent) {
  return is_root(parent) ? roots_[root_number(parent)].first_child : node(parent).first_child;
}

PageId PrefixIndex::add_child(PageId parent, std::span<const TokenId> tokens, OwnedPage page) {
  const PageId id = page.id();
  std::ranges::copy(
      tokens, tokens_.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(id.value) * page_size_));
  const auto bucket = static_cast<uint32_t>(hash(parent, tokens) & (buckets_.size() - 1));
  Node& n = node(id);
  n = Node{};
  n.page = std::move(page);
  n.parent = parent;
  n.next = std::exchange(buckets_[bucket], id.value);
  n.bucket = bucket;
  n.next_sibling = std::exchange(first_child(parent), id.value);
  if (n.next_sibling >= 0) node(PageId(n.next_sibling)).previous_sibling = id.value;
  n.live = true;
  if (tiers_.storage) {
    const PageKey& above = is_root(parent) ? roots_[root_number(parent)].key
                                           : keys_[static_cast<size_t>(parent.value)];
    keys_[static_cast<size_t>(id.value)] = child_key(above, tokens);
  }
  if (is_root(parent)) {
    ++roots_[root_number(parent)].children;
  } else {
    ++node(parent).children;
    update(parent);
  }
  ++pages_, ++version_;
  update(id);
  return id;
}

void PrefixIndex::remove_leaf(PageId id) {
  Node& n = node(id);
  ATTUNE_CHECK(n.live && n.children == 0 && n.holds == 0);
  int32_t* link = &buckets_[n.bucket];
  while (*link != id.value) link = &node(PageId(*link)).next;
  *link = n.next;
  const PageId parent = n.parent;
  if (n.next_sibling >= 0) node(PageId(n.next_sibling)).previous_sibling = n.previous_sibling;
  (n.previous_sibling >= 0 ? node(PageId(n.previous_sibling)).next_sibling : first_child(parent)) =
      n.next_sibling;
  n.live = false;
  update(id);
  for (EvictionPolicy* policy : policies_) policy->on_gone(id);
  n = Node{};  // frees the page
  --pages_, ++version_;
  if (!is_root(parent)) {
    --node(parent).children;
    update(parent);
  } else if (Root& root = roots_[root_number(parent)]; --root.children == 0) {
    roots_by_salt_.erase(root.name);
    free_roots_.push_back(static_cast<int32_t>(root_number(parent)));
  }
}

// Deepest pages first, without recursion: paths are long.
void PrefixIndex::remove_tree(PageId id) {
  for (PageId at = id;;) {
    if (node(at).first_child >= 0) {
      at = PageId(node(at).first_child);
      continue;
    }
    const PageId parent = node(at).parent;
    host_evicted_total_ += node(at).page.host_state() != PageState::kAbsent;
    remove_leaf(at);
    if (at == id) return;
    at = parent;
  }
}

// With kWriteBack what is saved goes first: the rest would be lost, with what is below it.
std::optional<PageId> PrefixIndex::device_victim() const {
  const auto clean = clean_policy_ ? clean_policy_->victim() : std::nullopt;
  return clean ? clean : policy_->victim();
}

int32_t PrefixIndex::evict(int32_t n) {
  int32_t done = 0;
  for (; done < n; ++done) {
    const auto victim = device_victim();
    if (!victim) break;
    if (OwnedPage& page = node(*victim).page; page.host_state() == PageState::kReady) {
      page.drop_device();
      ++version_;
      update(*victim);
    } else {
      remove_tree(*victim);
    }
  }
  evicted_total_ += static_cast<uint64_t>(done);
  return done;
}

bool PrefixIndex::evict_host() {
  const auto victim = host_policy_->victim();
  if (!victim) return false;
  remove_leaf(*victim);
  ++host_evicted_total_;
  return true;
}

void PrefixIndex::clear() {
  while (evict(resident_) > 0) {
  }
  while (evict_host()) {
  }
}

// A node counts as one hold on its parent while it is held itself, so a walk up stops at the first
// node that was held already.
void PrefixIndex::hold(PageId id) {
  for (; id.valid(); id = node(id).parent) {
    if (node(id).holds++ > 0) return;
    update(id);
  }
}

void PrefixIndex::unhold(PageId id, bool used) {
  const uint64_t now = ++clock_;
  for (; id.valid(); id = node(id).parent) {
    if (--node(id).holds > 0) return;
    if (used)
      for (EvictionPolicy* policy : policies_) policy->on_let_go(id, now);
    update(id);
  }
}

void PrefixIndex::use(PageId id, uint64_t now, int32_t priority) {
  for (EvictionPolicy* policy : policies_) policy->on_use(id, now, priority);
  const int needed = tiers_.write == WritePolicy::kWriteThroughSelective ? 2 : 1;
  Node& n = node(id);
  n.uses = std::min(n.uses + 1, needed);
  if (n.uses == needed && tiers_.write != WritePolicy::kWriteBack) want_save(id);
  // Storage that failed, or sees no use of a page that the host serves and soon drops it, gets it
  // again; while it is down, new pages show when it is back.
  if (n.page.host_state() == PageState::kReady && failed_stores_ < kStorageDown &&
      !in_storage(n, tiers_.storage_pages / 2))
    want_store(id);
}

void PrefixIndex::tell(EvictionPolicy& policy, PageId id, bool& known, bool evictable) {
  if (known == evictable) return;
  known = evictable;
  evictable ? policy.on_evictable(id) : policy.on_kept(id);
}

// After any change of a node: what is counted and what the policies know of it follow, there and as
// far up as it matters.
void PrefixIndex::update(PageId id) {
  while (update_one(id)) id = node(id).parent;
}

// Whether its parent's counts have changed.
bool PrefixIndex::update_one(PageId id) {
  Node& n = node(id);
  const bool there = n.live && n.page.state() != PageState::kAbsent;
  const bool ready = n.live && n.page.state() == PageState::kReady && n.holds == 0;
  const bool clean = n.live && n.page.host_state() == PageState::kReady;
  const bool dirty = ready && (!clean || n.dirty_children > 0);
  evictable_ += ready - n.evictable;
  n.evictable = ready;
  const bool leaf = ready && n.resident_children == 0;
  tell(*policy_, id, n.leaf, leaf);
  if (clean_policy_) tell(*clean_policy_, id, n.clean_leaf, leaf && clean);
  const bool unsaved =
      there && !n.wanted && n.page.host_state() == PageState::kAbsent && pool_.host_total() > 0;
  tell(*unsaved_policy_, id, n.unsaved_leaf, ready && unsaved && n.unsaved_children == 0);
  tell(*host_policy_, id, n.host_leaf,
       clean && !there && n.holds == 0 && n.children == 0 && !pool_.in_transfer(id));
  if (n.resident == there && n.unsaved == unsaved && n.dirty == dirty) return false;
  const int32_t more = there - n.resident, more_unsaved = unsaved - n.unsaved,
                more_dirty = dirty - n.dirty;
  resident_ += more;
  dirty_ += more_dirty;
  n.resident = there;
  n.unsaved = unsaved;
  n.dirty = dirty;
  if (is_root(n.parent)) return false;
  node(n.parent).resident_children += more;
  node(n.parent).unsaved_children += more_unsaved;
  node(n.parent).dirty_children += more_dirty;
  return true;
}

}  // namespace attune::kv
