// From Options to everything that a running engine owns: device, resolution, weights, pools,
// scheduler.
#pragma once

#include <fstream>
#include <memory>
#include <string>

#include "attention/route.h"
#include "attune/engine.h"
#include "device/device.h"
#include "engine/copies.h"
#include "engine/model_runner.h"
#include "formats/weight_source.h"
#include "kv/index/prefix_index.h"
#include "kv/pool/page_pool.h"
#include "sched/scheduler.h"

namespace attune::engine {

// In the order of construction; destroyed the other way round.
struct LoadedEngine {
  std::unique_ptr<device::Device> device;
  std::unique_ptr<device::Stream> stream;
  formats::LoadedModel model;  // holds the map that the embedding is read from
  std::unique_ptr<attention::Router> router;
  std::unique_ptr<Runner> runner;
  std::unique_ptr<Copies> copies;  // null: no hierarchical cache
  std::unique_ptr<kv::PagePool> pool;
  std::unique_ptr<kv::PrefixIndex> index;  // null: --disable-radix-cache
  std::unique_ptr<sched::Scheduler> scheduler;
  int64_t page_bytes = 0;
  ModelInfo info;
  std::string resolution_json, resolution_table;
};

Result<LoadedEngine> load_engine(const Options& options);

// The step loop over it. Each StepPlan goes to `record` when that is open.
std::unique_ptr<Engine> start_engine(LoadedEngine loaded, std::ofstream record);

}  // namespace attune::engine
