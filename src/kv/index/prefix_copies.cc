// How pages of the prefix index go between the tiers.
#include <algorithm>

#include "base/check.h"
#include "kv/index/page_key.h"
#include "kv/index/prefix_index.h"

namespace attune::kv {

PrefixIndex::Node* PrefixIndex::find(const Ref& ref) {
  Node& n = node(ref.id);
  return n.live && pool_.generation(ref.id) == ref.generation ? &n : nullptr;
}

void PrefixIndex::want_save(PageId id) {
  Node& n = node(id);
  if (pool_.host_total() == 0 || n.wanted || n.page.host_state() != PageState::kAbsent) return;
  n.wanted = true;
  update(id);
  to_save_.push_back({id, pool_.generation(id)});
}

// Whether storage has it, as far as can be told from here: of the pages that it got or gave last,
// this is one of the `newest`.
bool PrefixIndex::in_storage(const Node& n, int64_t newest) const {
  return n.stored_at > 0 &&
         (tiers_.storage_pages == 0 || stores_ - n.stored_at < static_cast<uint64_t>(newest));
}

void PrefixIndex::want_store(PageId id) {
  if (!tiers_.storage || std::exchange(node(id).storing, true)) return;
  // Storage that hangs must not make this grow: what is gone is forgotten.
  if (to_store_.size() > 2 * nodes_.size())
    std::erase_if(to_store_, [&](const Ref& ref) { return find(ref) == nullptr; });
  to_store_.push_back({id, pool_.generation(id)});
}

std::vector<PageTransfer> PrefixIndex::load(PrefixPin& pin, const PrefixSalt& salt,
                                            std::span<const TokenId> tokens, int32_t n,
                                            PageReservation& fresh) {
  std::vector<PageTransfer> loads;
  PageId at = parent_of(pin, salt);
  for (int32_t i = pin.pages(); n-- > 0; ++i) {
    at = find_child(at, tokens.subspan(static_cast<size_t>(i) * page_size_, page_size_));
    ATTUNE_CHECK(at.valid());
    loads.push_back(pool_.begin_load(node(at).page, fresh.take()));
    update(at);
  }
  hold(at);
  const int32_t length = pin.pages() + static_cast<int32_t>(loads.size());
  pin = PrefixPin(this, at, length);
  return loads;
}

std::vector<PageTransfer> PrefixIndex::begin_saves(int32_t max) {
  std::vector<PageTransfer> saves;
  while (static_cast<int32_t>(saves.size()) < max && !to_save_.empty()) {
    const Ref ref = to_save_.front();
    to_save_.pop_front();
    Node* n = find(ref);
    if (!n) continue;
    n->wanted = false;
    update(ref.id);
    if (n->page.state() != PageState::kReady || n->page.host_state() != PageState::kAbsent)
      continue;
    if (pool_.host_free() == 0 && (keeps_host_ || !evict_host())) continue;
    hold(ref.id);
    saves.push_back(*pool_.begin_save(n->page));
    update(ref.id);
  }
  return saves;
}

void PrefixIndex::save_ahead(int32_t pages) {
  int32_t coming = spare() + static_cast<int32_t>(to_save_.size());
  while (coming < pages) {
    const auto coldest = unsaved_policy_->victim();
    if (!coldest) return;
    // And what follows it on its way out.
    for (PageId id = *coldest; coming < pages && id.valid(); id = node(id).parent, ++coming) {
      if (!node(id).unsaved || node(id).unsaved_children > 0 || node(id).holds > 0) break;
      want_save(id);
    }
  }
}

std::vector<PrefixIndex::Store> PrefixIndex::begin_stores(int32_t max) {
  std::vector<Store> stores;
  while (static_cast<int32_t>(stores.size()) < max && !to_store_.empty()) {
    const Ref ref = to_store_.front();
    to_store_.pop_front();
    Node* n = find(ref);
    if (!n) continue;
    n->storing = n->page.host_state() == PageState::kReady;
    if (!n->storing) continue;
    const auto tokens = tokens_of(ref.id);
    PageIdentity page{keys_[static_cast<size_t>(ref.id.value)],
                      is_root(n->parent) ? roots_[root_number(n->parent)].key
                                         : keys_[static_cast<size_t>(n->parent.value)],
                      {tokens.begin(), tokens.end()}};
    stores.push_back({pool_.begin_store(n->page), std::move(page)});
    update(ref.id);
  }
  return stores;
}

std::optional<PagePool::Fetch> PrefixIndex::begin_fetch() {
  if (pool_.host_free() == 0 && !evict_host()) return std::nullopt;
  return pool_.begin_fetch();
}

bool PrefixIndex::insert_fetched(std::span<const TokenId> tokens, const PrefixSalt& salt,
                                 OwnedPage page) {
  const size_t above = tokens.size() - page_size_;
  size_t found = 0;
  PageId parent = walk(tokens.first(above), salt, [&](PageId) { return ++found, true; });
  if (found * page_size_ != above) return false;
  if (above == 0) parent = make_root(salt);
  if (find_child(parent, tokens.subspan(above)).valid()) return false;
  const PageId id = add_child(parent, tokens.subspan(above), std::move(page));
  node(id).stored_at = ++stores_;
  ++clock_;
  for (EvictionPolicy* policy : policies_) policy->on_let_go(id, clock_);
  return true;
}

void PrefixIndex::finish(PageTransfer transfer, bool complete) {
  const PageId id = transfer.id();
  const PageTransfer::Kind kind = transfer.kind();
  Node& n = node(id);
  const bool ours = n.live;  // else the page drains, and has no node
  if (complete) {
    transfer.complete();
  } else {
    transfer = PageTransfer();
  }
  if (!ours) return;
  if (kind == PageTransfer::Kind::kStore) {
    n.storing = false;
    n.stored_at = complete ? ++stores_ : 0;
    failed_stores_ = complete ? 0 : failed_stores_ + 1;
  }
  update(id);
  if (kind != PageTransfer::Kind::kSave) return;
  if (complete) want_store(id);
  unhold(id, /*used=*/false);
}

void PrefixIndex::forget_stored() {
  for (Node& n : nodes_) n.stored_at = 0;
}

void PrefixIndex::want_all() {
  keeps_host_ = true;
  std::vector<PageId> path;
  for (const auto& root : roots_by_salt_)
    path.push_back(PageId(roots_[static_cast<size_t>(root.second)].first_child));
  while (!path.empty()) {
    const PageId id = path.back();
    path.pop_back();
    if (!id.valid()) continue;
    const Node& n = node(id);
    if (n.page.host_state() == PageState::kReady && !in_storage(n, tiers_.storage_pages))
      want_store(id);
    if (n.page.host_state() == PageState::kAbsent) want_save(id);
    path.push_back(PageId(n.next_sibling));
    path.push_back(PageId(n.first_child));
  }
}

std::vector<PageIdentity> PrefixIndex::identities(std::span<const TokenId> tokens,
                                                  const PrefixSalt& salt, int32_t first) const {
  std::vector<PageIdentity> pages;
  PageKey at = root_key(salt.bytes_, tiers_.root_salt);
  for (int32_t i = 0; tokens.size() >= page_size_; tokens = tokens.subspan(page_size_), ++i) {
    const auto mine = tokens.first(page_size_);
    const PageKey key = child_key(at, mine);
    if (i >= first) pages.push_back({key, at, {mine.begin(), mine.end()}});
    at = key;
  }
  return pages;
}

// ---- checks ------------------------------------------------------------------------------------

std::string PrefixIndex::check() const {
  std::vector<int32_t> children(nodes_.size(), 0), held(nodes_.size(), 0), up(nodes_.size(), 0);
  std::vector<int32_t> root_children(roots_.size(), 0);
  int32_t live = 0, evictable = 0, resident = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& n = nodes_[i];
    if (!n.live) continue;
    const PageId id(static_cast<int32_t>(i));
    const PageState device = n.page.state(), host = n.page.host_state();
    ++live;
    resident += device != PageState::kAbsent;
    evictable += n.holds == 0 && device == PageState::kReady;
    if (n.page.id() != id) return "a node holds another page";
    if (device != PageState::kReady && host != PageState::kReady)
      return "a page of the index is ready nowhere";
    if (!(find_child(n.parent, tokens_of(id)) == id)) return "a node is not found by its tokens";
    if (is_root(n.parent)) {
      ++root_children[root_number(n.parent)];
      continue;
    }
    if (!node(n.parent).live) return "a node's parent is gone";
    const auto parent = static_cast<size_t>(n.parent.value);
    ++children[parent];
    up[parent] += device != PageState::kAbsent;
    held[parent] += n.holds > 0;
    if (device != PageState::kAbsent && node(n.parent).page.state() == PageState::kAbsent)
      return "a page on the device has a parent that is not";
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].children != children[i]) return "a count of children is wrong";
    if (nodes_[i].resident_children != up[i]) return "a count of children on the device is wrong";
    if (nodes_[i].holds < held[i]) return "a count of holds is too low";
  }
  for (const auto& [salt, number] : roots_by_salt_) {
    const auto r = static_cast<size_t>(number);
    if (root_children[r] == 0 || roots_[r].children != root_children[r])
      return "a root's count of children is wrong";
  }
  if (live != pages_) return "the count of pages is wrong";
  if (resident != resident_) return "the count of pages on the device is wrong";
  if (evictable != evictable_) return "the count of evictable pages is wrong";
  return "";
}

}  // namespace attune::kv
