// Random schedules of the page state machine, of the pool and the index alone, against a model made
// from what their headers say. The model knows which page is where, writes a content into each
// slot, spoils what is free or being filled, and looks at everything after every operation: no
// leak, no double use, no read before ready, nothing lost that was not given up.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "kv/index/prefix_index.h"

namespace attune::kv {
namespace {

// A page of the model is its path: one bit a page behind a leading 1, and the salt's bit above
// them. It is its content as well. Sets of pages are bit masks.
using Code = uint32_t;
using Codes = uint64_t;
constexpr int kDepth = 4;
constexpr Code kSalt = 2 << kDepth;  // the bit of the second salt; below it paths
constexpr Code kFree = 0, kSpoilt = 1000;

constexpr bool is_page(Code c) {
  return c % kSalt > 1;
}
constexpr Code up(Code c) {
  return (c % kSalt) >> 1 | (c & kSalt);
}
constexpr Code down(Code c, Code bit) {
  return (c % kSalt) << 1 | bit | (c & kSalt);
}
constexpr int depth(Code c) {
  return static_cast<int>(std::bit_width(c % kSalt)) - 1;
}
constexpr Code first_pages(Code c, int n) {
  return (c % kSalt) >> (depth(c) - n) | (c & kSalt);
}
constexpr Codes bit(Code c) {
  return Codes{1} << c;
}
constexpr Codes path(Code c) {
  Codes all = 0;
  for (; is_page(c); c = up(c)) all |= bit(c);
  return all;
}
int32_t size(Codes codes) {
  return static_cast<int32_t>(std::popcount(codes));
}

// How often what was done, over many schedules.
struct Seen {
  uint64_t evicted = 0, saved = 0, loaded = 0, stored = 0, fetched = 0, inserted = 0, adopted = 0,
           duplicates = 0, failed = 0, cut = 0, host_evicted = 0;
};

struct Shape {
  int32_t device = 2, host = 0, page_size = 1;
  TierPlan tiers;
  const char* eviction = "lru";
  bool constant_hash = false;
};

Shape random_shape(WritePolicy write, uint64_t seed) {
  const char* const names[] = {"lru", "lfu", "slru", "priority"};
  const uint64_t r = (seed + 1) * 0x9e3779b97f4a7c15;
  Shape s;
  s.device = 2 + static_cast<int32_t>((r >> 60) % 5);
  s.host = static_cast<int32_t>((r >> 54) % 9);
  s.page_size = 1 + static_cast<int32_t>((r >> 50) % 2);
  s.eviction = names[(r >> 46) % 4];
  s.constant_hash = (r >> 42) % 4 == 0;
  s.tiers = {write, (r >> 38) % 2 == 0, "root"};
  return s;
}

class Trial {
 public:
  Trial(WritePolicy write, uint64_t seed, Seen& seen)
      : shape_(random_shape(write, seed)),
        seen_(seen),
        rng_(seed * 2 + 1),
        pool_(shape_.device + 1, shape_.page_size, shape_.host),
        index_(
            pool_,
            [this](int32_t pages) { return make_eviction_policy(shape_.eviction, pages).value(); },
            {"model", "f32", "hnd"}, {seed, 1}, shape_.tiers),
        salts_{index_.salt("", ""), index_.salt("", "b")} {
    if (shape_.constant_hash) index_.use_constant_hash_for_test();
    id_of_.fill(-1);
    if (chance(80)) pool_.open_host(shape_.host);
    if (shape_.tiers.storage && chance(70))  // of an earlier run
      for (int n = below(10); n > 0; --n) stored_ |= path(random_path());
  }

  // Whether all went well.
  bool go() {
    if (chance(60)) begin_with_some();
    const int operations = 12 + below(30);
    for (int i = 0; i < operations && error_.empty(); ++i) one();
    while (error_.empty() && !over()) look("at the end");
    if (!error_.empty()) ADD_FAILURE() << error_;
    return error_.empty();
  }

 private:
  struct Held {
    PrefixPin pin;
    Code path = 0;
    std::vector<DeviceSlot> slots;
    int group = 0;  // of loads under way
    int came = 0;   // depth of the deepest of these that is complete
  };
  struct Own {
    OwnedPage page;
    uint32_t content = 0;
  };
  struct Op {
    PageTransfer transfer;
    PageTransfer::Kind kind = PageTransfer::Kind::kSave;
    Code code = 0;
    uint32_t mark = 0;  // what the target holds until the end
    DeviceSlot slot;
    HostSlot host;
    uint32_t generation = 0;
    int group = 0;
    OwnedPage fetched;
  };
  struct Known {
    Code code = 0;
    uint32_t generation = 0;
  };

  int32_t below(int n) {
    rng_ += 0x9e3779b97f4a7c15;
    uint64_t z = (rng_ ^ (rng_ >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return static_cast<int32_t>((z >> 33) % static_cast<uint64_t>(n));
  }
  bool chance(int percent) { return below(100) < percent; }
  // `likely`: the deepest of one of these, more often than not.
  Code random_path(Codes likely = 0) {
    if (likely != 0 && chance(75)) {
      for (int skip = below(size(likely)); skip > 0; --skip) likely &= likely - 1;
      return static_cast<Code>(std::countr_zero(likely));
    }
    Code c = 1 | (chance(30) ? kSalt : 0);
    for (int n = 1 + below(kDepth); n > 0; --n) c = down(c, static_cast<Code>(chance(30)));
    return c;
  }
  const PrefixSalt& salt(Code c) const { return salts_[c & kSalt ? 1 : 0]; }
  // The ids of the whole path; pages begin alike.
  std::span<const TokenId> tokens(Code c) {
    const int n = depth(c), page_size = shape_.page_size;
    for (int i = 0; i < n; ++i) {
      tokens_[size_t(i * page_size)] = 7;
      tokens_[size_t((i + 1) * page_size - 1)] = static_cast<TokenId>((c >> (n - 1 - i)) & 1);
    }
    return std::span(tokens_).first(size_t(n * page_size));
  }
  uint32_t& at(DeviceSlot slot) { return device_[size_t(slot.value)]; }
  uint32_t& at(HostSlot slot) { return host_[size_t(slot.value)]; }
  PageId id_of(Code c) const { return PageId(id_of_[c]); }
  void must(bool ok, const char* what) {
    if (!ok && error_.empty()) error_ = std::string(where_) + ": " + what;
  }

  // ---- what is there
  // -----------------------------------------------------------------------------

  // A page whose owner has let it go is in neither set.
  static bool there(PageState s) { return s != PageState::kAbsent && s != PageState::kDraining; }

  void know(PageId id, Code code) {
    known_[size_t(id.value)] = {code, pool_.generation(id)};
    id_of_[code] = id.value;
  }
  void forget_gone(int32_t i) {
    Known& k = known_[size_t(i)];
    const PageId id(i);
    if (k.code == 0) return;
    if (pool_.generation(id) == k.generation &&
        (there(pool_.state(id)) || there(pool_.host_state(id))))
      return;
    id_of_[k.code] = -1;
    uses_[k.code] = 0;
    owed_ &= ~bit(k.code);
    k = {};
  }

  // Slots of one tier that pages have; each has its own.
  template <typename Slot>
  void take(uint32_t& used, PageState state, Slot slot) {
    must((state == PageState::kAbsent) == (slot.value < 0), "a state and a slot do not agree");
    if (slot.value < 0) return;
    must((used >> slot.value & 1) == 0, "a slot belongs to two pages");
    used |= 1u << slot.value;
  }

  void look_at_pages() {
    uint32_t used = 0, host_used = 0;
    std::array<int32_t, kPageStates> counts{}, host_counts{};
    present_ = resident_ = ready_ = saved_ = 0;
    for (int32_t i = 0; i < pool_.max_pages(); ++i) {
      const PageId id(i);
      const PageState state = pool_.state(id), host = pool_.host_state(id);
      ++counts[size_t(state)], ++host_counts[size_t(host)];
      take(used, state, pool_.slot(id));
      take(host_used, host, pool_.host_slot(id));
      forget_gone(i);
      const Code code = known_[size_t(i)].code;
      if (code == 0) continue;
      present_ |= bit(code);
      if (state != PageState::kAbsent) resident_ |= bit(code);
      if (state == PageState::kReady) ready_ |= bit(code);
      if (host == PageState::kReady) saved_ |= bit(code);
      must(state != PageState::kReady || at(pool_.slot(id)) == code, "ready with a wrong content");
      must(host != PageState::kReady || at(pool_.host_slot(id)) == code,
           "ready in the host with a wrong content");
    }
    for (int s = 0; s < kPageStates; ++s)
      must(pool_.count(PageState(s)) == counts[size_t(s)] &&
               pool_.host_count(PageState(s)) == host_counts[size_t(s)],
           "a count of pages in a state is wrong");
    must(pool_.free() + std::popcount(used) == pool_.total(), "device slots do not add up");
    must(pool_.host_free() + std::popcount(host_used) == pool_.host_open(),
         "host slots do not add up");
    for (int32_t i = 1; i <= shape_.device; ++i)
      if ((used >> i & 1) == 0) device_[size_t(i)] = kFree;
    for (int32_t i = 0; i < shape_.host; ++i)
      if ((host_used >> i & 1) == 0) host_[size_t(i)] = kFree;
  }

  void look_at_holders() {
    held_ = in_transfer_ = 0;
    for (const Held& h : pins_) {
      held_ |= path(h.path);
      must(h.pin.pages() == depth(h.path), "a pin is of a wrong length");
      for (int i = 0; i < depth(h.path); ++i) {
        const Code code = first_pages(h.path, i + 1);
        must(id_of_[code] >= 0 && h.slots[size_t(i)] == pool_.slot(id_of(code)),
             "a pinned page has gone or moved");
        if (h.group == 0) must(at(h.slots[size_t(i)]) == code, "a reader sees a wrong content");
      }
    }
    for (const Own& own : own_)
      must(at(own.page.slot()) == own.content, "an owned page has a wrong content");
    for (const Op& op : ops_) {
      const bool up = op.kind == PageTransfer::Kind::kLoad;
      const bool from_storage = op.kind == PageTransfer::Kind::kFetch;
      if (op.kind == PageTransfer::Kind::kSave) held_ |= path(op.code);
      if (up || from_storage || op.kind == PageTransfer::Kind::kSave)
        must((up ? at(op.slot) : at(op.host)) == op.mark, "a copy's target was given away");
      if (!from_storage)
        must((op.kind == PageTransfer::Kind::kSave ? at(op.slot) : at(op.host)) == op.code,
             "a copy's source was given away");
      const PageId id = op.transfer.id();
      must(pool_.in_transfer(id) && pool_.generation(id) == op.generation, "a copy is forgotten");
      if (known_[size_t(id.value)].code == op.code) in_transfer_ |= bit(op.code);
    }
  }

  // Pages of the host that may go for others.
  Codes host_victims() const {
    Codes parents = 0;
    for (Codes left = present_; left != 0; left &= left - 1)
      parents |= bit(up(static_cast<Code>(std::countr_zero(left))));
    return saved_ & ~resident_ & ~held_ & ~in_transfer_ & ~parents;
  }

  void look(const char* where) {
    where_ = where;
    look_at_pages();
    if (!error_.empty()) return;
    look_at_holders();
    must((held_ & ~resident_) == 0, "a held page has left the device");
    for (Codes left = present_; left != 0; left &= left - 1) {
      const auto code = static_cast<Code>(std::countr_zero(left));
      if (!is_page(up(code))) continue;
      must((present_ & bit(up(code))) != 0, "a page has lost its parent");
      must((resident_ & bit(code)) == 0 || (resident_ & bit(up(code))) != 0,
           "a page on the device has a parent that is not");
    }
    must(index_.pages() == size(present_), "the index has other pages than the pool");
    must(index_.cached() == size(resident_), "wrong count of pages on the device");
    must(index_.evictable() == size(ready_ & ~held_), "wrong count of evictable pages");
    must(index_.spare() == pool_.free() + size(ready_ & ~held_ & saved_),
         "wrong count of spare pages");
    must(index_.can_save() == (pool_.host_free() > 0 || host_victims() != 0),
         "wrong about room in the host");
    must(below(16) != 0 || index_.check().empty(), "check()");
  }

  // ---- operations
  // --------------------------------------------------------------------------------

  // A path that is in the host and not on the device, for the most part.
  void begin_with_some() {
    look("at the beginning");
    extend_some(), look("extend");
    if (chance(50)) extend_some(), look("extend");
    if (chance(80)) pins_.clear(), own_.clear(), look("let go");
    index_.save_ahead(shape_.device - below(2));
    save(8), look("begin_saves");
    while (!ops_.empty() && error_.empty()) end_one(95), look("end of a copy");
    if (chance(80)) evict(shape_.device);
  }

  void one() {
    const int r = below(100);
    if (r < 18) return extend_some(), look("extend");
    if (r < 26) return match_one(chance(50)), look("match");
    if (r < 35) return load_some(), look("load");
    if (r < 47) return let_go(), look("let go");
    if (r < 53) return evict(1 + below(3)), look("evict");
    if (r < 70) return end_one(80), look("end of a copy");
    if (r < 78) return save(1 + below(4)), look("begin_saves");
    if (r < 82) return store(1 + below(3)), look("begin_stores");
    if (r < 86) return fetch(), look("begin_fetch");
    if (r < 92) return insert_one(), look("insert_fetched");
    if (r < 94) return reserve_some(), look("reserve");
    if (r < 97) return index_.save_ahead(1 + below(shape_.device)), look("save_ahead");
    if (r < 98) return want_all(), look("want_all");
    if (r < 99) return clear(), look("clear");
    open_host(), look("open_host");
  }

  std::optional<PageReservation> get_pages(int32_t n) {
    if (pool_.free() < n && chance(90)) evict(n - pool_.free());
    const int32_t free = pool_.free();
    auto pages = pool_.reserve(n);
    must(pages.has_value() == (n <= free), "reserve");
    return pages;
  }

  void evict(int32_t n) {
    look("before evict");
    const int32_t free = pool_.free(), most = index_.evictable();
    const int32_t done = index_.evict(n);
    must(done == std::min(n, most), "evict: another number than asked for");
    must(pool_.free() == free + done, "evict: the slots did not come back");
    seen_.evicted += uint64_t(done);
    look("evict");
  }

  // A use of a page of the index by a request.
  void use(Code code) {
    const int needed = shape_.tiers.write == WritePolicy::kWriteThroughSelective ? 2 : 1;
    if (++uses_[code] >= needed && shape_.tiers.write != WritePolicy::kWriteBack &&
        shape_.host > 0 && pool_.host_state(id_of(code)) == PageState::kAbsent)
      owed_ |= bit(code);
  }

  PrefixMatch match(Code wanted) {
    must(index_.peek(tokens(wanted), salt(wanted)) == known_pages(wanted) * shape_.page_size,
         "peek");
    PrefixMatch found = index_.match(tokens(wanted), salt(wanted), below(3));
    int i = 0, in_host = 0;
    for (; i < depth(wanted) && (ready_ & bit(first_pages(wanted, i + 1))) != 0; ++i) {
      const Code code = first_pages(wanted, i + 1);
      must(size_t(i) < found.slots.size() && at(found.slots[size_t(i)]) == code,
           "a page of the device does not match");
      use(code);
    }
    const Code next = i < depth(wanted) ? first_pages(wanted, i + 1) : 0;
    const bool loading = next != 0 && (resident_ & bit(next)) != 0;
    for (int k = i; !loading && k < depth(wanted); ++k, ++in_host) {
      const Code code = first_pages(wanted, k + 1);
      if ((present_ & bit(code)) == 0) break;
      use(code);
    }
    must(int(found.slots.size()) == i && found.pin.pages() == i, "match: wrong length");
    must(found.host_pages == in_host, "match: wrong length in the host");
    must(found.loading == loading, "match: wrong about a load");
    return found;
  }
  int known_pages(Code wanted) const {
    int n = 0;
    while (n < depth(wanted) && id_of_[first_pages(wanted, n + 1)] >= 0) ++n;
    return n;
  }

  // Keeps the pin or not.
  void match_one(bool keep) {
    const Code wanted = random_path(present_);
    PrefixMatch found = match(wanted);
    if (!keep || pins_.size() > 3) return;
    pins_.push_back({std::move(found.pin), first_pages(wanted, int(found.slots.size())),
                     std::move(found.slots)});
  }

  void extend_some() {
    if (pins_.empty() || chance(30)) match_one(true);
    if (pins_.empty()) return;
    const auto i = size_t(below(int(pins_.size())));
    for (int n = 1 + below(3); n > 0 && error_.empty(); --n) {
      look("between extends");
      if (!extend_one(pins_[i])) return;
    }
  }
  bool extend_one(Held& held) {
    if (held.group != 0 || depth(held.path) == kDepth) return false;
    const Code code = down(held.path, Code(chance(35)));
    const auto whole = tokens(code);
    const auto own = whole.last(size_t(shape_.page_size));
    const bool loading = (resident_ & ~ready_ & bit(code)) != 0;
    must(index_.next_is_loading(held.pin, salt(code), own) == loading, "next_is_loading");
    if (loading) return false;
    auto room = get_pages(1);
    if (!room) return false;
    OwnedPage page = room->take();
    const PageId id = page.id();
    at(page.slot()) = code;
    const DeviceSlot slot = page.slot();
    // get_pages() may have evicted it.
    const bool known = id_of_[code] >= 0, duplicate = known && (ready_ & bit(code)) != 0;
    auto result = index_.extend(held.pin, salt(code), tokens(code).last(size_t(shape_.page_size)),
                                std::move(page), below(3));
    must(bool(result.duplicate) == duplicate, "extend: wrong about a duplicate");
    must((result.slot == slot) == !duplicate, "extend: another slot");
    if (!known) know(id, code);
    use(code);
    held.path = code;
    held.slots.push_back(result.slot);
    seen_.adopted += known && !duplicate;
    seen_.duplicates += duplicate;
    if (duplicate && chance(50)) own_.push_back({std::move(result.duplicate), code});
    return true;
  }

  void let_go() {
    if (!own_.empty() && chance(40)) {
      const auto i = below(int(own_.size()));
      if (chance(30) && own_[size_t(i)].page.state() != PageState::kDraining)
        own_[size_t(i)].page.drain();
      own_.erase(own_.begin() + i);
      return;
    }
    if (pins_.empty()) return;
    const auto i = below(int(pins_.size()));
    if (pins_[size_t(i)].group == 0) pins_.erase(pins_.begin() + i);
  }

  void reserve_some() {
    auto pages = get_pages(1 + below(2));
    if (!pages) return;
    own_.push_back({pages->take(), kSpoilt});
    at(own_.back().page.slot()) = kSpoilt;
  }

  Op& begin(PageTransfer transfer, PageTransfer::Kind kind, Code code) {
    const PageId id = transfer.id();
    must(transfer.kind() == kind, "a copy of another kind");
    Op op{.kind = kind, .code = code, .mark = ++marks_};
    op.slot = transfer.slot();
    op.host = transfer.host_slot();
    op.generation = pool_.generation(id);
    op.transfer = std::move(transfer);
    ops_.push_back(std::move(op));
    return ops_.back();
  }

  void load_some() {
    const Code wanted = random_path(saved_ & ~resident_);
    PrefixMatch found = match(wanted);
    if (found.host_pages == 0 || pins_.size() > 4) return;
    const int n = 1 + below(found.host_pages), first = int(found.slots.size());
    Held held{std::move(found.pin), first_pages(wanted, first), std::move(found.slots)};
    pins_.push_back(std::move(held));
    auto fresh = get_pages(n);
    if (!fresh || !error_.empty()) return;
    Held& h = pins_.back();
    h.group = ++groups_;
    auto loads = index_.load(h.pin, salt(wanted), tokens(wanted), n, *fresh);
    must(int(loads.size()) == n && fresh->size() == 0, "load: another number than asked for");
    for (PageTransfer& load : loads) {
      h.path = first_pages(wanted, depth(h.path) + 1);
      Op& op = begin(std::move(load), PageTransfer::Kind::kLoad, h.path);
      op.group = h.group;
      must(at(op.host) == op.code, "load: not the page's content");
      at(op.slot) = op.mark;
      h.slots.push_back(op.slot);
    }
    seen_.loaded += uint64_t(n);
  }

  void save(int32_t most) {
    auto saves = index_.begin_saves(most);
    must(int(saves.size()) <= most, "begin_saves: too many");
    const bool all = int(saves.size()) < most;
    for (PageTransfer& t : saves) {
      const Code code = known_[size_t(t.id().value)].code;
      must(code != 0 && (saved_ & bit(code)) == 0, "begin_saves: of a page that needs none");
      Op& op = begin(std::move(t), PageTransfer::Kind::kSave, code);
      at(op.host) = op.mark;
      owed_ &= ~bit(code);
      ++seen_.saved;
    }
    if (!all) return;
    look("begin_saves");  // what the policy wants saved is, unless there was no room
    if (pool_.host_free() > 0 || (!keeps_host_ && index_.can_save()))
      must((owed_ & ready_ & ~saved_) == 0, "begin_saves: a page was forgotten");
    owed_ = 0;
  }

  // The name of each page in storage.
  Code code_of(const PageIdentity& page) {
    static std::map<PageKey, Code> names[2];  // by page size
    auto& mine = names[shape_.page_size - 1];
    if (mine.empty()) mine = all_names();
    const auto name = mine.find(page.key);
    if (name == mine.end()) return 0;
    const Code code = name->second;
    const bool right =
        std::ranges::equal(page.tokens, tokens(code).last(size_t(shape_.page_size))) &&
        (!is_page(up(code)) || mine.at(page.parent) == up(code));
    return right ? code : 0;
  }
  std::map<PageKey, Code> all_names() {
    std::map<PageKey, Code> names;
    for (Code code = 0; code < 2 * kSalt; ++code)
      if (is_page(code))
        names.emplace(index_.identities(tokens(code), salt(code), depth(code) - 1).at(0).key, code);
    return names;
  }

  void store(int32_t most) {
    for (PrefixIndex::Store& s : index_.begin_stores(most)) {
      const Code code = known_[size_t(s.transfer.id().value)].code;
      must(code != 0 && code_of(s.page) == code, "begin_stores: not the page's name");
      const bool twice = std::ranges::any_of(ops_, [&](const Op& op) {
        return op.kind == PageTransfer::Kind::kStore && op.transfer.id() == s.transfer.id();
      });
      must(!twice, "begin_stores: a page twice at once");
      begin(std::move(s.transfer), PageTransfer::Kind::kStore, code);
      ++seen_.stored;
    }
  }

  // What is missing of a path.
  void fetch() {
    const Code wanted = random_path(stored_ & ~present_);
    for (int n = 1; n <= depth(wanted) && error_.empty(); ++n) {
      const Code code = first_pages(wanted, n);
      if ((present_ & bit(code)) != 0) continue;
      if ((stored_ & bit(code)) == 0) return;
      look("between fetches");
      const bool room = index_.can_save();
      auto fetch = index_.begin_fetch();
      must(fetch.has_value() == room, "begin_fetch");
      if (!fetch) return;
      Op& op = begin(std::move(fetch->transfer), PageTransfer::Kind::kFetch, code);
      op.fetched = std::move(fetch->page);
      at(op.host) = op.mark;
      ++seen_.fetched;
    }
  }

  // One that has come goes to its place or nowhere; or one on its way is given up.
  void insert_one() {
    if (!ops_.empty() && chance(30)) {
      const auto op = std::ranges::find_if(ops_, [](const Op& o) { return bool(o.fetched); });
      if (op == ops_.end()) return;
      ++seen_.cut;
      return op->fetched.reset();
    }
    if (arrived_.empty()) return;
    const auto i = chance(70) ? 0 : below(int(arrived_.size()));
    auto [page, code] = std::move(arrived_[size_t(i)]);
    arrived_.erase(arrived_.begin() + i);
    if (chance(10)) return;
    const PageId id = page.id();
    const bool fits = id_of_[code] < 0 && known_pages(code) == depth(code) - 1;
    index_.insert_fetched(tokens(code), salt(code), std::move(page));
    if (fits) know(id, code);
    seen_.inserted += fits;
  }

  // ---- ends of copies
  // ----------------------------------------------------------------------------

  void end_one(int good) {
    if (ops_.empty()) return;
    const auto i = size_t(below(int(ops_.size())));
    const bool ok = chance(good);
    seen_.failed += !ok;
    if (ops_[i].kind == PageTransfer::Kind::kLoad) return end_load(i, ok);
    end(i, ok);
  }

  void end(size_t i, bool ok) {
    Op op = std::move(ops_[i]);
    ops_.erase(ops_.begin() + ptrdiff_t(i));
    const bool device =
        op.kind == PageTransfer::Kind::kSave || op.kind == PageTransfer::Kind::kLoad;
    must(op.transfer.host_slot() == op.host && (!device || op.transfer.slot() == op.slot),
         "a page moved under a copy");
    if (ok) {
      if (op.kind == PageTransfer::Kind::kLoad) at(op.slot) = op.code;
      if (op.kind == PageTransfer::Kind::kSave || op.kind == PageTransfer::Kind::kFetch)
        at(op.host) = op.code;
      if (op.kind == PageTransfer::Kind::kStore) stored_ |= bit(op.code);
    }
    index_.finish(std::move(op.transfer), ok);
    if (ok && op.fetched) arrived_.push_back({std::move(op.fetched), op.code});
  }

  // A path's pages come in any order; where they fail, all that have not come fail together, and
  // their reader goes.
  void end_load(size_t i, bool ok) {
    const int group = ops_[i].group;
    const auto held = std::ranges::find_if(pins_, [&](const Held& h) { return h.group == group; });
    const auto others = [&](const Op& op) {
      return op.group == group && (ok || depth(op.code) > held->came);
    };
    if (!ok && depth(ops_[i].code) < held->came) ok = true;
    if (ok) {
      held->came = std::max(held->came, depth(ops_[i].code));
      end(i, true);
      if (std::ranges::none_of(ops_, others)) held->group = 0;
      return;
    }
    const bool gap = std::ranges::any_of(
        ops_, [&](const Op& op) { return op.group == group && depth(op.code) < held->came; });
    if (gap) return;
    for (size_t k = ops_.size(); k-- > 0;)
      if (ops_[k].group == group) end(k, false);
    pins_.erase(held);
  }

  // ---- the rest
  // ----------------------------------------------------------------------------------

  void want_all() {
    if (!chance(20)) return;
    index_.want_all();
    keeps_host_ = true;
  }
  void clear() {
    if (!chance(30)) return;
    index_.clear();
    look("clear");
    if (ops_.empty()) must(present_ == held_, "clear: another number of pages is left");
  }
  void open_host() {
    if (pool_.host_open() < shape_.host)
      pool_.open_host(pool_.host_open() + 1 + below(shape_.host - pool_.host_open()));
  }

  // Ends everything in some order; whether nothing is left.
  bool over() {
    if (!ops_.empty()) return end_one(80), false;
    if (!pins_.empty() || !own_.empty()) return let_go(), false;
    if (index_.wants_copies()) {
      if (++rounds_ > 200) must(false, "copies are wanted for ever");
      return save(8), store(8), false;
    }
    arrived_.clear();
    for (int n = below(4); n > 0; --n) {
      match(random_path(present_));
      look("the last matches");
    }
    save(8), store(8);
    while (!ops_.empty()) end(0, false);
    seen_.host_evicted += index_.host_evicted_total();
    index_.clear();
    look("the last clear");
    must(index_.check().empty() && index_.pages() == 0, "pages are left");
    must(pool_.free() == pool_.total() && pool_.host_free() == pool_.host_open(), "slots leaked");
    return true;
  }

  const Shape shape_;
  Seen& seen_;
  uint64_t rng_;
  PagePool pool_;
  PrefixIndex index_;
  const std::array<PrefixSalt, 2> salts_;
  std::array<TokenId, 2 * kDepth> tokens_{};
  std::array<uint32_t, 8> device_{}, host_{};  // content of each slot
  std::array<Known, 16> known_{};              // by page id
  std::array<int32_t, 2 * kSalt> id_of_{}, uses_{};
  Codes present_ = 0, resident_ = 0, ready_ = 0, saved_ = 0, held_ = 0, in_transfer_ = 0;
  Codes owed_ = 0;    // the write policy wants them saved
  Codes stored_ = 0;  // in storage
  std::vector<Held> pins_;
  std::vector<Own> own_;
  std::vector<Op> ops_;
  std::vector<std::pair<OwnedPage, Code>> arrived_;
  uint32_t marks_ = kSpoilt;
  int groups_ = 0, rounds_ = 0;
  bool keeps_host_ = false;
  const char* where_ = "";
  std::string error_;
};

// ATTUNE_MODEL_SCHEDULES sets how many schedules each of the three write policies gets. Without it
// they are a million in all, half a minute's work.
uint64_t schedules() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr uint64_t kUsual = 30000;
#else
  constexpr uint64_t kUsual = 333334;
#endif
  const char* set = std::getenv("ATTUNE_MODEL_SCHEDULES");
  return set ? std::strtoull(set, nullptr, 10) : kUsual;
}

class TiersModel : public ::testing::TestWithParam<WritePolicy> {};

TEST_P(TiersModel, NoLeakNoDoubleUseNoReadBeforeReady) {
  Seen seen;
  for (uint64_t seed = 0; seed < schedules(); ++seed)
    ASSERT_TRUE(Trial(GetParam(), seed, seen).go()) << "seed " << seed;
  // And the schedules go everywhere.
  const std::pair<const char*, uint64_t> counts[] = {{"evicted", seen.evicted},
                                                     {"saved", seen.saved},
                                                     {"loaded", seen.loaded},
                                                     {"stored", seen.stored},
                                                     {"fetched", seen.fetched},
                                                     {"inserted", seen.inserted},
                                                     {"adopted", seen.adopted},
                                                     {"failed", seen.failed},
                                                     {"cut", seen.cut},
                                                     {"duplicates", seen.duplicates},
                                                     {"host_evicted", seen.host_evicted}};
  for (const auto& [what, n] : counts) {
    RecordProperty(what, std::to_string(n));
    EXPECT_GE(n, schedules() / 100) << what;
  }
}
INSTANTIATE_TEST_SUITE_P(Policies, TiersModel,
                         ::testing::Values(WritePolicy::kWriteThrough,
                                           WritePolicy::kWriteThroughSelective,
                                           WritePolicy::kWriteBack));

}  // namespace
}  // namespace attune::kv
