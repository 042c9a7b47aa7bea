#include "engine/model_runner.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/guard.h"
#include "base/log.h"

namespace attune::engine {

using sched::RowKind;
using sched::StepPlan;
using sched::StepRow;

Result<std::unique_ptr<ModelRunner>> ModelRunner::create(const RunnerConfig& config,
                                                         std::unique_ptr<model::Decoder> decoder,
                                                         attention::Router& router,
                                                         device::Device& device,
                                                         device::Stream& stream) {
  std::unique_ptr<ModelRunner> r(new ModelRunner());
  const formats::ModelConfig& model = decoder->config();
  r->config_ = config;
  r->router_ = &router;
  r->device_ = &device;
  r->stream_ = &stream;
  const auto limits = attention_limits(config, model, device.info().threads);
  r->plan_maker_.emplace(device, limits[0], limits[1]);
  for (int i = 0; i < kInFlight; ++i)
    r->batches_.emplace_back(StepBatches::Config{.page_size = config.geometry.page_size,
                                                 .mla = model.has_mla(),
                                                 .mla_policy = config.mla_policy,
                                                 .deterministic = config.deterministic});
  ATTUNE_ASSIGN_OR_RETURN(r->kv_pool_, KvPool::create(config.geometry, config.num_slots, device));
  ATTUNE_ASSIGN_OR_RETURN(
      r->logits_,
      device.allocate(int64_t{decoder->max_logit_rows()} * model.vocab_size * 4, "logits"));
  r->decoder_ = std::move(decoder);
  r->places_.resize(config.max_seqs);
  r->samplers_.resize(device.info().threads);
  return r;
}

ModelRunner::~ModelRunner() {
  if (stream_) stream_->synchronize();
}

Result<std::shared_ptr<sched::StepResult>> ModelRunner::launch(
    StepPlan plan, std::shared_ptr<kv::LayerGate> loads) {
  auto shared = std::make_shared<const StepPlan>(std::move(plan));
  auto result = std::make_shared<sched::StepResult>();
  result->id = shared->id;
  result->rows.resize(shared->rows.size());
  StepBatches& batches = batches_[shared->id % kInFlight];
  batches.fill(*shared);
  ATTUNE_CHECK(static_cast<int32_t>(batches.ids.size()) <= config_.max_tokens);
  ATTUNE_RETURN_IF_ERROR(batches.route(*router_, *plan_maker_, *stream_));
  const Hold hold(*this, batches);
  stream_->launch([this, shared, result, &batches, loads = std::move(loads)] {
    const Status status = base::guarded([&] { execute(*shared, batches, loads, *result); });
    if (!status.ok()) fail(*shared, status.message(), *result);
  });
  return result;
}

void ModelRunner::admit(const sched::Admission& a) {
  Place& place = places_[a.place.value];
  const SamplingParams& s = a.sampling;
  place = Place{.request = a.request, .sampling = s};
  place.penalised =
      s.repetition_penalty != 1.0f || s.presence_penalty != 0 || s.frequency_penalty != 0;
  place.output_tokens = static_cast<int32_t>(a.history.size()) - a.prompt_tokens;
  place.forbidden_early = early_stops(decoder_->config(), s);
  if (!place.penalised) return;
  for (size_t i = 0; i < a.history.size(); ++i)
    place.count(a.history[i], i >= static_cast<size_t>(a.prompt_tokens));
}

void ModelRunner::Place::count(TokenId token, bool output) {
  const auto [it, added] = count_index.try_emplace(token, static_cast<int32_t>(counts.size()));
  if (added) counts.push_back({token, 0, false});
  ops::TokenCount& c = counts[it->second];
  if (output) {
    ++c.in_output;
  } else {
    c.in_prompt = true;
  }
}

// On the stream's thread.
void ModelRunner::execute(const StepPlan& plan, StepBatches& batches,
                          const std::shared_ptr<kv::LayerGate>& loads, sched::StepResult& result) {
  for (const sched::Admission& a : plan.admissions) admit(a);
  std::vector<int32_t> last_tokens;  // index of each row's last token
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    const int32_t first = batches.first_token[i];
    if (row.kind == RowKind::kDecode) batches.ids[first] = places_[row.place.value].last_token;
    last_tokens.push_back(first + row.num_tokens - 1);
  }
  const std::vector<model::AttentionGroup> groups = batches.plan_on(*stream_);
  decoder_->forward({.num_tokens = static_cast<int32_t>(batches.ids.size()),
                     .ids = batches.ids.data(),
                     .positions = batches.positions.data(),
                     .slot_mapping = batches.slot_mapping.data(),
                     .groups = groups,
                     .kv = kv_pool_.views,
                     .before_layer = before_layer(loads, *stream_)},
                    *stream_);
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    if (row.prompt_logprob_start >= 0)
      prompt_logprobs(row, last_tokens[i] - row.num_tokens + 1, result.rows[i]);
  }
  sample_rows(plan, last_tokens, result);
}

void ModelRunner::fail(const StepPlan& plan, const std::string& error, sched::StepResult& result) {
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    result.rows[i] = {};
    result.rows[i].error = error;
    // A step already planned may still read it; its result is dropped.
    places_[plan.rows[i].place.value].last_token = 0;
  }
}

void ModelRunner::sample_rows(const StepPlan& plan, const std::vector<int32_t>& last_tokens,
                              sched::StepResult& result) {
  std::vector<int32_t> rows;  // of the plan
  for (size_t i = 0; i < plan.rows.size(); ++i)
    if (plan.rows[i].sample) rows.push_back(static_cast<int32_t>(i));
  const int64_t vocab = decoder_->config().vocab_size;
  const int32_t most = decoder_->max_logit_rows();
  for (size_t first = 0; first < rows.size(); first += most) {
    const auto count = static_cast<int32_t>(std::min<size_t>(most, rows.size() - first));
    std::vector<int32_t> picked(count);
    for (int32_t i = 0; i < count; ++i) picked[i] = last_tokens[rows[first + i]];
    decoder_->logits(picked.data(), count, logits_.as<float>(), *stream_);
    auto sample_strided = [&](int thread, int threads) {
      for (int32_t i = thread; i < count; i += threads)
        sample_one(plan.rows[rows[first + i]], logits_.as<float>() + i * vocab, samplers_[thread],
                   result.rows[rows[first + i]]);
    };
    if (count == 1) {
      sample_strided(0, 1);
    } else {
      stream_->pool().run(sample_strided);
    }
  }
}

void ModelRunner::sample_one(const StepRow& row, float* logits, ops::Sampler& sampler,
                             sched::RowResult& out) {
  Place& place = places_[row.place.value];
  const bool early = place.output_tokens < place.sampling.min_new_tokens;
  ops::Sampled drawn =
      sampler.sample({.logits = logits,
                      .vocab = decoder_->config().vocab_size,
                      .sampling = &place.sampling,
                      .seed = place.sampling.seed.value_or(0),
                      .position = row.start + row.num_tokens,
                      .counts = place.counts,
                      .forbidden = early ? std::span<const TokenId>(place.forbidden_early)
                                         : std::span<const TokenId>(),
                      .top_logprobs = place.sampling.top_logprobs});
  if (drawn.token < 0) {
    out.error = kNotFinite;
    place.last_token = 0;  // a step already planned may still read it; its result is dropped
    return;
  }
  out.token = place.last_token = drawn.token;
  out.logprob = std::move(drawn.logprob);
  ++place.output_tokens;
  if (place.penalised) place.count(drawn.token, true);
}

// Logits of position p - 1 give the log-probability of the prompt's id at p. In pieces of
// max_logit_rows(), so that a long prompt needs no more memory than a short one.
void ModelRunner::prompt_logprobs(const StepRow& row, int32_t first_token, sched::RowResult& out) {
  const auto [begin, end] = prompt_range(row);
  out.prompt_logprobs_first = begin;
  const int64_t vocab = decoder_->config().vocab_size;
  const int32_t top = std::max(0, places_[row.place.value].sampling.top_logprobs);
  const int32_t most = decoder_->max_logit_rows();
  for (int32_t p = begin; p < end; p += most) {
    const int32_t count = std::min(most, end - p);
    std::vector<int32_t> picked(count);
    for (int32_t i = 0; i < count; ++i) picked[i] = first_token + (p + i - 1 - row.start);
    decoder_->logits(picked.data(), count, logits_.as<float>(), *stream_);
    std::vector<LogprobEntry> entries(count);
    stream_->pool().parallel_for(count, 1, [&](int64_t b, int64_t e) {
      for (int64_t i = b; i < e; ++i) {
        const int32_t offset = p + static_cast<int32_t>(i) - row.start;
        const TokenId id = offset < row.num_tokens ? row.tokens[offset] : row.next_token;
        entries[i] = ops::Sampler::logprobs(logits_.as<float>() + i * vocab,
                                            static_cast<int32_t>(vocab), id, top);
      }
    });
    for (int32_t i = 0; i < count; ++i) out.prompt_logprobs.push_back(std::move(entries[i]));
  }
}

}  // namespace attune::engine
