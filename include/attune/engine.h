// The engine as the server, the CLI and an embedding program see it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attune/options.h"
#include "attune/request.h"
#include "attune/status.h"

namespace attune {

// What a client needs to know of the loaded model.
struct ModelInfo {
  std::string path;
  std::string name;          // general.name, or the folder's name
  std::string architecture;  // "llama", "qwen3", ...
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;  // tokens, prompt and output together
  std::vector<TokenId> eos_token_ids;
  int64_t parameters = 0;
  std::string weight_format;  // "q4_1", "bfloat16", the most frequent by bytes
};

// One tier of the KV cache; counters since start.
struct CacheTierStats {
  std::string name;                     // "device", "host", "file", "redis"
  int64_t pages = 0, total_pages = 0;   // held; room for (0: bounded by bytes or not at all)
  int64_t bytes = 0, budget_bytes = 0;  // held; room for (0: no bound)
  uint64_t hit_tokens = 0;              // prompt tokens found here and in no tier above
  uint64_t misses = 0;                  // lookups that ended here without the next page
  uint64_t evicted_pages = 0;
  uint64_t read_bytes = 0, written_bytes = 0;         // out of it to the tier above, into it
  double read_seconds = 0, write_seconds = 0;         // of these copies
  uint64_t corrupt_pages = 0, failed_operations = 0;  // each as good as a miss
  int64_t queued_pages = 0;                           // copies asked for and not done
};

// The hierarchical cache, with --enable-hierarchical-cache.
struct HiCacheStats {
  bool enabled = false;
  std::string io_backend, mem_layout, write_policy, storage_prefetch_policy;
  double host_ready = 0;  // part of the host pool that is pinned and in use
  // Matched pages below the device: loaded, or computed again since that was the faster way.
  uint64_t loads = 0, loaded_pages = 0, recomputes = 0, recomputed_pages = 0, failed_loads = 0;
  uint64_t prefetches = 0, prefetched_pages = 0, prefetches_cut = 0;  // cut: by the policy
  int64_t prefetches_in_flight = 0;
  uint64_t held_steps = 0;  // steps beside which copies had to wait (H5)
};

// A reading of the engine's counters; all since start unless a unit says otherwise.
struct EngineStats {
  int32_t running_requests = 0, waiting_requests = 0;
  int32_t total_pages = 0, used_pages = 0,
          cached_pages = 0;  // cached: held only by the prefix index
  int32_t page_size = 0;
  uint64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  uint64_t requests_finished = 0, requests_aborted = 0, requests_failed = 0, retractions = 0,
           steps = 0;
  uint64_t evicted_pages = 0;
  double generation_throughput = 0;  // tokens/s over the last few seconds
  double host_seconds = 0;           // of the engine's thread at work
  struct AttentionRoute {
    std::string phase, backend, path;  // "decode", "cpu", "paged"
    uint64_t batches = 0;              // times chosen
    bool fallback = false;             // not the phase's first candidate
  };
  std::vector<AttentionRoute> attention_routes;
  HiCacheStats hicache;
  std::vector<CacheTierStats> cache_tiers;  // the device first
  // Why no step can run any more (the device is lost to this process); empty: they can.
  std::string device_failure;
};

// Thread-safe. Destruction aborts what still runs and joins the engine's thread.
class Engine {
 public:
  // Loads the model and starts the step loop.
  static Result<std::unique_ptr<Engine>> create(const Options& options);
  virtual ~Engine() = default;

  // Checks the request against the model and the KV budget and queues it. The sink hears at least
  // one event, the last of which has a finish reason. Errors: invalid_argument (empty prompt, an id
  // out of range, a parameter outside its range, prompt longer than the model or the KV pool can
  // hold), resource_exhausted (queue full), unavailable (draining).
  virtual Result<RequestId> submit(Request request, std::shared_ptr<TokenSink> sink) = 0;
  // The request ends with kAbort at the next step boundary, in whatever state it is; unknown ids
  // are ignored.
  virtual void abort(RequestId id) = 0;
  // Frees every cached prefix page of device and host. unavailable while requests run or wait.
  virtual Status flush_cache() = 0;
  // Drops every page of the storage tier; waits. invalid_argument where there is none.
  virtual Status clear_storage() = 0;
  // No new requests; returns when those inside are done or the deadline has passed (then aborts
  // them).
  virtual void drain(double seconds) = 0;

  virtual const ModelInfo& model() const = 0;
  virtual EngineStats stats() const = 0;
  // The resolution (backends per phase, page size, dtypes, each with its reason) as JSON text and
  // as a table.
  virtual std::string resolution_json() const = 0;
  virtual std::string resolution_table() const = 0;
};

}  // namespace attune
