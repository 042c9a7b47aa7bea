// The settings table and the page generated from it.
#include "base/log.h"
#include "base/settings.h"

namespace attune::base {
namespace {

// Every brace-initialisable member counts: an Options member without a row below does not compile.
struct AnyType {
  template <typename T>
  operator T() const;  // NOLINT: implicit by design, never defined
};
template <typename T, typename... Args>
consteval size_t count_members() {
  if constexpr (requires { T{Args{}..., AnyType{}}; }) {
    return count_members<T, Args..., AnyType>();
  } else {
    return sizeof...(Args);
  }
}

}  // namespace

std::vector<Flag> option_flags(Options& o) {
  // clang-format off
  Flag rows[] = {
    {"model", &o.model, "Model", "PATH", "GGUF file, folder that has exactly one, or Hugging Face folder (config.json, *.safetensors, tokenizer.json)", {.alias = "model-path"}},
    {"served-model-name", &o.served_model_name, "Model", "NAME", "name that /v1/models tells; empty: that of the file or folder"},
    {"load-format", &o.load_format, "Model", "", "how to read the weights; dummy makes random ones for a config.json (text also needs a tokenizer beside it, or --tokenizer)", {.choices = {"auto", "gguf", "safetensors", "dummy"}}},
    {"tokenizer", &o.tokenizer, "Model", "PATH", "tokenizer.json, GGUF or folder with the vocabulary; empty: the model's own", {.alias = "tokenizer-path"}},
    {"chat-template", &o.chat_template, "Model", "FILE", "Jinja chat template; empty: the model's own"},
    {"context-length", &o.context_length, "Model", "TOKENS", "longest prompt and output together; 0: as the model was trained", {.min = 0}},
    {"random-seed", &o.random_seed, "Model", "N", "seed of dummy weights and of requests that give none"},

    {"device", &o.device, "Device", "", "where the model runs", {.choices = {"auto", "cpu", "cuda"}}},
    {"dtype", &o.dtype, "Device", "", "type of activations; auto: bfloat16 where it is faster, else float32; no device computes in float16 yet, it is refused", {.choices = {"auto", "float32", "bfloat16", "float16"}}},
    {"kv-cache-dtype", &o.kv_cache_dtype, "Device", "", "type of keys and values in the cache; auto: as the activations", {.choices = {"auto", "float32", "bfloat16", "float16", "fp8_e4m3", "fp8_e5m2"}}},
    {"cpu-isa", &o.cpu_isa, "Device", "", "highest CPU instruction level to use; auto: what the CPU has", {.choices = {"auto", "avx2", "avx512", "avx512_vnni", "avx512_bf16"}}},
    {"cuda-libraries", &o.cuda_libraries, "Device", "FOLDER:...", "folders searched first for cuBLASLt and cuDNN; empty: the system's, the CUDA toolkit's and Python packages' own"},
    {"threads", &o.threads, "Device", "N", "CPU threads that compute; 0: one per core", {.min = 0, .max = 256}},

    {"attention-backend", &o.attention_backend, "Attention", "NAME", "attention backend of both phases; empty: chosen (attune explain says which and why)"},
    {"prefill-attention-backend", &o.prefill_attention_backend, "Attention", "NAME", "attention backend of prompts; empty: chosen"},
    {"decode-attention-backend", &o.decode_attention_backend, "Attention", "NAME", "attention backend of generation; empty: chosen"},
    {"no-attention-fallback", &o.no_attention_fallback, "Attention", "", "a named backend gets no other behind it: what it cannot serve is an error"},
    {"assume", &o.assume, "Attention", "NAME:CAPABILITY=on|off,...", "what a backend is taken to declare: tolerates-host-copies, graph-safe, batch-invariant, tree-mask, absorbed-extend, ...; on a device that is there a capability can be given up (off), not claimed"},
    {"page-size", &o.page_size, "Attention", "TOKENS", "tokens per page of the KV cache, a power of two; 0: chosen", {.min = 0, .max = 4096}},
    {"speculative-attention-mode", &o.speculative_attention_mode, "Attention", "", "phase whose backends verify draft tokens", {.choices = {"prefill", "decode"}}},
    {"speculative-eagle-topk", &o.speculative_eagle_topk, "Attention", "N", "branches of a drafter's token tree; more than 1 needs a backend with tree masks", {.min = 1, .max = 64}},
    {"disable-chunked-prefix-cache", &o.disable_chunked_prefix_cache, "Attention", "", "MLA: never up-project a cached prefix; prompts that have one are absorbed"},
    {"chunked-prefix-capacity", &o.chunked_prefix_capacity, "Attention", "TOKENS", "MLA: keys that are up-projected at once; 0: chosen", {.min = 0, .max = 2147483647}},
    {"mla-absorb-below", &o.mla_absorb_below, "Attention", "TOKENS", "MLA: a prompt with a cached prefix and fewer new tokens than this is absorbed; -1: chosen", {.min = -1, .max = 2147483647}},
    {"num-splits", &o.num_splits, "Attention", "N", "parts that a sequence's keys are cut into; 0: chosen", {.min = 0, .max = 256}},
    {"pack-gqa", &o.pack_gqa, "Attention", "", "whether query heads of one KV head share a tile", {.choices = {"auto", "on", "off"}}},
    {"enable-pdl", &o.enable_pdl, "Attention", "", "programmatic dependent launch of GPU kernels", {.choices = {"auto", "on", "off"}}},
    {"disable-cuda-graph", &o.disable_cuda_graph, "Attention", "", "launch each decode kernel instead of replaying a graph"},
    {"cuda-graph-max-bs", &o.cuda_graph_max_bs, "Attention", "N", "largest decode batch that is captured in a graph; 0: chosen", {.min = 0, .max = 65536}},

    {"max-total-tokens", &o.max_total_tokens, "Memory and scheduling", "TOKENS", "size of the KV cache; 0: from --mem-fraction-static", {.min = 0, .max = 2147483647}},
    {"mem-fraction-static", &o.mem_fraction_static, "Memory and scheduling", "SHARE", "share of the memory that is free at start, for weights and KV cache together; 0: chosen", {.min = 0, .max = 1}},
    {"max-running-requests", &o.max_running_requests, "Memory and scheduling", "N", "most requests in one step; 0: chosen", {.min = 0, .max = 65536}},
    {"max-queued-requests", &o.max_queued_requests, "Memory and scheduling", "N", "most requests that wait, more get 429; 0: no bound", {.min = 0}},
    {"chunked-prefill-size", &o.chunked_prefill_size, "Memory and scheduling", "TOKENS", "most prompt tokens of one request per step; 0: chosen, -1: whole prompts", {.min = -1, .max = 16777216}},
    {"max-prefill-tokens", &o.max_prefill_tokens, "Memory and scheduling", "TOKENS", "most prompt tokens per step in all", {.min = 1, .max = 16777216}},
    {"schedule-policy", &o.schedule_policy, "Memory and scheduling", "", "who goes first: fcfs by arrival, lpm by longest cached prefix", {.choices = {"fcfs", "lpm"}}},
    {"schedule-conservativeness", &o.schedule_conservativeness, "Memory and scheduling", "X", "how much of a request's output is counted on at admission; more: fewer retractions", {.min = 0.01, .max = 100}},
    {"disable-radix-cache", &o.disable_radix_cache, "Memory and scheduling", "", "keep no prefixes"},
    {"radix-eviction-policy", &o.radix_eviction_policy, "Memory and scheduling", "", "which kept page goes first, in device and host memory: lru the least recently used, lfu the least often used, slru those used once, priority those of requests with the lowest priority", {.choices = {"lru", "lfu", "slru", "priority"}}},
    {"disable-overlap-schedule", &o.disable_overlap_schedule, "Memory and scheduling", "", "plan a step only after the one before has ended"},
    {"enable-deterministic-inference", &o.enable_deterministic_inference, "Memory and scheduling", "", "same bits whatever else runs in the batch, and however a prompt is cut or cached"},
    {"record-plans", &o.record_plans, "Memory and scheduling", "FILE", "write every step's plan here, for replay"},

    {"enable-hierarchical-cache", &o.enable_hierarchical_cache, "Hierarchical cache", "", "keep pages that leave the device in host memory, and in storage below it"},
    {"hicache-io-backend", &o.hicache_io_backend, "Hierarchical cache", "", "who copies pages between device and host: our kernel, or the copy engine (direct)", {.choices = {"auto", "kernel", "direct"}}},
    {"hicache-mem-layout", &o.hicache_mem_layout, "Hierarchical cache", "", "order of the host pool", {.choices = {"auto", "layer_first", "page_first", "page_first_direct"}}},
    {"hicache-ratio", &o.hicache_ratio, "Hierarchical cache", "X", "size of the host pool over that of the device pool; 0: the largest that fits, 2 at most", {.min = 0, .max = 1000}},
    {"hicache-size", &o.hicache_size, "Hierarchical cache", "GB", "size of the host pool in 10^9 bytes; 0: by the ratio", {.min = 0, .max = 1000000}},
    {"hicache-io-rate", &o.hicache_io_rate, "Hierarchical cache", "GB/S", "most bytes per second in each direction, 0.01 at least; 0: no limit", {.min = 0, .max = 1000000}},
    {"hicache-write-policy", &o.hicache_write_policy, "Hierarchical cache", "", "when pages are written down: at once, at once if they were hit again, or when they leave", {.choices = {"write_through", "write_through_selective", "write_back"}}},
    {"hicache-load-back", &o.hicache_load_back, "Hierarchical cache", "", "whether pages in host memory are loaded when a request wants them: where that is faster than computing them again, by measured rates, or always", {.choices = {"auto", "always"}}},
    {"hicache-storage-backend", &o.hicache_storage_backend, "Hierarchical cache", "", "the tier below host memory", {.choices = {"none", "file", "redis"}}},
    {"hicache-storage-dir", &o.hicache_storage_dir, "Hierarchical cache", "FOLDER", "where the file tier lies; empty: $XDG_CACHE_HOME/attune/hicache, else ~/.cache/attune/hicache"},
    {"hicache-storage-url", &o.hicache_storage_url, "Hierarchical cache", "URL", "the Redis server", {.secret = true}},
    {"hicache-storage-size", &o.hicache_storage_size, "Hierarchical cache", "GB", "most that the storage tier holds, in 10^9 bytes; 0: files a tenth of the disk, and at most half of what is free on it, Redis as much as it takes", {.min = 0, .max = 1000000}},
    {"hicache-storage-prefetch-policy", &o.hicache_storage_prefetch_policy, "Hierarchical cache", "", "how long a request waits for pages from storage: not at all, for all of them, or up to a limit", {.choices = {"best_effort", "wait_complete", "timeout"}}},
    {"hicache-storage-prefetch-threshold", &o.hicache_storage_prefetch_threshold, "Hierarchical cache", "TOKENS", "least part of a prompt for which storage is asked", {.min = 0, .max = 1073741824}},
    {"hicache-storage-prefetch-timeout", &o.hicache_storage_prefetch_timeout, "Hierarchical cache", "SECONDS", "prefetch policy timeout: a request waits for pages from storage this long,", {.min = 0, .max = 3600}},
    {"hicache-storage-prefetch-timeout-per-ki-token", &o.hicache_storage_prefetch_timeout_per_ki_token, "Hierarchical cache", "SECONDS", "this much longer for each 1,024 tokens that it waits for,", {.min = 0, .max = 3600}},
    {"hicache-storage-prefetch-timeout-max", &o.hicache_storage_prefetch_timeout_max, "Hierarchical cache", "SECONDS", "but no longer than this", {.min = 0, .max = 86400}},

    {"host", &o.host, "Server", "ADDRESS", "address to listen on; 0.0.0.0 for every interface"},
    {"port", &o.port, "Server", "PORT", "port to listen on; 0: any free one", {.min = 0, .max = 65535}},
    {"api-key", &o.api_key, "Server", "KEY", "key that clients must send as a bearer token; empty: none", {.secret = true}},
    {"allowed-origins", &o.allowed_origins, "Server", "ORIGIN,...", "web origins that may call from a browser (CORS), * for all; empty: none"},
    {"max-request-bytes", &o.max_request_bytes, "Server", "BYTES", "largest request body", {.min = 1}},
    {"request-timeout", &o.request_timeout, "Server", "SECONDS", "longest life of a request, from arrival to its last token; 0: no limit", {.min = 0}},
    {"read-timeout", &o.read_timeout, "Server", "SECONDS", "longest time for a client to send its request; 0: no limit", {.min = 0}},
    {"max-connections", &o.max_connections, "Server", "N", "most open connections", {.min = 1}},
    {"log-level", &o.log_level, "Logging", "", "least weight of a log line", {.choices = {"debug", "info", "warning", "error"}}},
    {"log-requests", &o.log_requests, "Logging", "", "log each request"},
  };
  // clang-format on
  static_assert(std::size(rows) == count_members<Options>(), "every member of Options has one row");
  return {std::begin(rows), std::end(rows)};
}

std::string settings_markdown() {
  Options defaults;
  std::string out =
      "# Settings\n\n"
      "Generated from the settings table by `attune settings-doc`; do not edit.\n\n"
      "Each setting can be given as a flag (`--page-size 16`), an environment variable "
      "(`ATTUNE_PAGE_SIZE=16`)\n"
      "or a key of a JSON file named by `--config` (`{\"page_size\": 16}`). A flag wins over the "
      "environment,\n"
      "which wins over the file. Switches: `--flag`, `--no-flag`, `--flag=true|false`. `-` and `_` "
      "are the same in\n"
      "flags. `/get_server_info` tells each value and where it came from.\n";
  std::string_view group;
  for (const Flag& flag : option_flags(defaults)) {
    if (flag.group != group) {
      group = flag.group;
      out += cat("\n## ", group,
                 "\n\n| flag | environment | JSON key | default | values | meaning "
                 "|\n|---|---|---|---|---|---|\n");
    }
    std::string name = "`--" + std::string(flag.name) + "`", text = flag_text(flag);
    if (!flag.rule.alias.empty()) name += cat(", `--", flag.rule.alias, "`");
    out += cat("| ", name, " | `", environment_name(flag.name), "` | `", json_key(flag.name),
               "` | ", text.empty() ? "" : "`" + text + "`", " | ", flag_values(flag), " | ",
               flag.help, " |\n");
  }
  return out;
}

}  // namespace attune::base
