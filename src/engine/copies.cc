#include "engine/copies.h"

#include <algorithm>
#include <utility>

namespace attune::engine {

Status Copies::Load::wait() {
  std::unique_lock lock(mutex_);
  cv_.wait(lock, [&] { return ended_.has_value(); });
  return *ended_;
}

std::shared_ptr<Copies::Load> Copies::load(std::vector<kv::PageCopy> pages) {
  auto load = std::make_shared<Load>();
  load->gate_ = transfer_->load(std::move(pages), [load](const Status& status) {
    std::lock_guard lock(load->mutex_);
    load->ended_ = status;
    load->cv_.notify_all();
  });
  return load;
}

void Copies::start(sched::CacheWork work, const Answers& answers) {
  if (!work.saves.empty()) {
    std::vector<uint64_t> ops;
    std::vector<kv::PageCopy> pages;
    for (const sched::CacheWork::Save& save : work.saves) {
      ops.push_back(save.op);
      pages.push_back(save.pages);
    }
    transfer_->save(std::move(pages), [copied = answers.copied, ops = std::move(ops)](
                                          const Status& status) { copied(ops, status.ok()); });
  }
  for (sched::CacheWork::Store& s : work.stores) store(std::move(s), answers);
  for (sched::CacheWork::Fetch& f : work.fetches) fetch(std::move(f), answers);
  for (sched::CacheWork::Match& m : work.matches) {
    if (config_.prefetch_wait) {
      const PrefetchWait& w = *config_.prefetch_wait;
      const auto tokens = static_cast<double>(m.keys.size()) * config_.geometry.page_size;
      const std::chrono::duration<double> wait(
          std::min(w.most, w.base + w.per_ki_token * tokens / 1024));
      deadlines_.emplace(Clock::now() + std::chrono::duration_cast<Clock::duration>(wait),
                         m.request);
    }
    tier_->match(std::move(m.keys),
                 [matched = answers.matched, op = m.op](int32_t pages) { matched(op, pages); });
  }
  for (const RequestId request : work.ended)
    std::erase_if(deadlines_, [&](const auto& d) { return d.second == request; });
  for (const uint64_t op : work.cancelled)
    if (const auto it = reads_.find(op); it != reads_.end()) tier_->cancel(it->second);
}

void Copies::store(sched::CacheWork::Store s, const Answers& answers) {
  tier_->write(std::move(s.page), kv::page_runs(config_.geometry, host_->view(), s.from),
               [copied = answers.copied, op = s.op](kv::TierResult result) {
                 copied({op}, result == kv::TierResult::kOk);
               });
}

void Copies::fetch(sched::CacheWork::Fetch f, const Answers& answers) {
  reads_[f.op] =
      tier_->read(std::move(f.page), kv::page_runs(config_.geometry, host_->view(), f.to),
                  [copied = answers.copied, op = f.op](kv::TierResult result) {
                    copied({op}, result == kv::TierResult::kOk);
                  });
}

std::vector<RequestId> Copies::overdue(Clock::time_point now) {
  std::vector<RequestId> requests;
  const auto end = deadlines_.upper_bound(now);
  for (auto it = deadlines_.begin(); it != end; ++it) requests.push_back(it->second);
  deadlines_.erase(deadlines_.begin(), end);
  return requests;
}

std::optional<Copies::Clock::time_point> Copies::next_deadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

double Copies::load_bytes_per_second() const {
  const kv::TransferStats s = transfer_->stats();
  return s.load_seconds > 0 ? static_cast<double>(s.loaded_bytes) / s.load_seconds : 0;
}

void Copies::fill(EngineStats& stats) const {
  HiCacheStats& h = stats.hicache;
  h.io_backend = config_.io_backend;
  h.mem_layout = config_.mem_layout;
  h.write_policy = config_.write_policy;
  h.storage_prefetch_policy = config_.storage_prefetch_policy;
  CacheTierStats& host = stats.cache_tiers[1];
  h.host_ready = host.total_pages > 0 ? static_cast<double>(host_->ready_slots()) /
                                            static_cast<double>(host.total_pages)
                                      : 0;
  const kv::TransferStats t = transfer_->stats();
  host.read_bytes = t.loaded_bytes;
  host.read_seconds = t.load_seconds;
  host.written_bytes = t.saved_bytes;
  host.write_seconds = t.save_seconds;
  host.queued_pages = t.queued_pages;
  host.failed_operations = t.failed_saves + t.failed_loads;
  if (!tier_ || stats.cache_tiers.size() < 3) return;
  CacheTierStats& storage = stats.cache_tiers[2];
  const kv::TierStats s = tier_->stats();
  storage.name = tier_->info().name;
  storage.pages = s.pages;
  storage.bytes = s.bytes;
  storage.budget_bytes = tier_->info().budget_bytes;
  storage.misses = s.misses;
  storage.evicted_pages = s.evicted;
  storage.read_bytes = s.read_bytes;
  storage.written_bytes = s.written_bytes;
  storage.read_seconds = s.read_seconds;
  storage.write_seconds = s.write_seconds;
  storage.corrupt_pages = s.corrupt;
  storage.failed_operations = s.failed + s.full;
  storage.queued_pages = s.queued;
}

}  // namespace attune::engine
