#include "engine/load_copies.h"

#include <algorithm>

#include "base/log.h"
#include "kv/tier/make_tier.h"
#include "kv/tier/record.h"

namespace attune::engine {
namespace {

using base::cat;

// To be raised with every change of what a page's bytes mean.
constexpr int kFormat = 1;

}  // namespace

kv::CacheIdentity cache_identity(const Options& options, const resolve::Resolution& resolution,
                                 const RunnerConfig& rc, const device::DeviceInfo& device,
                                 const std::string& fingerprint) {
  const kv::LayerKvSpec& l = rc.geometry.layer;
  std::string layout =
      cat("format ", kFormat, ", ", resolution.kv_layout, ", page ", rc.geometry.page_size, ", ",
          rc.geometry.layers, " x ", l.kv_heads, " x ", l.k_dim, "+", l.v_dim,
          l.v_in_k ? " shared" : "", ", activations ", tensor::dtype_name(rc.act));
  if (resolution.hicache) layout += cat(", ", resolution.hicache->mem_layout);
  // Its promise is the same bits, which other kernels would not give.
  if (options.enable_deterministic_inference) {
    layout += cat(", deterministic on ", device.name);
    for (const auto& candidates : resolution.candidates)
      if (!candidates.empty()) layout += cat(", ", candidates.front().backend);
  }
  return {fingerprint, tensor::dtype_name(resolution.kv_dtype), layout};
}

Result<std::unique_ptr<kv::KvTier>> open_storage(const Options& options,
                                                 const resolve::Resolution& resolution,
                                                 const kv::CacheIdentity& identity,
                                                 int64_t page_bytes) {
  if (!resolution.hicache || options.hicache_storage_backend == "none")
    return std::unique_ptr<kv::KvTier>();
  kv::TierConfig config;
  config.kind =
      options.hicache_storage_backend == "redis" ? kv::TierKind::kRedis : kv::TierKind::kFile;
  config.dir = options.hicache_storage_dir;
  config.url = options.hicache_storage_url;
  config.budget_bytes = resolution.hicache->storage_bytes;
  if (config.budget_bytes > 0 && config.budget_bytes < 2 * page_bytes)
    return invalid_argument(cat("the storage tier may hold ", config.budget_bytes,
                                " bytes, and one page has ", page_bytes,
                                ": raise --hicache-storage-size, or free disk space"));
  config.identity = cat(identity.model_fingerprint, "; ", identity.kv_dtype, "; ", identity.layout);
  return kv::make_tier(config);
}

int32_t host_slots(const resolve::Resolution& resolution, const kv::KvGeometry& geometry) {
  if (!resolution.hicache) return 0;
  return static_cast<int32_t>(
      std::min<int64_t>(resolution.hicache->host_bytes / geometry.page_bytes(), INT32_MAX / 4));
}

Result<std::unique_ptr<Copies>> make_copies(const Options& options,
                                            const resolve::Resolution& resolution,
                                            const RunnerConfig& rc, Runner& runner,
                                            std::unique_ptr<kv::KvTier> tier,
                                            device::Device& device, device::Stream& compute) {
  const resolve::HiCacheChoice& choice = *resolution.hicache;
  const kv::HostLayout layout = *kv::parse_host_layout(choice.mem_layout);
  ATTUNE_ASSIGN_OR_RETURN(std::unique_ptr<kv::HostPool> host,
                          kv::HostPool::create({.geometry = rc.geometry,
                                                .layout = layout,
                                                .num_slots = host_slots(resolution, rc.geometry)},
                                               device));
  const auto views = runner.kv();
  ATTUNE_ASSIGN_OR_RETURN(
      std::unique_ptr<kv::Transfer> transfer,
      kv::Transfer::create(
          {.geometry = rc.geometry,
           .device = {views.begin(), views.end()},
           .host = host->view(),
           .io = choice.io_backend == "kernel" ? kv::IoBackend::kKernel : kv::IoBackend::kDirect,
           .bytes_per_second = options.hicache_io_rate * 1e9,
           .host_part_bytes = host->part_bytes()},
          device, compute));
  runner.hold_copies(transfer.get(), choice.held_beside);
  CopiesConfig config{.geometry = rc.geometry,
                      .io_backend = choice.io_backend,
                      .mem_layout = choice.mem_layout,
                      .write_policy = choice.write_policy,
                      .storage_prefetch_policy = choice.storage_prefetch_policy};
  // Storage that hangs must not hang a request: waiting has an end with either policy.
  const double most = options.hicache_storage_prefetch_timeout_max;
  if (choice.storage_prefetch_policy == "wait_complete")
    config.prefetch_wait = PrefetchWait{most, 0, most};
  if (choice.storage_prefetch_policy == "timeout")
    config.prefetch_wait =
        PrefetchWait{options.hicache_storage_prefetch_timeout,
                     options.hicache_storage_prefetch_timeout_per_ki_token, most};
  return std::make_unique<Copies>(config, std::move(host), std::move(transfer), std::move(tier));
}

kv::TierPlan tier_plan(const resolve::Resolution& resolution, const kv::KvTier* tier,
                       const kv::KvGeometry& geometry) {
  kv::TierPlan plan;
  if (!resolution.hicache) return plan;
  const std::string& write = resolution.hicache->write_policy;
  plan.write = write == "write_back"                ? kv::WritePolicy::kWriteBack
               : write == "write_through_selective" ? kv::WritePolicy::kWriteThroughSelective
                                                    : kv::WritePolicy::kWriteThrough;
  plan.storage = tier != nullptr;
  if (!tier) return plan;
  plan.root_salt = tier->info().root_salt;
  plan.storage_pages = tier->info().budget_bytes / (geometry.page_bytes() + kv::kRecordOverhead);
  return plan;
}

sched::CacheConfig cache_config(const Options& options, const resolve::Resolution& resolution,
                                const kv::TierPlan& tiers, const kv::KvGeometry& geometry) {
  sched::CacheConfig c;
  if (!resolution.hicache) return c;
  c.enabled = true;
  c.write_back = tiers.write == kv::WritePolicy::kWriteBack;
  c.always_load = options.hicache_load_back == "always";
  c.storage = tiers.storage;
  const std::string& policy = resolution.hicache->storage_prefetch_policy;
  c.prefetch = policy == "wait_complete" ? sched::PrefetchPolicy::kWaitComplete
               : policy == "timeout"     ? sched::PrefetchPolicy::kTimeout
                                         : sched::PrefetchPolicy::kBestEffort;
  c.prefetch_threshold = options.hicache_storage_prefetch_threshold;
  c.page_bytes = geometry.page_bytes();
  return c;
}

}  // namespace attune::engine
