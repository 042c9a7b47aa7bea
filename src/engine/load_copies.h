// Host pool, transfers and storage of a loaded engine.
#pragma once

#include <memory>
#include <string>

#include "attune/options.h"
#include "device/device.h"
#include "engine/copies.h"
#include "engine/runner.h"
#include "kv/index/prefix_index.h"
#include "resolve/resolve.h"
#include "sched/cache_work.h"

namespace attune::engine {

// What a stored page's bytes mean, for every process alike: all but tokens, adapter and salt.
// `fingerprint`: the model's content.
kv::CacheIdentity cache_identity(const Options& options, const resolve::Resolution& resolution,
                                 const RunnerConfig& rc, const device::DeviceInfo& device,
                                 const std::string& fingerprint);

// Null without --hicache-storage-backend. Errors: make_tier's, and invalid_argument
// where the budget holds no page.
Result<std::unique_ptr<kv::KvTier>> open_storage(const Options& options,
                                                 const resolve::Resolution& resolution,
                                                 const kv::CacheIdentity& identity,
                                                 int64_t page_bytes);
// REQUIRES: resolution.hicache. Errors: resource_exhausted, unsupported.
Result<std::unique_ptr<Copies>> make_copies(const Options& options,
                                            const resolve::Resolution& resolution,
                                            const RunnerConfig& rc, Runner& runner,
                                            std::unique_ptr<kv::KvTier> tier,
                                            device::Device& device, device::Stream& compute);
int32_t host_slots(const resolve::Resolution& resolution, const kv::KvGeometry& geometry);
// What there is besides the device; `tier` may be null.
kv::TierPlan tier_plan(const resolve::Resolution& resolution, const kv::KvTier* tier,
                       const kv::KvGeometry& geometry);
sched::CacheConfig cache_config(const Options& options, const resolve::Resolution& resolution,
                                const kv::TierPlan& tiers, const kv::KvGeometry& geometry);

}  // namespace attune::engine
