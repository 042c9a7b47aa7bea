#include "server/api_error.h"
#include "server/embedded.h"
#include "server/routes.h"
#include "text/tokenizer.h"

namespace attune::server {

using formats::Json;

namespace {

constexpr double kProbeSeconds = 20;

void respond_json(Exchange& exchange, const Json& json, int status = 200) {
  exchange.respond({status, "application/json", json.dump()});
}

const char* stage_name(Stage stage) {
  switch (stage) {
    case Stage::kLoading:
      return "loading";
    case Stage::kReady:
      return "ready";
    case Stage::kDraining:
      break;
  }
  return "draining";
}

Json model_json(const Context& context) {
  Json json;
  json.set("id", context.model_name());
  json.set("object", "model");
  json.set("created", int64_t{context.started});
  json.set("owned_by", "attune");
  json.set("root", context.model.engine->model().path);
  json.set("max_model_len", context.token_limit);
  return json;
}

Json tier_json(const CacheTierStats& tier) {
  Json json;
  json.set("name", tier.name);
  json.set("pages", tier.pages);
  json.set("total_pages", tier.total_pages);
  json.set("bytes", tier.bytes);
  json.set("budget_bytes", tier.budget_bytes);
  json.set("hit_tokens", tier.hit_tokens);
  json.set("misses", tier.misses);
  json.set("evicted_pages", tier.evicted_pages);
  json.set("read_bytes", tier.read_bytes);
  json.set("written_bytes", tier.written_bytes);
  json.set("read_seconds", tier.read_seconds);
  json.set("write_seconds", tier.write_seconds);
  json.set("corrupt_pages", tier.corrupt_pages);
  json.set("failed_operations", tier.failed_operations);
  json.set("queued_pages", tier.queued_pages);
  return json;
}

Json hicache_json(const HiCacheStats& h) {
  Json json;
  json.set("enabled", h.enabled);
  if (!h.enabled) return json;
  json.set("io_backend", h.io_backend);
  json.set("mem_layout", h.mem_layout);
  json.set("write_policy", h.write_policy);
  json.set("storage_prefetch_policy", h.storage_prefetch_policy);
  json.set("host_ready", h.host_ready);
  json.set("loads", h.loads);
  json.set("loaded_pages", h.loaded_pages);
  json.set("recomputes", h.recomputes);
  json.set("recomputed_pages", h.recomputed_pages);
  json.set("failed_loads", h.failed_loads);
  json.set("prefetches", h.prefetches);
  json.set("prefetched_pages", h.prefetched_pages);
  json.set("prefetches_cut", h.prefetches_cut);
  json.set("prefetches_in_flight", h.prefetches_in_flight);
  json.set("held_steps", h.held_steps);
  return json;
}

Json stats_json(const EngineStats& stats) {
  Json json, routes = Json::Object{};
  json.set("running_requests", stats.running_requests);
  json.set("waiting_requests", stats.waiting_requests);
  json.set("total_pages", stats.total_pages);
  json.set("used_pages", stats.used_pages);
  json.set("cached_pages", stats.cached_pages);
  json.set("page_size", stats.page_size);
  json.set("prompt_tokens", stats.prompt_tokens);
  json.set("cached_tokens", stats.cached_tokens);
  json.set("generated_tokens", stats.generated_tokens);
  json.set("requests_finished", stats.requests_finished);
  json.set("requests_aborted", stats.requests_aborted);
  json.set("requests_failed", stats.requests_failed);
  json.set("retractions", stats.retractions);
  json.set("evicted_pages", stats.evicted_pages);
  json.set("steps", stats.steps);
  json.set("host_seconds", stats.host_seconds);
  json.set("generation_throughput", stats.generation_throughput);
  for (const EngineStats::AttentionRoute& route : stats.attention_routes) {
    const std::string name = route.phase + "/" + route.backend + "/" + route.path;
    const Json* others = routes.find(name);  // as a fallback, or as the first choice
    routes.set(name, route.batches + (others ? static_cast<uint64_t>(others->as_int()) : 0));
  }
  json.set("attention_routes", std::move(routes));
  json.set("hicache", hicache_json(stats.hicache));
  Json tiers{Json::Array{}};
  for (const CacheTierStats& tier : stats.cache_tiers) tiers.push(tier_json(tier));
  json.set("cache_tiers", std::move(tiers));
  return json;
}

// JSON text of our own making; null if there is none.
Json embedded_json(const std::string& text) {
  auto json = formats::parse_json(text);
  return json.ok() ? std::move(*json) : Json();
}

}  // namespace

void health(Context& context, HttpRequest, ExchangePtr exchange) {
  const bool ready = context.stage == Stage::kReady;
  const std::string failure = ready ? context.model.engine->stats().device_failure : "";
  Json json;
  json.set("status", failure.empty() ? stage_name(context.stage) : "failed");
  if (!failure.empty()) json.set("error", failure);
  respond_json(*exchange, json, ready && failure.empty() ? 200 : 503);
}

void health_generate(Context& context, HttpRequest, ExchangePtr exchange) {
  struct Probe {
    std::shared_ptr<Completion> completion;
    Loop::Timer timeout;
  };
  auto probe = std::make_shared<Probe>();
  // The exchange's callback owns the probe until the answer is out.
  exchange->on_close([probe] { probe->completion.reset(); });
  const std::weak_ptr<Probe> weak = probe;
  const auto answer = [weak, exchange](int status, const std::string& message) {
    const auto alive = weak.lock();
    if (!alive) return;
    if (status == 200) {
      Json json;
      json.set("status", "ready");
      respond_json(*exchange, json);
    } else {
      exchange->respond(to_response({status, message, "", "unhealthy"}));
    }
    alive->timeout.reset();
  };
  CompletionSpec spec;
  PromptSpec prompt;
  prompt.ids = {context.model.tokenizer->bos_id().value_or(0)};
  prompt.sampling.temperature = 0;
  prompt.sampling.max_new_tokens = 1;
  spec.prompts.push_back(std::move(prompt));
  spec.token_limit = context.token_limit;
  spec.label = context.make_id("health-");
  auto started = Completion::start(*context.model.engine, *context.model.tokenizer, std::move(spec),
                                   *context.events, [answer](const ChoiceDelta& delta) {
                                     if (delta.finish == FinishReason::kNone) return;
                                     const bool good = delta.finish == FinishReason::kStop ||
                                                       delta.finish == FinishReason::kLength;
                                     answer(good ? 200 : 503, "generation failed: " + delta.error);
                                   });
  if (!started.ok()) return answer(503, started.status().message());
  probe->completion = std::move(*started);
  probe->timeout = context.loop->after(kProbeSeconds, [answer] {
    answer(503, "no token came within " + std::to_string(int(kProbeSeconds)) + " s");
  });
}

void list_models(Context& context, HttpRequest, ExchangePtr exchange) {
  Json json;
  json.set("object", "list");
  json.set("data", Json::Array{model_json(context)});
  respond_json(*exchange, json);
}

void show_model(Context& context, HttpRequest request, ExchangePtr exchange) {
  const std::string name = request.path.substr(std::string_view("/v1/models/").size());
  if (name.empty()) return list_models(context, std::move(request), std::move(exchange));
  // "default" is what the examples ask for; every name is answered by the one model.
  if (name != context.model_name() && name != "default") {
    return exchange->respond(to_response(
        {404, "the model '" + name + "' is not served here; '" + context.model_name() + "' is",
         "model", "model_not_found"}));
  }
  respond_json(*exchange, model_json(context));
}

void model_info(Context& context, HttpRequest, ExchangePtr exchange) {
  const ModelInfo& model = context.model.engine->model();
  Json json;
  json.set("model_path", model.path);
  json.set("tokenizer_path",
           context.model.tokenizer_path.empty() ? model.path : context.model.tokenizer_path);
  json.set("is_generation", true);
  json.set("preferred_sampling_params", nullptr);
  json.set("weight_version", "default");
  json.set("served_model_name", context.model_name());
  json.set("architecture", model.architecture);
  json.set("vocab_size", model.vocab_size);
  json.set("max_model_len", context.token_limit);
  json.set("eos_token_ids", Json::Array(model.eos_token_ids.begin(), model.eos_token_ids.end()));
  json.set("parameters", model.parameters);
  json.set("weight_format", model.weight_format);
  json.set("tokenizer", context.model.tokenizer->describe());
  json.set("has_chat_template", context.model.chat_template != nullptr);
  respond_json(*exchange, json);
}

void server_info(Context& context, HttpRequest, ExchangePtr exchange) {
  Json json;
  json.set("version", kVersion);
  json.set("status", stage_name(context.stage));
  json.set("model", model_json(context));
  json.set("uptime_seconds", int64_t{std::time(nullptr) - context.started});
  const EngineStats stats = context.model.engine->stats();
  json.set("max_total_num_tokens", int64_t{stats.total_pages} * stats.page_size);
  json.set("settings", embedded_json(context.model.settings_json));
  json.set("resolution", embedded_json(context.model.engine->resolution_json()));
  json.set("stats", stats_json(stats));
  respond_json(*exchange, json);
}

void show_version(Context&, HttpRequest, ExchangePtr exchange) {
  Json json;
  json.set("version", kVersion);
  respond_json(*exchange, json);
}

namespace {

// The engine answers between two steps, so the loop must not wait for it. `not_now`: the HTTP
// status of kUnavailable.
void have_engine_do(Context& context, ExchangePtr exchange, Status (Engine::*what)(), int not_now) {
  auto done = std::make_shared<Status>();
  const auto answer = [exchange = std::move(exchange), done, not_now](const Status& worked) {
    const Status& status = worked.ok() ? *done : worked;
    if (status.ok()) {
      Json json;
      json.set("success", true);
      return respond_json(*exchange, json);
    }
    auto error = to_api_error(status);
    if (status.code() == Code::kUnavailable) error.status = not_now;
    exchange->respond(to_response(error));
  };
  context.cache_worker->post(
      [engine = context.model.engine, done, what] { *done = (engine->*what)(); }, answer);
}

}  // namespace

void flush_cache(Context& context, HttpRequest, ExchangePtr exchange) {
  // As in SGLang: refused while requests run.
  have_engine_do(context, std::move(exchange), &Engine::flush_cache, 400);
}

void clear_storage(Context& context, HttpRequest, ExchangePtr exchange) {
  have_engine_do(context, std::move(exchange), &Engine::clear_storage, 503);
}

void show_metrics(Context& context, HttpRequest, ExchangePtr exchange) {
  exchange->respond({200, "text/plain; version=0.0.4; charset=utf-8",
                     metrics_text(context.metrics, context.model.engine->stats(),
                                  context.http->connections(), context.model_name())});
}

void chat_page(Context&, HttpRequest, ExchangePtr exchange) {
  exchange->respond({200,
                     "text/html; charset=utf-8",
                     kChatPage,
                     {{"Content-Security-Policy",
                       "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                       "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                       "frame-ancestors 'none'"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Cache-Control", "no-cache"}}});
}

}  // namespace attune::server
