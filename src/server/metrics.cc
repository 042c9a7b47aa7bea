#include "server/metrics.h"

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

namespace attune::server {

void Histogram::observe(double value, uint64_t times) {
  const auto at = std::lower_bound(kBounds.begin(), kBounds.end(), value);
  buckets_[static_cast<size_t>(at - kBounds.begin())] += times;
  count_ += times;
  sum_ += value * static_cast<double>(times);
}

namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;

class Writer {
 public:
  explicit Writer(std::string_view model_name)
      : model_("model_name=\"" + escape(model_name) + "\"") {}

  void header(const std::string& name, const char* type, const char* help) {
    out_ += "# HELP attune:" + name + " " + help + "\n# TYPE attune:" + name + " " + type + "\n";
  }
  void sample(const std::string& name, double value, const Labels& labels = {}) {
    out_ += "attune:" + name + "{" + model_;
    for (const auto& [key, text] : labels) out_ += "," + key + "=\"" + escape(text) + "\"";
    out_ += "} " + number(value) + "\n";
  }
  void gauge(const std::string& name, double value, const char* help) {
    header(name, "gauge", help);
    sample(name, value);
  }
  template <typename T>
  void counter(const std::string& name, T value, const char* help) {
    header(name, "counter", help);
    sample(name, static_cast<double>(value));
  }
  void histogram(const std::string& name, const Histogram& values, const char* help) {
    header(name, "histogram", help);
    uint64_t below = 0;
    for (size_t i = 0; i < Histogram::kBounds.size(); ++i) {
      below += values.bucket(i);
      sample(name + "_bucket", static_cast<double>(below), {{"le", number(Histogram::kBounds[i])}});
    }
    sample(name + "_bucket", static_cast<double>(values.count()), {{"le", "+Inf"}});
    sample(name + "_sum", values.sum());
    sample(name + "_count", static_cast<double>(values.count()));
  }
  std::string take() { return std::move(out_); }

 private:
  static std::string escape(std::string_view text) {
    std::string out;
    for (const char c : text) {
      if (c == '\\' || c == '"') out += '\\';
      out += c == '\n' ? ' ' : c;
    }
    return out;
  }
  static std::string number(double value) {
    char text[32];
    return {text, std::to_chars(text, text + sizeof text, value).ptr};
  }

  std::string out_, model_;
};

void write_engine(Writer& w, const EngineStats& stats) {
  const double used = double(stats.used_pages) * stats.page_size;
  const double total = double(stats.total_pages) * stats.page_size;
  w.gauge("num_running_reqs", stats.running_requests, "Requests in the running batch.");
  w.gauge("num_queue_reqs", stats.waiting_requests, "Requests that wait for admission.");
  w.gauge("num_used_tokens", used, "KV slots that running requests hold.");
  w.gauge("num_cached_tokens", double(stats.cached_pages) * stats.page_size,
          "KV slots that only the prefix cache holds.");
  w.gauge("max_total_num_tokens", total, "KV slots in all.");
  w.gauge("token_usage", total > 0 ? used / total : 0, "Share of the KV slots in use, 0 to 1.");
  w.gauge("gen_throughput", stats.generation_throughput,
          "Generated tokens per second over the last few seconds.");
  const double prompts = static_cast<double>(stats.prompt_tokens);
  w.gauge("cache_hit_rate", prompts > 0 ? static_cast<double>(stats.cached_tokens) / prompts : 0,
          "Share of all prompt tokens since start that were found in the cache, 0 to 1.");
  w.counter("num_retractions_total", stats.retractions, "Requests sent back to wait for memory.");
  w.counter("evicted_pages_total", stats.evicted_pages, "Pages that left the prefix cache.");
  w.counter("steps_total", stats.steps, "Steps of the engine's loop.");
  const double steps = static_cast<double>(stats.steps);
  w.gauge("host_seconds_per_step", steps > 0 ? stats.host_seconds / steps : 0,
          "Work of the engine's thread for a step: planning, launching, committing; mean since "
          "start.");
  w.counter("num_failed_requests_total", stats.requests_failed, "Requests that ended in an error.");
  w.header("attention_route_total", "counter",
           "Batches by phase, attention backend and path; fallback: not the phase's first choice.");
  for (const EngineStats::AttentionRoute& route : stats.attention_routes) {
    w.sample("attention_route_total", static_cast<double>(route.batches),
             {{"phase", route.phase},
              {"backend", route.backend},
              {"path", route.path},
              {"fallback", route.fallback ? "1" : "0"}});
  }
}

// Files and Redis are one tier to who looks at a dashboard.
std::string tier_label(const std::string& name) {
  return name == "device" || name == "host" ? name : "storage";
}

// Every tier has its label from the start, so that a dashboard can tell none from unknown.
void write_cached_tokens(Writer& w, uint64_t of_choices, const EngineStats& stats) {
  w.header("cached_tokens_total", "counter", "Prompt tokens found in a cache, by tier.");
  for (const std::string tier : {"device", "host", "storage"}) {
    uint64_t tokens = tier == "device" && stats.cache_tiers.empty() ? of_choices : 0;
    for (const CacheTierStats& t : stats.cache_tiers)
      if (tier_label(t.name) == tier) tokens += t.hit_tokens;
    w.sample("cached_tokens_total", static_cast<double>(tokens), {{"tier", tier}});
  }
}

double rate(uint64_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
}

struct TierMetric {
  const char *name, *type, *help;
  double (*value)(const CacheTierStats& tier);
};
using T = CacheTierStats;
constexpr TierMetric kTierMetrics[] = {
    {"cache_tier_pages", "gauge", "Pages that a tier holds.",
     [](const T& t) { return double(t.pages); }},
    {"cache_tier_bytes", "gauge", "Bytes that a tier holds.",
     [](const T& t) { return double(t.bytes); }},
    {"cache_tier_budget_bytes", "gauge", "Bytes that a tier may hold; 0: no bound.",
     [](const T& t) { return double(t.budget_bytes); }},
    {"cache_tier_queued_pages", "gauge", "Copies asked for and not done.",
     [](const T& t) { return double(t.queued_pages); }},
    {"cache_tier_read_bytes_per_second", "gauge",
     "Rate of the copies out of a tier to the one above; mean since start, while copies ran.",
     [](const T& t) { return rate(t.read_bytes, t.read_seconds); }},
    {"cache_tier_write_bytes_per_second", "gauge",
     "Rate of the copies into a tier; mean since start, while copies ran.",
     [](const T& t) { return rate(t.written_bytes, t.write_seconds); }},
    {"cache_tier_misses_total", "counter", "Lookups that ended in a tier without the next page.",
     [](const T& t) { return double(t.misses); }},
    {"cache_tier_evicted_pages_total", "counter", "Pages that left a tier for others.",
     [](const T& t) { return double(t.evicted_pages); }},
    {"cache_tier_read_bytes_total", "counter", "Bytes copied out of a tier to the one above.",
     [](const T& t) { return double(t.read_bytes); }},
    {"cache_tier_written_bytes_total", "counter", "Bytes copied into a tier.",
     [](const T& t) { return double(t.written_bytes); }},
    {"cache_tier_corrupt_pages_total", "counter",
     "Pages whose checksum or identity was wrong; each as good as a miss.",
     [](const T& t) { return double(t.corrupt_pages); }},
    {"cache_tier_failed_operations_total", "counter",
     "Reads and writes that failed or took too long; each as good as a miss.",
     [](const T& t) { return double(t.failed_operations); }},
};

void write_tiers(Writer& w, const std::vector<CacheTierStats>& tiers) {
  if (tiers.empty()) return;
  for (const TierMetric& metric : kTierMetrics) {
    w.header(metric.name, metric.type, metric.help);
    for (const CacheTierStats& tier : tiers)
      w.sample(metric.name, metric.value(tier), {{"tier", tier_label(tier.name)}});
  }
}

void write_hicache(Writer& w, const HiCacheStats& h) {
  if (!h.enabled) return;
  w.gauge("hicache_host_ready", h.host_ready, "Part of the host pool that is in use, 0 to 1.");
  w.header("hicache_load_decisions_total", "counter",
           "Matches below the device, by what was the faster way: load, or compute again.");
  w.sample("hicache_load_decisions_total", double(h.loads), {{"decision", "load"}});
  w.sample("hicache_load_decisions_total", double(h.recomputes), {{"decision", "recompute"}});
  w.header("hicache_load_pages_total", "counter", "Pages of these decisions.");
  w.sample("hicache_load_pages_total", double(h.loaded_pages), {{"decision", "load"}});
  w.sample("hicache_load_pages_total", double(h.recomputed_pages), {{"decision", "recompute"}});
  w.counter("hicache_failed_loads_total", h.failed_loads,
            "Loads that failed; their pages were computed again.");
  w.counter("hicache_prefetches_total", h.prefetches, "Prompts that storage was asked for.");
  w.counter("hicache_prefetched_pages_total", h.prefetched_pages, "Pages that came from storage.");
  w.counter("hicache_prefetches_cut_total", h.prefetches_cut,
            "Prefetches that the policy ended before their last page.");
  w.gauge("hicache_prefetches_in_flight", double(h.prefetches_in_flight),
          "Prefetches that have not ended.");
  w.counter("hicache_held_steps_total", h.held_steps, "Steps beside which copies had to wait.");
}

}  // namespace

std::string metrics_text(const Metrics& metrics, const EngineStats& stats, size_t connections,
                         std::string_view model_name) {
  Writer w(model_name);
  write_engine(w, stats);
  w.gauge("http_connections", static_cast<double>(connections), "Open HTTP connections.");
  w.counter("num_requests_total", metrics.requests, "Generation requests that were understood.");
  w.counter("num_aborted_requests_total", metrics.aborted,
            "Requests given up by their client, a time limit or a shutdown.");
  w.counter("num_refused_requests_total", metrics.refused, "Requests answered with an error.");
  w.counter("prompt_tokens_total", metrics.prompt_tokens, "Prompt tokens of finished choices.");
  w.counter("generation_tokens_total", metrics.generation_tokens,
            "Generated tokens of finished choices.");
  write_cached_tokens(w, metrics.cached_tokens, stats);
  write_tiers(w, stats.cache_tiers);
  write_hicache(w, stats.hicache);
  w.histogram("time_to_first_token_seconds", metrics.time_to_first_token,
              "From a request's arrival to its first token, queueing included.");
  w.histogram("inter_token_latency_seconds", metrics.inter_token_latency,
              "Between two tokens of one choice.");
  w.histogram("e2e_request_latency_seconds", metrics.e2e_latency,
              "From a request's arrival to the end of its answer.");
  return w.take();
}

}  // namespace attune::server
