#include "kv/index/prefix_index.h"

#include <algorithm>
#include <bit>
#include <random>

#include "base/check.h"

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

// Length first, so that no bytes of one field can pass for another field.
void append_field(std::string& out, std::string_view field) {
  const uint64_t n = field.size();
  for (int shift = 0; shift < 64; shift += 8) out.push_back(static_cast<char>(n >> shift));
  out.append(field);
}

constexpr int32_t kFirstRoot = -2;  // PageId(-2 - r) stands for root r as a parent
bool is_root(PageId id) {
  return id.value <= kFirstRoot;
}
size_t root_number(PageId id) {
  return static_cast<size_t>(kFirstRoot - id.value);
}
PageId root_id(size_t number) {
  return PageId(kFirstRoot - static_cast<int32_t>(number));
}

}  // namespace

HashSeed random_hash_seed() {
  std::random_device device;
  auto word = [&] { return uint64_t{device()} << 32 | device(); };
  return {word(), word()};
}

PrefixIndex::PrefixIndex(PagePool& pool, std::unique_ptr<EvictionPolicy> policy,
                         CacheIdentity identity, HashSeed seed)
    : pool_(pool),
      policy_(std::move(policy)),
      seed_(seed),
      page_size_(static_cast<size_t>(pool.page_size())) {
  append_field(identity_, identity.model_fingerprint);
  append_field(identity_, identity.kv_dtype);
  append_field(identity_, identity.layout);
  const auto pages = static_cast<size_t>(pool.total());
  nodes_.resize(pages);
  tokens_.resize(pages * page_size_);
  buckets_.assign(std::bit_ceil(pages + pages / 2), -1);
}

PrefixIndex::~PrefixIndex() {
  ATTUNE_CHECK(evictable_ == pages_);  // a pin outlives its index
  evict(pages_);
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
  roots_[static_cast<size_t>(number)] = {roots_by_salt_.emplace(salt, number).first, 0};
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

template <typename Visit>
PageId PrefixIndex::walk(std::span<const TokenId> tokens, const PrefixSalt& salt,
                         Visit visit) const {
  PageId at = find_root(salt);
  if (!is_root(at)) return PageId();
  for (; tokens.size() >= page_size_; tokens = tokens.subspan(page_size_)) {
    const PageId child = find_child(at, tokens.first(page_size_));
    if (!child.valid()) break;
    visit(child);
    at = child;
  }
  return at;
}

PrefixMatch PrefixIndex::match(std::span<const TokenId> tokens, const PrefixSalt& salt,
                               int32_t priority) {
  PrefixMatch found;
  const uint64_t now = ++clock_;
  const PageId last = walk(tokens, salt, [&](PageId id) {
    policy_->on_use(id, now, priority);
    found.slots.push_back(node(id).page.slot());
  });
  if (found.slots.empty()) return found;
  hold(last);
  found.pin = PrefixPin(this, last, static_cast<int32_t>(found.slots.size()));
  return found;
}

int32_t PrefixIndex::peek(std::span<const TokenId> tokens, const PrefixSalt& salt) const {
  int32_t pages = 0;
  walk(tokens, salt, [&](PageId) { ++pages; });
  return pages * static_cast<int32_t>(page_size_);
}

PrefixIndex::Extended PrefixIndex::extend(PrefixPin& pin, const PrefixSalt& salt,
                                          std::span<const TokenId> tokens, OwnedPage page,
                                          int32_t priority) {
  ATTUNE_CHECK(tokens.size() == page_size_);
  const PageId parent = pin.pages_ > 0 ? pin.node_ : make_root(salt);
  PageId child = find_child(parent, tokens);
  if (!child.valid()) child = add_child(parent, tokens, std::move(page));
  policy_->on_use(child, ++clock_, priority);
  hold(child);
  const int32_t length = pin.pages_ + 1;
  pin = PrefixPin(this, child, length);  // lets the parent go only now
  return {node(child).page.slot(), std::move(page)};
}

PageId PrefixIndex::add_child(PageId parent, std::span<const TokenId> tokens, OwnedPage page) {
  const PageId id = page.id();
  page.publish();
  std::ranges::copy(
      tokens, tokens_.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(id.value) * page_size_));
  const auto bucket = static_cast<uint32_t>(hash(parent, tokens) & (buckets_.size() - 1));
  node(id) = Node{std::move(page), parent, buckets_[bucket], bucket, 0, 0, true};
  buckets_[bucket] = id.value;
  add_children(parent, 1);
  ++pages_, ++evictable_, ++version_;
  policy_->on_evictable(id);
  return id;
}

void PrefixIndex::add_children(PageId parent, int32_t delta) {
  if (is_root(parent)) {
    Root& root = roots_[root_number(parent)];
    root.children += delta;
    if (root.children > 0) return;
    roots_by_salt_.erase(root.name);
    free_roots_.push_back(static_cast<int32_t>(root_number(parent)));
    return;
  }
  Node& n = node(parent);
  n.children += delta;
  if (n.holds > 0) return;
  if (n.children == 0) policy_->on_evictable(parent);
  if (n.children == 1 && delta > 0) policy_->on_kept(parent);
}

void PrefixIndex::remove_leaf(PageId id) {
  Node& n = node(id);
  ATTUNE_CHECK(n.live && n.children == 0 && n.holds == 0);
  policy_->on_gone(id);
  int32_t* link = &buckets_[n.bucket];
  while (*link != id.value) link = &node(PageId(*link)).next;
  *link = n.next;
  const PageId parent = n.parent;
  n = Node{};  // frees the page
  --pages_, --evictable_, ++version_;
  add_children(parent, -1);
}

int32_t PrefixIndex::evict(int32_t n) {
  int32_t done = 0;
  for (; done < n; ++done) {
    const auto victim = policy_->victim();
    if (!victim) break;
    remove_leaf(*victim);
  }
  evicted_total_ += static_cast<uint64_t>(done);
  return done;
}

// A node counts as one hold on its parent while it is held itself, so a walk up stops at the first
// node that was held already.
void PrefixIndex::hold(PageId id) {
  for (; id.valid(); id = node(id).parent) {
    Node& n = node(id);
    if (n.holds++ > 0) return;
    --evictable_;
    if (n.children == 0) policy_->on_kept(id);
  }
}

void PrefixIndex::unhold(PageId id) {
  const uint64_t now = ++clock_;
  for (; id.valid(); id = node(id).parent) {
    Node& n = node(id);
    if (--n.holds > 0) return;
    ++evictable_;
    policy_->on_let_go(id, now);
    if (n.children == 0) policy_->on_evictable(id);
  }
}

std::string PrefixIndex::check() const {
  std::vector<int32_t> children(nodes_.size(), 0), held_children(nodes_.size(), 0);
  std::vector<int32_t> root_children(roots_.size(), 0);
  int32_t live = 0, free_of_holds = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& n = nodes_[i];
    if (!n.live) continue;
    ++live;
    free_of_holds += n.holds == 0;
    if (n.page.id().value != static_cast<int32_t>(i)) return "a node holds another page";
    if (n.page.state() != PageState::kReady) return "a cached page is not ready";
    if (!(find_child(n.parent, tokens_of(PageId(static_cast<int32_t>(i)))) == n.page.id()))
      return "a node is not found by its tokens";
    if (is_root(n.parent)) {
      ++root_children[root_number(n.parent)];
    } else {
      if (!node(n.parent).live) return "a node's parent is gone";
      ++children[static_cast<size_t>(n.parent.value)];
      held_children[static_cast<size_t>(n.parent.value)] += n.holds > 0;
    }
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].children != children[i]) return "a count of children is wrong";
    if (nodes_[i].holds < held_children[i]) return "a count of holds is too low";
  }
  for (const auto& [salt, number] : roots_by_salt_) {
    const auto r = static_cast<size_t>(number);
    if (root_children[r] == 0 || roots_[r].children != root_children[r])
      return "a root's count of children is wrong";
  }
  if (live != pages_) return "the count of cached pages is wrong";
  if (live != pool_.count(PageState::kReady)) return "a ready page is not in the index";
  if (free_of_holds != evictable_) return "the count of evictable pages is wrong";
  return "";
}

}  // namespace attune::kv
