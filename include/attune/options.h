// Every setting of the engine and server, with its default. The table in src/base/settings_table.cc
// binds each member to its flag, environment name, JSON key and help text; nothing else parses
// settings. Where something is chosen unless it is set, a value means "not set": a setting is set
// when it has another, however that was written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace attune {

struct Options {
  // model
  std::string model = "build/models/smollm2-135m-instruct-q4_1.gguf";  // file or folder
  std::string served_model_name;                                       // empty: the model's own
  std::string load_format = "auto";  // auto | gguf | safetensors | dummy
  std::string tokenizer;             // empty: the model's; else a tokenizer.json, folder or GGUF
  std::string chat_template;         // empty: the model's; else a file
  int32_t context_length = 0;        // 0: the model's
  uint64_t random_seed = 0;          // dummy weights, and requests without a seed

  // device and types
  std::string device = "auto";          // auto | cpu | cuda
  std::string dtype = "auto";           // auto | float32 | bfloat16 | float16
  std::string kv_cache_dtype = "auto";  // auto | float32 | bfloat16 | float16 | fp8_e4m3 | fp8_e5m2
  std::string cpu_isa = "auto";         // auto | avx2 | avx512 | avx512_vnni | avx512_bf16
  std::string cuda_libraries;           // folders, separated by ':'; empty: the usual places
  int32_t threads = 0;                  // 0: one per core

  // attention
  std::string attention_backend;  // empty: chosen
  std::string prefill_attention_backend;
  std::string decode_attention_backend;
  bool no_attention_fallback = false;
  std::vector<std::string> assume;  // NAME:capability=on|off; on a device that is there: off alone
  int32_t page_size = 0;            // 0: chosen
  std::string speculative_attention_mode = "prefill";  // prefill | decode
  int32_t speculative_eagle_topk = 1;
  bool disable_chunked_prefix_cache = false;
  int64_t chunked_prefix_capacity = 0;  // tokens; 0: chosen
  int32_t mla_absorb_below = -1;        // tokens; -1: chosen
  int32_t num_splits = 0;               // 0: chosen
  std::string pack_gqa = "auto";        // auto | on | off
  std::string enable_pdl = "auto";      // auto | on | off
  bool disable_cuda_graph = false;
  int32_t cuda_graph_max_bs = 0;  // 0: chosen

  // memory and scheduling
  int64_t max_total_tokens = 0;  // 0: from mem_fraction_static
  double mem_fraction_static =
      0;  // of the memory free at start, weights and KV together; 0: chosen
  int32_t max_running_requests = 0;      // 0: chosen
  int32_t max_queued_requests = 8192;    // 0: no bound
  int32_t chunked_prefill_size = 0;      // tokens per step; 0: chosen; -1: whole prompts
  int32_t max_prefill_tokens = 16384;    // prompt tokens per step in all
  std::string schedule_policy = "fcfs";  // fcfs | lpm
  double schedule_conservativeness = 1.0;
  bool disable_radix_cache = false;
  std::string radix_eviction_policy = "lru";  // lru | lfu | slru | priority
  bool disable_overlap_schedule = false;
  bool enable_deterministic_inference = false;
  std::string record_plans;  // a file that gets every StepPlan

  // hierarchical cache
  bool enable_hierarchical_cache = false;
  std::string hicache_io_backend = "auto";  // auto | kernel | direct
  std::string hicache_mem_layout = "auto";  // auto | layer_first | page_first | page_first_direct
  double hicache_ratio = 0;                 // host pool over device pool; 0: chosen
  double hicache_size = 0;                  // host pool in GB (10^9 bytes); 0: from the ratio
  double hicache_io_rate = 0;               // GB/s in each direction; 0: no limit
  // write_through | write_through_selective | write_back
  std::string hicache_write_policy = "write_through";
  std::string hicache_load_back = "auto";        // auto | always
  std::string hicache_storage_backend = "none";  // none | file | redis
  std::string hicache_storage_dir;  // empty: $XDG_CACHE_HOME/attune/hicache or ~/.cache/...
  std::string hicache_storage_url;
  double hicache_storage_size = 0;  // in GB (10^9 bytes); 0: chosen
  // best_effort | wait_complete | timeout
  std::string hicache_storage_prefetch_policy = "timeout";
  int32_t hicache_storage_prefetch_threshold = 256;  // tokens
  // Seconds that `timeout` waits: a base, for each 1,024 tokens beside it, at most.
  double hicache_storage_prefetch_timeout = 2;
  double hicache_storage_prefetch_timeout_per_ki_token = 0.1;
  double hicache_storage_prefetch_timeout_max = 30;

  // server
  std::string host = "127.0.0.1";
  int32_t port = 30000;
  std::string api_key;
  std::vector<std::string> allowed_origins;  // CORS; empty: off
  int64_t max_request_bytes = 8 << 20;
  double request_timeout = 0;  // seconds from arrival to the last token; 0: none
  double read_timeout = 30;    // seconds for a client to send its request
  int32_t max_connections = 4096;
  std::string log_level = "info";  // debug | info | warning | error
  bool log_requests = false;

  bool operator==(const Options&) const = default;
};

}  // namespace attune
