#include "engine/cuda_runner.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/guard.h"
#include "base/log.h"

namespace attune::engine {

using ops::SampledRow;
using sched::RowKind;
using sched::StepPlan;
using sched::StepRow;

namespace {

// Sizes of decode steps that are captured: close together where a row more is a large part.
std::vector<int32_t> sizes_up_to(int32_t most) {
  std::vector<int32_t> sizes;
  for (int32_t n = 1; n < most; n += n < 4 ? 1 : n < 16 ? 4 : n < 64 ? 8 : 16) sizes.push_back(n);
  if (most > 0) sizes.push_back(most);
  return sizes;
}

// Bytes of all arrays that a step can have.
int64_t staging_bytes(const RunnerConfig& c, const formats::ModelConfig& model) {
  const auto bytes = [](int64_t count, int64_t elem) { return Staging::bytes_of(count, elem); };
  const int64_t pages =
      (int64_t{c.max_model_len} + c.geometry.page_size - 1) / c.geometry.page_size;
  const int64_t tokens = 2 * bytes(c.max_tokens, 4) + bytes(c.max_tokens, 8);
  const int64_t draws = 3 * bytes(c.max_seqs, 4);
  const int64_t prompt = 2 * bytes(c.max_tokens, 4);
  // Each sequence is in one call; for an MLA model that up-projects also in those over the chunks
  // of its prefix, which have a sequence each at least.
  int64_t calls = 2 * (4 * bytes(c.max_seqs + 1, 4) + bytes(0, 8)) + bytes(c.max_seqs * pages, 4);
  if (model.has_mla() && !c.mla_policy.one_path) {
    const int64_t keys = int64_t{c.max_seqs} * c.max_model_len;
    const int64_t capacity = c.mla_policy.capacity;  // 0: no prefix is up-projected
    const int64_t chunks = (capacity > 0 ? keys / capacity : 0) + 2 * c.max_seqs;
    calls += bytes(keys, 8) + chunks * 6 * 64 + 4 * bytes(2 * chunks + c.max_seqs, 4);
  }
  return tokens + draws + prompt + calls;
}

}  // namespace

Result<std::unique_ptr<CudaRunner>> CudaRunner::create(const RunnerConfig& config,
                                                       std::unique_ptr<model::Decoder> decoder,
                                                       attention::Router& router,
                                                       device::Device& device,
                                                       device::Stream& stream) {
  std::unique_ptr<CudaRunner> r(new CudaRunner());
  const formats::ModelConfig& model = decoder->config();
  const int32_t rows = decoder->max_logit_rows();
  ATTUNE_CHECK(rows >= config.max_seqs);
  r->config_ = config;
  r->router_ = &router;
  r->device_ = &device;
  r->stream_ = &stream;
  r->graph_sizes_ = sizes_up_to(std::min(config.max_graph_size, config.max_seqs));
  const auto limits = attention_limits(config, model, 1);
  r->plan_maker_.emplace(device, limits[0], limits[1]);
  r->batches_.emplace(StepBatches::Config{.page_size = config.geometry.page_size,
                                          .mla = model.has_mla(),
                                          .mla_policy = config.mla_policy,
                                          .deterministic = config.deterministic});
  ATTUNE_ASSIGN_OR_RETURN(r->kv_pool_, KvPool::create(config.geometry, config.num_slots, device));
  ATTUNE_ASSIGN_OR_RETURN(r->logits_,
                          device.allocate(int64_t{rows} * model.vocab_size * 4, "logits"));
  ATTUNE_ASSIGN_OR_RETURN(r->prompt_rows_,
                          device.allocate(int64_t{rows} * sizeof(SampledRow), "log-probabilities"));
  ATTUNE_ASSIGN_OR_RETURN(
      r->sampler_,
      ops::create_device_sampler(
          {.max_places = config.max_seqs, .max_rows = rows, .vocab = model.vocab_size}, device));
  ATTUNE_ASSIGN_OR_RETURN(r->staging_,
                          Staging::create(device, staging_bytes(config, model), kInFlight));
  for (Lane& lane : r->lanes_) {
    ATTUNE_ASSIGN_OR_RETURN(
        lane.sampled, device.allocate_pinned(int64_t{rows} * sizeof(SampledRow), "sampled tokens"));
  }
  r->places_.resize(config.max_seqs);
  r->decoder_ = std::move(decoder);
  return r;
}

CudaRunner::~CudaRunner() {
  if (stream_) stream_->synchronize();
}

Result<std::shared_ptr<sched::StepResult>> CudaRunner::launch(
    StepPlan plan, std::shared_ptr<kv::LayerGate> loads) {
  ATTUNE_RETURN_IF_ERROR(stream_->status());
  auto shared = std::make_shared<const StepPlan>(std::move(plan));
  auto result = std::make_shared<sched::StepResult>();
  result->id = shared->id;
  result->rows.resize(shared->rows.size());
  Lane& lane = lanes_[shared->id % kInFlight];
  for (const sched::Admission& a : shared->admissions) admit(a);

  const int32_t size = graph_size(*shared);
  batches_->fill(*shared, size);
  ATTUNE_CHECK(static_cast<int32_t>(batches_->ids.size()) <= config_.max_tokens);
  staging_.begin(static_cast<int>(shared->id % kInFlight));
  const Arrays arrays = stage(*shared, size, lane);
  batches_->stage(staging_);
  ATTUNE_RETURN_IF_ERROR(batches_->route(*router_, *plan_maker_, *stream_));
  {
    const Hold hold(*this, *batches_);
    staging_.send(*stream_);
    if (size > 0) {
      run_graph(size, arrays, lane);  // of decode rows alone, which load nothing
    } else {
      stream_->launch([&] { run(arrays, lane, loads); });
    }
  }
  stream_->copy(lane.sampled.data(), sampler_->results(),
                int64_t{arrays.num_samples} * sizeof(SampledRow));
  ATTUNE_RETURN_IF_ERROR(stream_->status());
  stream_->notify([this, shared, result, &lane] {
    const Status status = base::guarded([&] { read(*shared, lane, *result); });
    if (status.ok()) return;
    for (sched::RowResult& row : result->rows) {
      row = {};
      row.error = status.message();
    }
  });
  return result;
}

// What a place has no room for is told by its rows, and spoils no other's step.
void CudaRunner::admit(const sched::Admission& a) {
  const std::vector<TokenId> early = early_stops(decoder_->config(), a.sampling);
  const Status status =
      sampler_->admit(a.place.value, a.sampling, early, a.history, a.prompt_tokens, *stream_);
  places_[a.place.value] = {a.sampling.top_logprobs, status.message()};
}

int32_t CudaRunner::graph_size(const StepPlan& plan) const {
  const auto rows = static_cast<int32_t>(plan.rows.size());
  for (const StepRow& row : plan.rows)
    if (row.kind != RowKind::kDecode) return 0;
  const auto size = std::lower_bound(graph_sizes_.begin(), graph_sizes_.end(), rows);
  return size == graph_sizes_.end() ? 0 : *size;
}

CudaRunner::Arrays CudaRunner::stage(const StepPlan& plan, int32_t size, Lane& lane) {
  std::vector<int32_t>&last = scratch_.last, &places = scratch_.places, &at = scratch_.positions;
  std::vector<int32_t>&prompt = scratch_.prompt, &prompt_ids = scratch_.prompt_ids;
  for (std::vector<int32_t>* v : {&last, &places, &at, &prompt, &prompt_ids}) v->clear();
  lane.rows.assign(plan.rows.size(), {});
  Arrays a;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    const int32_t first = batches_->first_token[i];
    const Place& place = places_[row.place.value];
    lane.rows[i].top = std::max(0, place.top_logprobs);
    lane.rows[i].error = place.error;
    if (row.sample) {
      lane.rows[i].sampled = static_cast<int32_t>(last.size());
      last.push_back(first + row.num_tokens - 1);
      places.push_back(row.place.value);
      at.push_back(row.start + row.num_tokens);
    }
    if (row.prompt_logprob_start < 0) continue;
    lane.rows[i].prompt = static_cast<int32_t>(prompt.size());
    const PromptRange range = prompt_range(row);
    for (int32_t p = range.begin; p < range.end; ++p) {
      const int32_t offset = p - row.start;
      prompt.push_back(first + offset - 1);
      prompt_ids.push_back(offset < row.num_tokens ? row.tokens[offset] : row.next_token);
    }
  }
  a.num_tokens = static_cast<int32_t>(batches_->ids.size());
  // A step that is filled up draws for the rows more too, into nowhere.
  for (auto row = static_cast<int32_t>(last.size()); row < size; ++row) {
    last.push_back(row);
    places.push_back(-1);
    at.push_back(0);
  }
  a.num_samples = static_cast<int32_t>(last.size());
  a.num_prompt = static_cast<int32_t>(prompt.size());
  a.ids = staging_.add(batches_->ids);
  a.positions = staging_.add(batches_->positions);
  a.slot_mapping = staging_.add(batches_->slot_mapping);
  a.last_tokens = staging_.add(last);
  a.places = staging_.add(places);
  a.draw_positions = staging_.add(at);
  a.prompt_tokens = staging_.add(prompt);
  a.prompt_ids = staging_.add(prompt_ids);
  return a;
}

void CudaRunner::run(const Arrays& a, Lane& lane, const std::shared_ptr<kv::LayerGate>& loads) {
  sampler_->fill_ids(const_cast<int32_t*>(a.ids), a.num_tokens, *stream_);
  const std::vector<model::AttentionGroup> groups = batches_->plan_on(*stream_);
  decoder_->forward({.num_tokens = a.num_tokens,
                     .ids = a.ids,
                     .positions = a.positions,
                     .slot_mapping = a.slot_mapping,
                     .groups = groups,
                     .kv = kv_pool_.views,
                     .before_layer = before_layer(loads, *stream_)},
                    *stream_);
  if (a.num_prompt > 0) prompt_logprobs(a, lane);
  if (a.num_samples == 0) return;
  decoder_->logits(a.last_tokens, a.num_samples, logits_.as<float>(), *stream_);
  sampler_->sample(a.places, a.draw_positions, logits_.as<float>(), a.num_samples, *stream_);
}

// The first step of its kind is launched kernel by kernel, so that what libraries do once is done;
// the second is captured.
void CudaRunner::run_graph(int32_t size, const Arrays& arrays, Lane& lane) {
  Captured& captured = graphs_[{size, batches_->first_choice().index}];
  ++captured.steps;
  if (captured.steps >= 2 && !captured.graph && !captured.failed)
    capture(size, arrays, lane, captured);
  if (captured.graph) {
    captured.graph->launch(*stream_);
  } else {
    stream_->launch([&] { run(arrays, lane); });
  }
}

void CudaRunner::capture(int32_t size, const Arrays& arrays, Lane& lane, Captured& to) {
  const auto start = std::chrono::steady_clock::now();
  const std::string name = base::cat("decode of ", size, " sequences");
  const int64_t free = device_->free_memory();
  auto graph = stream_->capture(name, [&] { run(arrays, lane); });
  if (!graph.ok()) {
    to.failed = true;
    base::log_warning("CUDA graph: ", graph.status().message(),
                      "; such steps are launched kernel by kernel");
    return;
  }
  to.graph = std::move(*graph);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  base::log_info("CUDA graph of a ", name, ": ", to.graph->nodes(), " nodes, ",
                 (free - device_->free_memory()) >> 20, " MiB, captured in ",
                 static_cast<int>(took.count()), " ms");
}

// In pieces of as many rows as there is room for logits.
void CudaRunner::prompt_logprobs(const Arrays& a, Lane& lane) {
  const int64_t bytes = int64_t{a.num_prompt} * sizeof(SampledRow);
  if (lane.prompt.bytes() < bytes) {
    auto grown = device_->allocate_pinned(bytes, "log-probabilities of prompts");
    if (!grown.ok()) {
      for (Lane::Row& row : lane.rows)
        if (row.prompt >= 0) row.error = grown.status().message();
      return;
    }
    lane.prompt = std::move(*grown);
  }
  const int32_t most = decoder_->max_logit_rows();
  for (int32_t i = 0; i < a.num_prompt; i += most) {
    const int32_t count = std::min(most, a.num_prompt - i);
    decoder_->logits(a.prompt_tokens + i, count, logits_.as<float>(), *stream_);
    sampler_->logprobs(a.prompt_ids + i, logits_.as<float>(), count, SampledRow::kMaxTop,
                       prompt_rows_.as<SampledRow>(), *stream_);
    stream_->copy(lane.prompt.as<SampledRow>() + i, prompt_rows_.data(),
                  int64_t{count} * sizeof(SampledRow));
  }
}

namespace {

LogprobEntry entry_of(const SampledRow& row, int32_t top) {
  LogprobEntry entry;
  entry.chosen = {row.token, row.logprob};
  for (int32_t i = 0; i < std::min(top, row.num_top); ++i)
    entry.top.push_back({row.top_tokens[i], row.top_logprobs[i]});
  return entry;
}

}  // namespace

// On the device's thread that tells of completion.
void CudaRunner::read(const StepPlan& plan, const Lane& lane, sched::StepResult& result) const {
  const Status status = stream_->status();
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    const Lane::Row& mine = lane.rows[i];
    sched::RowResult& out = result.rows[i];
    out.error = status.ok() ? mine.error : status.message();
    if (!out.error.empty()) continue;
    if (row.prompt_logprob_start >= 0) {
      const PromptRange range = prompt_range(row);
      out.prompt_logprobs_first = range.begin;
      for (int32_t p = range.begin; p < range.end; ++p)
        out.prompt_logprobs.push_back(
            entry_of(lane.prompt.as<const SampledRow>()[mine.prompt + p - range.begin], mine.top));
    }
    if (mine.sampled < 0) continue;
    const SampledRow& drawn = lane.sampled.as<const SampledRow>()[mine.sampled];
    if (drawn.token < 0) {
      out.error = kNotFinite;
      continue;
    }
    out.token = drawn.token;
    out.logprob = entry_of(drawn, drawn.num_top);
  }
}

}  // namespace attune::engine
