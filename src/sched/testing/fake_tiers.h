// Host and storage for scheduler tests: makes the copies that the scheduler asks for, in any order
// and as late as the test likes. A copy reads its source when it ends, so that a page given away
// too early is seen by its content; one that fails leaves anything in its target.
#pragma once

#include <map>
#include <optional>
#include <random>
#include <variant>
#include <vector>

#include "sched/cache_work.h"
#include "sched/testing/fake_device.h"

namespace attune::sched::testing {

class FakeTiers {
 public:
  explicit FakeTiers(FakeDevice& device) : device_(device) {}

  void take(CacheWork work) {
    for (auto& save : work.saves) ops_.emplace_back(std::move(save));
    for (auto& store : work.stores) ops_.emplace_back(std::move(store));
    for (auto& fetch : work.fetches) ops_.emplace_back(std::move(fetch));
    for (auto& match : work.matches) ops_.emplace_back(std::move(match));
    for (const uint64_t op : work.cancelled) cancelled_.push_back(op);
  }
  bool idle() const { return ops_.empty(); }

  struct Answer {
    uint64_t op = 0;
    bool ok = false;
    std::optional<int32_t> matched;
  };
  // Ends one of the copies under way. REQUIRES: !idle()
  Answer end_one(std::mt19937_64& rng, double failure_rate) {
    const size_t i = rng() % ops_.size();
    const Op op = std::move(ops_[i]);
    ops_.erase(ops_.begin() + static_cast<ptrdiff_t>(i));
    const bool fail = static_cast<double>(rng() % 10000) < failure_rate * 10000;
    return std::visit([&](const auto& o) { return end(o, fail); }, op);
  }
  // Storage loses a page, or has another one's content under its name.
  void damage(std::mt19937_64& rng) {
    if (stored_.empty()) return;
    auto it = std::next(stored_.begin(), static_cast<ptrdiff_t>(rng() % stored_.size()));
    if (rng() % 2 == 0) {
      stored_.erase(it);
    } else {
      it->second.damaged = true;
    }
  }

 private:
  using Op = std::variant<CacheWork::Save, CacheWork::Store, CacheWork::Fetch, CacheWork::Match>;
  struct Stored {
    kv::PageIdentity page;
    FakeDevice::Content content;
    bool damaged = false;  // its checksum says so
  };

  Answer end(const CacheWork::Save& save, bool fail) {
    FakeDevice::Content& to = device_.page(save.pages.host);
    fail ? poison(to) : void(to = device_.page(save.pages.device));
    return {save.op, !fail, {}};
  }
  Answer end(const CacheWork::Store& store, bool fail) {
    if (!fail) stored_[store.page.key] = {store.page, device_.page(store.from)};
    return {store.op, !fail, {}};
  }
  Answer end(const CacheWork::Fetch& fetch, bool fail) {
    FakeDevice::Content& to = device_.page(fetch.to);
    const auto found = stored_.find(fetch.page.key);
    const bool cancelled = std::ranges::count(cancelled_, fetch.op) > 0;
    if (fail || cancelled || found == stored_.end() || found->second.damaged ||
        found->second.page != fetch.page) {
      poison(to);
      return {fetch.op, false, {}};
    }
    to = found->second.content;
    return {fetch.op, true, {}};
  }
  Answer end(const CacheWork::Match& match, bool fail) {
    int32_t n = 0;
    for (const kv::PageKey& key : match.keys) {
      if (fail || !stored_.contains(key)) break;
      ++n;
    }
    return {match.op, !fail, n};
  }
  static void poison(FakeDevice::Content& page) {
    for (uint64_t& cell : page) cell = 0xdeadbeef;
  }

  FakeDevice& device_;
  std::vector<Op> ops_;
  std::vector<uint64_t> cancelled_;
  std::map<kv::PageKey, Stored> stored_;
};

}  // namespace attune::sched::testing
