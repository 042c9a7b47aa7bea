// Random schedules of the page state machine, of the pool and the index alone, against the model:
// no leak, no double use, no read before ready, nothing lost that was not given up.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "kv/index/testing/tiers_model.h"

namespace attune::kv {
namespace {

using namespace testing;  // NOLINT: the model's words

// How often what was done, over many schedules.
struct Seen {
  uint64_t evicted = 0, saved = 0, loaded = 0, stored = 0, fetched = 0, inserted = 0, adopted = 0,
           duplicates = 0, failed = 0, cut = 0, host_evicted = 0;
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

class Trial : public TiersModel {
 public:
  Trial(WritePolicy write, uint64_t seed, Seen& seen)
      : TiersModel(random_shape(write, seed), seed), seen_(seen) {
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
    PrefixMatch found = index_.match(tokens(wanted), salt(wanted));
    index_.use(tokens(wanted), salt(wanted), below(3));
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

  Seen& seen_;
  std::vector<std::pair<OwnedPage, Code>> arrived_;
  int groups_ = 0, rounds_ = 0;
  bool keeps_host_ = false;
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

class Schedules : public ::testing::TestWithParam<WritePolicy> {};

TEST_P(Schedules, BugD05NoLeakNoDoubleUseNoReadBeforeReady) {
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
INSTANTIATE_TEST_SUITE_P(TiersModel, Schedules,
                         ::testing::Values(WritePolicy::kWriteThrough,
                                           WritePolicy::kWriteThroughSelective,
                                           WritePolicy::kWriteBack));

}  // namespace
}  // namespace attune::kv
