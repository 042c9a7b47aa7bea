#include "sched/cache_control.h"

#include <algorithm>
#include <utility>

namespace attune::sched {
namespace {

// Copies of a kind under way at once: enough to keep a link or a store busy, few enough that what
// is decided late is decided well.
constexpr int32_t kMostSaves = 64, kMostStores = 32, kMostFetches = 32;
// Part of the host pool, beyond a device pool's worth, that prefetches may fill (SGLang's).
constexpr double kMostPrefetched = 0.8;
// So many saves that fail in a row mean that waiting for one is no use.
constexpr int32_t kLinkDown = 16;
// Part of the device that can go without loss at any time, with kWriteBack.
constexpr int32_t kAheadPart = 8;

}  // namespace

CacheWork CacheControl::take_work() {
  if (stopped_) return std::exchange(work_, {});
  if (config_.write_back) index_.save_ahead(ahead() - saves_);
  for (kv::PageTransfer& t : index_.begin_saves(kMostSaves - saves_)) {
    work_.saves.push_back({++ops_, {t.host_slot(), t.slot()}});
    copies_[ops_].transfer = std::move(t);
    ++saves_;
  }
  for (kv::PrefixIndex::Store& s : index_.begin_stores(kMostStores - stores_)) {
    work_.stores.push_back({++ops_, std::move(s.page), s.transfer.host_slot()});
    copies_[ops_].transfer = std::move(s.transfer);
    ++stores_;
  }
  return std::exchange(work_, {});
}

void CacheControl::on_copied(uint64_t op, bool ok) {
  const auto found = copies_.find(op);
  if (found == copies_.end()) return;
  Copy copy = std::move(found->second);
  copies_.erase(found);
  switch (copy.transfer.kind()) {
    case kv::PageTransfer::Kind::kFetch:
      return arrived(op, std::move(copy), ok);
    case kv::PageTransfer::Kind::kStore:
      --stores_;
      break;
    default:
      --saves_;
      failed_saves_ = ok ? 0 : failed_saves_ + 1;
  }
  index_.finish(std::move(copy.transfer), ok);
}

// ---- from storage ------------------------------------------------------------------------------

void CacheControl::prefetch(RequestId request, std::span<const TokenId> tokens,
                            const kv::PrefixSalt& salt) {
  if (!config_.storage) return;
  const int32_t page_size = pool_.page_size();
  const auto pages = static_cast<int32_t>(tokens.size()) / page_size;
  const int32_t first = index_.peek(tokens, salt) / page_size;
  // As far as there is room for them beside others'.
  const auto room = static_cast<int64_t>(kMostPrefetched * (pool_.host_total() - pool_.total()));
  const auto wanted = static_cast<int32_t>(
      std::min<int64_t>(pages - first, std::max<int64_t>(room, 1) - prefetching_));
  if (wanted <= 0 || wanted * page_size < config_.prefetch_threshold) return;
  const std::span whole = tokens.first(static_cast<size_t>((first + wanted) * page_size));
  Prefetch p;
  p.tokens.assign(whole.begin(), whole.end());
  p.salt = salt;
  p.first = first;
  p.pages = index_.identities(whole, salt, first);
  prefetching_ += static_cast<int64_t>(p.pages.size());
  CacheWork::Match match{++ops_, request, {}};
  for (const kv::PageIdentity& page : p.pages) match.keys.push_back(page.key);
  work_.matches.push_back(std::move(match));
  copies_[ops_].request = request;
  prefetches_.emplace(request, std::move(p));
  ++counters_.prefetches;
}

void CacheControl::on_matched(uint64_t op, int32_t pages) {
  const auto found = copies_.find(op);
  if (found == copies_.end()) return;
  const RequestId request = found->second.request;
  copies_.erase(found);
  const auto it = prefetches_.find(request);
  if (it == prefetches_.end()) return;
  Prefetch& p = it->second;
  p.matched = true;
  const auto there = std::clamp<size_t>(static_cast<size_t>(std::max(pages, 0)), 0, p.pages.size());
  prefetching_ -= static_cast<int64_t>(p.pages.size() - there);
  p.pages.resize(there);
  if (static_cast<int32_t>(there) * pool_.page_size() < config_.prefetch_threshold)
    p.stopped = true;
  pump(request, p);
  end_if_over(it);
}

void CacheControl::pump(RequestId request, Prefetch& p) {
  while (!p.stopped && std::ssize(p.under_way) < kMostFetches &&
         p.issued < static_cast<int32_t>(p.pages.size())) {
    auto fetch = index_.begin_fetch();
    if (!fetch) {  // the host is full of pages in use: what has come is all
      p.stopped = true;
      return;
    }
    work_.fetches.push_back(
        {++ops_, p.pages[static_cast<size_t>(p.issued)], fetch->transfer.host_slot()});
    copies_[ops_] = {std::move(fetch->transfer), std::move(fetch->page), request, p.issued};
    ++p.issued;
    p.under_way.insert(ops_);
  }
}

// Pages are put in place in their order; behind one that does not come none is of use.
void CacheControl::arrived(uint64_t op, Copy copy, bool ok) {
  index_.finish(std::move(copy.transfer), ok);
  const auto it = prefetches_.find(copy.request);
  if (it == prefetches_.end()) return;  // cut: the page goes
  Prefetch& p = it->second;
  p.under_way.erase(op);
  if (ok) {
    p.arrived.emplace(copy.page, std::move(copy.fetched));
  } else if (!p.stopped) {
    p.stopped = true;
    cancel_fetches(p);
  }
  const auto page_size = static_cast<size_t>(pool_.page_size());
  while (!p.arrived.empty() && p.arrived.begin()->first == p.inserted) {
    const size_t end = (static_cast<size_t>(p.first + p.inserted) + 1) * page_size;
    const bool put = index_.insert_fetched(std::span(p.tokens).first(end), p.salt,
                                           std::move(p.arrived.begin()->second));
    p.arrived.erase(p.arrived.begin());
    ++p.inserted;
    fetched_[copy.request] += put;
    counters_.prefetched_pages += put;
  }
  pump(copy.request, p);
  end_if_over(it);
}

void CacheControl::end_if_over(Prefetches::iterator it) {
  const Prefetch& p = it->second;
  const bool all = p.stopped || p.issued == static_cast<int32_t>(p.pages.size());
  if (!p.matched || !all || !p.under_way.empty()) return;
  prefetching_ -= static_cast<int64_t>(p.pages.size());
  work_.ended.push_back(it->first);
  prefetches_.erase(it);
}

void CacheControl::cancel_fetches(const Prefetch& p) {
  work_.cancelled.insert(work_.cancelled.end(), p.under_way.begin(), p.under_way.end());
}

bool CacheControl::may_admit(RequestId request) const {
  return config_.prefetch == PrefetchPolicy::kBestEffort || !prefetches_.contains(request);
}

void CacheControl::cut_prefetch(RequestId request) {
  const auto it = prefetches_.find(request);
  if (it == prefetches_.end()) return;
  ++counters_.prefetches_cut;
  cancel_fetches(it->second);
  prefetching_ -= static_cast<int64_t>(it->second.pages.size());
  work_.ended.push_back(request);
  prefetches_.erase(it);
}

int32_t CacheControl::fetched_pages(RequestId request) const {
  const auto it = fetched_.find(request);
  return it == fetched_.end() ? 0 : it->second;
}

void CacheControl::forget(RequestId request) {
  cut_prefetch(request);
  fetched_.erase(request);
}

int32_t CacheControl::ahead() const {
  return std::max(1, pool_.total() / kAheadPart);
}

// A request waits for copies of what it would drive out, but not for a link that is down; the steps
// of others go on.
bool CacheControl::may_take(int32_t pages) {
  if (!config_.write_back || stopped_ || pages <= index_.spare()) return true;
  index_.save_ahead(pages + ahead() - saves_);
  if (failed_saves_ >= kLinkDown) return true;
  return saves_ == 0 && !(index_.wants_saves() && index_.can_save());
}

// ---- from the host -----------------------------------------------------------------------------

// A load costs its bytes over the link, computing costs its tokens; while one of the rates is not
// known, loading is taken to be faster.
bool CacheControl::worth_loading(int32_t pages) const {
  const double tokens = static_cast<double>(pages) * pool_.page_size();
  if (pages == 0) return false;
  if (config_.always_load) return true;
  if (tokens < config_.load_threshold) return false;
  if (rates_.load_bytes <= 0 || rates_.prefill_tokens <= 0) return true;
  return pages * static_cast<double>(config_.page_bytes) / rates_.load_bytes <
         tokens / rates_.prefill_tokens;
}

void CacheControl::count_load(int32_t pages, bool loaded) {
  if (pages == 0) return;
  ++(loaded ? counters_.loads : counters_.recomputes);
  (loaded ? counters_.loaded_pages : counters_.recomputed_pages) += static_cast<uint64_t>(pages);
}

void CacheControl::count(HiCacheStats& stats) const {
  stats = counters_;
  stats.enabled = true;
  stats.prefetches_in_flight = static_cast<int64_t>(prefetches_.size());
}

}  // namespace attune::sched
