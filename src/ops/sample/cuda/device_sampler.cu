// The host's side of the sampler: memory, and what a sequence brings when it enters its place.
#include "ops/sample/device_sampler.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "ops/sample/cuda/row.cuh"
#include "ops/sample/cuda/sample_kernels.h"

namespace attune::ops {
namespace {

using namespace cuda;  // NOLINT

// Pinned memory from which the device reads, piece after piece; a piece is written again only when
// what read it is done.
class StagingRing {
 public:
  static constexpr int64_t kPieceBytes = 32 << 10, kPieces = 64;

  static Result<StagingRing> create(device::Device& device) {
    StagingRing ring;
    ATTUNE_ASSIGN_OR_RETURN(ring.memory_,
                            device.allocate_pinned(kPieces * kPieceBytes, "sampler staging"));
    ring.read_.resize(kPieces);
    return Result<StagingRing>(std::move(ring));
  }
  // The next piece; waits only if the device is kPieces behind.
  void* next() {
    at_ = (at_ + 1) % kPieces;
    if (read_[at_] && !read_[at_]->done()) read_[at_]->wait();
    return memory_.as<char>() + at_ * kPieceBytes;
  }
  // What reads the piece was launched.
  void launched(device::Stream& stream) { read_[at_] = stream.record(); }

 private:
  device::Buffer memory_;
  std::vector<std::shared_ptr<device::Event>> read_;
  int64_t at_ = 0;
};
static_assert(sizeof(Place) <= StagingRing::kPieceBytes);

Status check_top(const SamplingParams& sampling) {
  if (sampling.top_logprobs <= SampledRow::kMaxTop) return {};
  return resource_exhausted("top_logprobs: more than " + std::to_string(SampledRow::kMaxTop) +
                            " are not supported on a GPU");
}

// Ids that are none would be written outside of the row; a token's biases are one.
Status set_bias(const SamplingParams& sampling, int32_t vocab, Place& place) {
  for (const auto& [token, bias] : sampling.logit_bias) {
    if (token < 0 || token >= vocab) continue;
    const auto end = place.bias_ids + place.num_bias;
    const auto same = std::find(place.bias_ids, end, token);
    if (same != end) {
      place.bias[same - place.bias_ids] += bias;
      continue;
    }
    if (place.num_bias == kMaxBias)
      return resource_exhausted("logit_bias: more than " + std::to_string(kMaxBias) +
                                " tokens are not supported on a GPU");
    place.bias_ids[place.num_bias] = token;
    place.bias[place.num_bias++] = bias;
  }
  return {};
}

Status set_forbidden(std::span<const TokenId> ids, int32_t vocab, Place& place) {
  for (TokenId token : ids) {
    if (token < 0 || token >= vocab) continue;
    const auto end = place.forbidden + place.num_forbidden;
    if (std::find(place.forbidden, end, token) != end) continue;
    if (place.num_forbidden == kMaxForbidden)
      return resource_exhausted("min_new_tokens: more than " + std::to_string(kMaxForbidden) +
                                " stop ids are not supported on a GPU");
    place.forbidden[place.num_forbidden++] = token;
  }
  return {};
}

class CudaSampler final : public DeviceSampler {
 public:
  static Result<std::unique_ptr<DeviceSampler>> create(const Config& config,
                                                       device::Device& device) {
    if (device.info().kind != device::Kind::kCuda)
      return unsupported("sampling on the device: the device is a CPU");
    auto s = std::make_unique<CudaSampler>();
    s->config_ = config;
    ATTUNE_RETURN_IF_ERROR(s->choose_shape(device.info()));
    const int64_t places = config.max_places, vocab = config.vocab;
    const auto take = [&](device::Buffer& to, int64_t bytes) -> Status {
      ATTUNE_ASSIGN_OR_RETURN(to, device.allocate(bytes, "the sampler's state"));
      return {};
    };
    ATTUNE_RETURN_IF_ERROR(take(s->places_, places * int64_t{sizeof(Place)}));
    ATTUNE_RETURN_IF_ERROR(take(s->counts_, places * vocab * 4));
    ATTUNE_RETURN_IF_ERROR(take(s->last_tokens_, places * 4));
    ATTUNE_RETURN_IF_ERROR(take(s->results_, config.max_rows * int64_t{sizeof(SampledRow)}));
    ATTUNE_RETURN_IF_ERROR(take(s->left_, int64_t{config.max_rows} * 4));
    if (s->slice_bytes_ == 0)
      ATTUNE_RETURN_IF_ERROR(take(s->workspace_, int64_t{config.max_rows} * s->cluster_ *
                                                     slice_elems(config.vocab, s->cluster_) * 4));
    ATTUNE_ASSIGN_OR_RETURN(s->staging_, StagingRing::create(device));
    return std::unique_ptr<DeviceSampler>(std::move(s));
  }

  Status admit(int32_t place, const SamplingParams& sampling,
               std::span<const TokenId> forbidden_early, std::span<const TokenId> history,
               int32_t prompt_tokens, device::Stream& stream) override {
    if (place < 0 || place >= config_.max_places)
      return invalid_argument("place " + std::to_string(place) + " of " +
                              std::to_string(config_.max_places));
    auto* staged = new (staging_->next()) Place;
    staged->temperature = sampling.temperature;
    staged->top_p = sampling.top_p;
    staged->min_p = sampling.min_p;
    staged->repetition = sampling.repetition_penalty;
    staged->presence = sampling.presence_penalty;
    staged->frequency = sampling.frequency_penalty;
    staged->top_k = sampling.top_k;
    staged->top_logprobs = std::min(sampling.top_logprobs, SampledRow::kMaxTop);
    staged->seed = sampling.seed.value_or(0);
    staged->min_new_tokens = sampling.min_new_tokens;
    staged->output_tokens = static_cast<int32_t>(history.size()) - prompt_tokens;
    staged->num_bias = staged->num_forbidden = 0;
    const bool penalised = sampling.repetition_penalty != 1.0f || sampling.presence_penalty != 0 ||
                           sampling.frequency_penalty != 0;
    staged->penalised = penalised ? 1 : 0;
    Status status = check_top(sampling);
    if (status.ok()) status = set_bias(sampling, config_.vocab, *staged);
    if (status.ok() && sampling.min_new_tokens > 0)
      status = set_forbidden(forbidden_early, config_.vocab, *staged);
    // Also after a refusal: what is already planned for the place may still sample from it.
    stream.copy(places_.as<Place>() + place, staged, sizeof(Place));
    staging_->launched(stream);
    if (penalised && status.ok()) count(place, history, prompt_tokens, stream);
    return status;
  }

  void fill_ids(int32_t* ids, int32_t count, device::Stream& stream) override {
    launch_fill_ids(ids, count, last_tokens_.as<int32_t>(), stream);
  }

  void sample(const int32_t* places, const int32_t* positions, float* logits, int32_t n,
              device::Stream& stream) override {
    launch_sample({.places = places,
                   .positions = positions,
                   .logits = logits,
                   .vocab = config_.vocab,
                   .states = places_.as<Place>(),
                   .counts = counts_.as<uint32_t>(),
                   .last_tokens = last_tokens_.as<int32_t>(),
                   .results = results_.as<SampledRow>(),
                   .left = left_.as<int32_t>(),
                   .workspace = workspace_.as<float>()},
                  n, cluster_, slice_bytes_, stream);
  }

  const SampledRow* results() const override { return results_.as<SampledRow>(); }

  void logprobs(const int32_t* ids, const float* logits, int32_t n, int32_t top, SampledRow* out,
                device::Stream& stream) override {
    for (int32_t i = 0; i < n; i += config_.max_rows)
      launch_logprobs({.ids = ids + i,
                       .logits = logits + int64_t{i} * config_.vocab,
                       .vocab = config_.vocab,
                       .top = top,
                       .out = out + i,
                       .workspace = workspace_.as<float>()},
                      std::min(n - i, config_.max_rows), cluster_, slice_bytes_, stream);
  }

  int64_t bytes() const override {
    int64_t sum = 0;
    for (const device::Buffer* b :
         {&places_, &counts_, &last_tokens_, &results_, &left_, &workspace_})
      sum += b->bytes();
    return sum;
  }

 private:
  // A row's slices lie in shared memory where clusters are and it is large enough.
  Status choose_shape(const device::DeviceInfo& info) {
    cluster_ = info.sm >= 90 ? kMaxCluster : 1;
    slice_bytes_ = int64_t{slice_elems(config_.vocab, cluster_)} * 4;
    if (cluster_ == 1 || slice_bytes_ + sampler_static_bytes() > device::kMostSharedBytes)
      slice_bytes_ = 0;
    return prepare_sampler_kernels(slice_bytes_);
  }

  void count(int32_t place, std::span<const TokenId> history, int32_t prompt_tokens,
             device::Stream& stream) {
    uint32_t* counts = counts_.as<uint32_t>() + int64_t{place} * config_.vocab;
    stream.fill(counts, 0, int64_t{config_.vocab} * 4);
    constexpr size_t kMost = StagingRing::kPieceBytes / sizeof(TokenId);
    for (size_t at = 0; at < history.size(); at += kMost) {
      const std::span<const TokenId> ids =
          history.subspan(at, std::min(kMost, history.size() - at));
      auto* staged = static_cast<int32_t*>(staging_->next());
      std::memcpy(staged, ids.data(), ids.size_bytes());
      const auto first_output = static_cast<int32_t>(std::clamp<int64_t>(
          prompt_tokens - static_cast<int64_t>(at), 0, static_cast<int64_t>(ids.size())));
      stream.launch([&] {
        launch_count(staged, static_cast<int32_t>(ids.size()), first_output, config_.vocab, counts,
                     stream);
      });
      staging_->launched(stream);
    }
  }

  Config config_;
  int32_t cluster_ = 1;
  int64_t slice_bytes_ = 0;  // 0: in the workspace
  device::Buffer places_, counts_, last_tokens_, results_, left_, workspace_;
  std::optional<StagingRing> staging_;
};

}  // namespace

Result<std::unique_ptr<DeviceSampler>> create_device_sampler(const DeviceSampler::Config& config,
                                                             device::Device& device) {
  return CudaSampler::create(config, device);
}

}  // namespace attune::ops
