#include "engine/load.h"

#include <algorithm>
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "engine/cuda_runner.h"
#include "engine/inputs.h"
#include "engine/load_copies.h"
#include "formats/fingerprint.h"

namespace attune::engine {
namespace {

using base::cat;

constexpr int32_t kLogitRows = 64;    // of one product with the head
constexpr int64_t kLittleRoom = 256;  // tokens

Status conflicts_as_status(const resolve::Resolution& r) {
  if (r.conflicts.empty()) return {};
  std::string text;
  for (const resolve::Conflict& c : r.conflicts)
    text += (text.empty() ? "" : "; ") + c.text + " (" + c.mend + ")";
  return invalid_argument(text);
}

// Pages of the pool, the padding page included.
Result<int32_t> pool_slots(const Options& options, const kv::KvGeometry& g,
                           const device::DeviceInfo& device, int64_t model_bytes) {
  const Defaults& defaults = defaults_for(device);
  const double fraction =
      options.mem_fraction_static > 0 ? options.mem_fraction_static : defaults.mem_fraction;
  const int64_t budget =
      static_cast<int64_t>(fraction * static_cast<double>(device.free_memory)) - model_bytes;
  const int64_t fit = budget / g.page_bytes();
  const int64_t tokens =
      options.max_total_tokens > 0 ? options.max_total_tokens : defaults.kv_tokens;
  int64_t pages = tokens > 0 ? (tokens + g.page_size - 1) / g.page_size : fit;
  if (options.max_total_tokens == 0) pages = std::min(pages, fit);
  if (options.max_total_tokens > 0 && pages * g.page_bytes() > device.free_memory)
    return resource_exhausted(cat("--max-total-tokens ", options.max_total_tokens, " needs ",
                                  pages * g.page_bytes() >> 20, " MiB of KV cache, ",
                                  device.free_memory >> 20, " MiB are free: lower it"));
  if (pages < 1)
    return resource_exhausted(cat("no memory for a KV cache: ", fraction, " of ",
                                  device.free_memory >> 20, " MiB free, less ", model_bytes >> 20,
                                  " MiB of weights and scratch, holds no page of ", g.page_bytes(),
                                  " bytes: raise --mem-fraction-static or free memory"));
  pages = std::min<int64_t>(pages, (int64_t{1} << 31) / g.page_size - 2);
  return static_cast<int32_t>(pages + 1);
}

// A prompt of one token and an answer of one are the least that can be served; a pool that holds
// little more is likely a mistake.
Status check_room(const RunnerConfig& rc, int32_t max_model_len) {
  const int64_t tokens = int64_t{rc.num_slots - 1} * rc.geometry.page_size;
  if (tokens < 2)
    return invalid_argument(cat("--max-total-tokens: a KV cache of ", tokens,
                                " tokens holds no prompt and its answer: raise it"));
  if (tokens < kLittleRoom && tokens < max_model_len)
    base::log_warning("the KV cache holds only ", tokens,
                      " tokens: longer prompts and answers are refused (--max-total-tokens)");
  return {};
}

Status shorten_context(const Options& options, formats::ModelConfig& config) {
  if (options.context_length > config.max_model_len)
    return invalid_argument(cat("--context-length ", options.context_length,
                                ": the model was made for ", config.max_model_len,
                                " tokens: give at most these, or leave the flag out"));
  if (options.context_length == 1)
    return invalid_argument("--context-length 1 leaves no room for an answer: give at least 2");
  if (options.context_length > 0) config.max_model_len = options.context_length;
  return {};
}

Result<sched::SchedulerConfig> scheduler_config(const Options& options,
                                                const formats::ModelConfig& config,
                                                const device::DeviceInfo& device) {
  const Defaults& defaults = defaults_for(device);
  sched::SchedulerConfig sc;
  sc.vocab_size = config.vocab_size;
  sc.max_model_len = config.max_model_len;
  sc.eos_token_ids = config.eos_token_ids;
  sc.max_running_requests =
      options.max_running_requests > 0 ? options.max_running_requests : defaults.running_requests;
  sc.max_queued_requests = options.max_queued_requests;
  sc.chunked_prefill_size =
      options.chunked_prefill_size != 0 ? options.chunked_prefill_size : defaults.chunk;
  sc.max_prefill_tokens = options.max_prefill_tokens;
  ATTUNE_ASSIGN_OR_RETURN(sc.policy, sched::parse_policy(options.schedule_policy));
  sc.conservativeness = options.schedule_conservativeness;
  sc.deterministic = options.enable_deterministic_inference;
  sc.random_seed = options.random_seed;
  sc.max_steps_in_flight = options.disable_overlap_schedule ? 1 : Runner::kInFlight;
  return sc;
}

// All but num_slots, which the weights' size decides.
RunnerConfig runner_config(const Options& options, const formats::ModelConfig& config,
                           const resolve::Resolution& resolution,
                           const sched::SchedulerConfig& sc) {
  RunnerConfig rc;
  rc.geometry.layer = model::kv_spec(config, resolution.kv_dtype);
  rc.geometry.layers = config.num_layers;
  rc.geometry.page_size = resolution.page_size;
  rc.max_seqs = sc.max_step_rows();
  rc.max_tokens = sc.max_step_tokens();
  rc.max_model_len = sc.max_model_len;
  if (resolution.mla) rc.mla_policy = resolution.mla->policy;
  // No prefix is up-projected: room for a step's own tokens is enough.
  if (!rc.mla_policy.chunked_prefix) rc.mla_policy.capacity = 0;
  rc.act = resolution.activation_dtype;
  rc.tuning = resolution.tuning;
  rc.deterministic = options.enable_deterministic_inference;
  rc.max_graph_size = resolution.graphs.enabled ? resolution.graphs.max_bs : 0;
  return rc;
}

// Whether what a page holds past a sequence's end must be finite.
bool any_reads_past_end(const attention::Router& router) {
  for (int i = 0; i < router.num_backends(); ++i)
    if (router.backend(i).capabilities().reads_past_end) return true;
  return false;
}

Result<std::unique_ptr<Runner>> make_runner(const RunnerConfig& rc,
                                            std::unique_ptr<model::Decoder> decoder,
                                            LoadedEngine& e) {
  if (e.device->info().kind == device::Kind::kCpu) {
    ATTUNE_ASSIGN_OR_RETURN(
        std::unique_ptr<Runner> runner,
        ModelRunner::create(rc, std::move(decoder), *e.router, *e.device, *e.stream));
    return runner;
  }
  ATTUNE_ASSIGN_OR_RETURN(
      std::unique_ptr<Runner> runner,
      CudaRunner::create(rc, std::move(decoder), *e.router, *e.device, *e.stream));
  return runner;
}

model::Decoder::Progress log_progress(const std::string& name) {
  auto last = std::make_shared<int>(0);
  return [name, last](int64_t done, int64_t total) {
    const int percent = total > 0 ? static_cast<int>(done * 100 / total) : 100;
    if (percent / 10 == *last / 10) return;
    *last = percent;
    // Only a load that takes long is worth lines; small models are there at once.
    if (total > (int64_t{1} << 30)) base::log_info("loading ", name, ": ", percent, " %");
  };
}

}  // namespace

Result<LoadedEngine> load_engine(const Options& options) {
  LoadedEngine e;
  ATTUNE_RETURN_IF_ERROR(check_built(options));
  ATTUNE_ASSIGN_OR_RETURN(e.device, create_device(options));
  ATTUNE_ASSIGN_OR_RETURN(e.model, open_model(options));
  formats::ModelConfig& config = e.model.config;
  ATTUNE_RETURN_IF_ERROR(shorten_context(options, config));

  const resolve::Resolution resolution =
      resolve::resolve(resolver_inputs(options, config, *e.device, e.model.weights->bytes()));
  e.resolution_json = resolve::to_json(resolution);
  e.resolution_table = resolve::to_table(resolution);
  ATTUNE_RETURN_IF_ERROR(conflicts_as_status(resolution));
  for (const resolve::Reason& reason : resolution.reasons)
    if (reason.warning) base::log_warning(reason.text);
  ATTUNE_ASSIGN_OR_RETURN(e.router, attention::Router::create(resolution.order(), *e.device));

  ATTUNE_ASSIGN_OR_RETURN(sched::SchedulerConfig sc,
                          scheduler_config(options, config, e.device->info()));

  RunnerConfig rc = runner_config(options, config, resolution, sc);
  e.stream = e.device->create_stream();
  ATTUNE_RETURN_IF_ERROR(e.stream->status());
  if (rc.tuning.pdl == attention::Toggle::kOff) e.stream->set_pdl(false);
  const bool gpu = e.device->info().kind == device::Kind::kCuda;
  const bool clear_pages = any_reads_past_end(*e.router);
  ATTUNE_CHECK(!clear_pages || !config.has_mla());  // latent_append has no such thing
  ATTUNE_ASSIGN_OR_RETURN(
      std::unique_ptr<model::Decoder> decoder,
      model::Decoder::load(config, *e.model.weights,
                           {.act = resolution.activation_dtype,
                            .inter = gpu ? resolution.activation_dtype : tensor::DType::kF32,
                            .deterministic = rc.deterministic,
                            .clear_pages = clear_pages,
                            .max_tokens = rc.max_tokens,
                            .max_logit_rows = gpu ? std::max(rc.max_seqs, kLogitRows) : kLogitRows,
                            .mla_capacity = rc.mla_policy.one_path ? -1 : rc.mla_policy.capacity},
                           *e.device, *e.stream, ops::op_table(e.device->info()),
                           log_progress(e.model.name)));
  // Storage outlives this process, and so must what it tells models apart by.
  std::string fingerprint = cat(e.model.path, ":", e.model.parameters, ":", e.model.weight_format);
  if (resolution.hicache && options.hicache_storage_backend != "none") {
    ATTUNE_ASSIGN_OR_RETURN(
        fingerprint,
        formats::model_fingerprint(e.model, static_cast<int>(std::thread::hardware_concurrency())));
  }
  ATTUNE_RETURN_IF_ERROR(e.model.weights->check_intact());
  e.model.weights.reset();  // the device has its own; nothing reads the file from here on

  ATTUNE_ASSIGN_OR_RETURN(rc.num_slots,
                          pool_slots(options, rc.geometry, e.device->info(),
                                     decoder->weight_bytes() + decoder->scratch_bytes()));
  ATTUNE_RETURN_IF_ERROR(check_room(rc, config.max_model_len));
  ATTUNE_ASSIGN_OR_RETURN(e.runner, make_runner(rc, std::move(decoder), e));

  const kv::CacheIdentity identity =
      cache_identity(options, resolution, rc, e.device->info(), fingerprint);
  ATTUNE_ASSIGN_OR_RETURN(std::unique_ptr<kv::KvTier> tier,
                          open_storage(options, resolution, identity, rc.geometry.page_bytes()));
  const kv::TierPlan tiers = tier_plan(resolution, tier.get(), rc.geometry);
  if (resolution.hicache) {
    ATTUNE_ASSIGN_OR_RETURN(e.copies, make_copies(options, resolution, rc, *e.runner,
                                                  std::move(tier), *e.device, *e.stream));
  }
  e.pool = std::make_unique<kv::PagePool>(rc.num_slots, rc.geometry.page_size,
                                          host_slots(resolution, rc.geometry));
  ATTUNE_RETURN_IF_ERROR(
      kv::make_eviction_policy(options.radix_eviction_policy, 1).status());  // the name is known
  if (!options.disable_radix_cache)
    e.index = std::make_unique<kv::PrefixIndex>(
        *e.pool,
        [name = options.radix_eviction_policy](int32_t pages) {
          return kv::make_eviction_policy(name, pages).value();
        },
        identity, kv::random_hash_seed(), tiers);
  sc.cache = cache_config(options, resolution, tiers, rc.geometry);
  e.scheduler = std::make_unique<sched::Scheduler>(sc, *e.pool, e.index.get());
  e.page_bytes = rc.geometry.page_bytes();
  e.info = {.path = e.model.path,
            .name = e.model.name,
            .architecture = config.architecture,
            .vocab_size = config.vocab_size,
            .max_model_len = config.max_model_len,
            .eos_token_ids = config.eos_token_ids,
            .parameters = e.model.parameters,
            .weight_format = e.model.weight_format};
  return e;
}

}  // namespace attune::engine
