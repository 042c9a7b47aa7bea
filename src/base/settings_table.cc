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
    {"model", &o.model, "Model", "PATH", "GGUF file, safetensors file or model folder", {.alias = "model-path"}},
    {"served-model-name", &o.served_model_name, "Model", "NAME", "name that /v1/models tells; empty: the model's own"},
    {"load-format", &o.load_format, "Model", "", "how to read the weights; dummy takes random ones and needs only a config.json", {.choices = {"auto", "gguf", "safetensors", "dummy"}}},
    {"tokenizer", &o.tokenizer, "Model", "PATH", "tokenizer.json, GGUF or folder with the vocabulary; empty: the model's own", {.alias = "tokenizer-path"}},
    {"chat-template", &o.chat_template, "Model", "FILE", "Jinja chat template; empty: the model's own"},
    {"context-length", &o.context_length, "Model", "TOKENS", "longest prompt and output together; 0: as the model was trained", {.min = 0}},
    {"random-seed", &o.random_seed, "Model", "N", "seed of dummy weights and of requests that give none"},

    {"device", &o.device, "Device", "", "where the model runs", {.choices = {"auto", "cpu", "cuda"}}},
    {"dtype", &o.dtype, "Device", "", "type of activations; auto: bfloat16 where the device computes in it, else float32", {.choices = {"auto", "float32", "bfloat16", "float16"}}},
    {"kv-cache-dtype", &o.kv_cache_dtype, "Device", "", "type of keys and values in the cache; auto: as the activations", {.choices = {"auto", "float32", "bfloat16", "float16"}}},
    {"cpu-isa", &o.cpu_isa, "Device", "", "highest CPU instruction level to use; auto: what the CPU has", {.choices = {"auto", "avx2", "avx512", "avx512_vnni", "avx512_bf16"}}},
    {"threads", &o.threads, "Device", "N", "CPU threads that compute; 0: one per core", {.min = 0, .max = 1024}},

    {"attention-backend", &o.attention_backend, "Attention", "NAME", "attention backend of both phases; empty: chosen (attune explain says which and why)"},
    {"prefill-attention-backend", &o.prefill_attention_backend, "Attention", "NAME", "attention backend of prompts; empty: chosen"},
    {"decode-attention-backend", &o.decode_attention_backend, "Attention", "NAME", "attention backend of generation; empty: chosen"},
    {"no-attention-fallback", &o.no_attention_fallback, "Attention", "", "refuse to start when the named backend cannot serve everything, instead of adding a fallback"},
    {"page-size", &o.page_size, "Attention", "TOKENS", "tokens per page of the KV cache; 0: chosen", {.min = 0, .max = 4096}},

    {"max-total-tokens", &o.max_total_tokens, "Memory and scheduling", "TOKENS", "size of the KV cache; 0: from --mem-fraction-static", {.min = 0, .max = 2147483648}},
    {"mem-fraction-static", &o.mem_fraction_static, "Memory and scheduling", "SHARE", "share of the memory that is free at start, for weights and KV cache together; 0: chosen", {.min = 0, .max = 1}},
    {"max-running-requests", &o.max_running_requests, "Memory and scheduling", "N", "most requests in one step; 0: chosen", {.min = 0, .max = 65536}},
    {"max-queued-requests", &o.max_queued_requests, "Memory and scheduling", "N", "most requests that wait, more get 429; 0: no bound", {.min = 0}},
    {"chunked-prefill-size", &o.chunked_prefill_size, "Memory and scheduling", "TOKENS", "most prompt tokens of one request per step; 0: chosen, -1: whole prompts", {.min = -1, .max = 16777216}},
    {"max-prefill-tokens", &o.max_prefill_tokens, "Memory and scheduling", "TOKENS", "most prompt tokens per step in all", {.min = 1, .max = 16777216}},
    {"schedule-policy", &o.schedule_policy, "Memory and scheduling", "", "who goes first: fcfs by arrival, lpm by longest cached prefix", {.choices = {"fcfs", "lpm"}}},
    {"schedule-conservativeness", &o.schedule_conservativeness, "Memory and scheduling", "X", "how much of a request's output is counted on at admission; more: fewer retractions", {.min = 0.01, .max = 100}},
    {"disable-radix-cache", &o.disable_radix_cache, "Memory and scheduling", "", "keep no prefixes"},
    {"disable-overlap-schedule", &o.disable_overlap_schedule, "Memory and scheduling", "", "plan a step only after the one before has ended"},
    {"enable-deterministic-inference", &o.enable_deterministic_inference, "Memory and scheduling", "", "same bits whatever else runs in the batch, and however a prompt is cut or cached"},
    {"record-plans", &o.record_plans, "Memory and scheduling", "FILE", "write every step's plan here, for replay"},

    {"host", &o.host, "Server", "ADDRESS", "address to listen on; 0.0.0.0 for every interface"},
    {"port", &o.port, "Server", "PORT", "port to listen on; 0: any free one", {.min = 0, .max = 65535}},
    {"api-key", &o.api_key, "Server", "KEY", "key that clients must send as a bearer token; empty: none", {.secret = true}},
    {"allowed-origins", &o.allowed_origins, "Server", "ORIGIN,...", "web origins that may call from a browser (CORS), * for all; empty: none"},
    {"max-request-bytes", &o.max_request_bytes, "Server", "BYTES", "largest request body", {.min = 1}},
    {"request-timeout", &o.request_timeout, "Server", "SECONDS", "longest life of a request, from arrival to its last token; 0: no limit", {.min = 0}},
    {"read-timeout", &o.read_timeout, "Server", "SECONDS", "longest time for a client to send its request; 0: no limit", {.min = 0}},
    {"max-connections", &o.max_connections, "Server", "N", "most open connections", {.min = 1}},
    {"log-level", &o.log_level, "Server", "", "least weight of a log line", {.choices = {"debug", "info", "warning", "error"}}},
    {"log-requests", &o.log_requests, "Server", "", "log each request"},
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
