#include "bench/attention_timer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>

#include "ops/convert.h"
#include "ops/ops.h"

namespace attune::bench {
namespace {

using attention::Phase;
using tensor::DType;

// More than any cache holds.
constexpr int64_t kGpuColdBytes = 768 << 20, kCpuColdBytes = 96 << 20;
constexpr int kGpuLaunches = 24, kGpuPrefillLaunches = 4, kCpuLaunches = 4;
constexpr int kLayers = 32;         // that share a plan
constexpr double kMeasured = 0.01;  // seconds of one repeat at least
constexpr int64_t kReadUnit = 16384;
constexpr int64_t kRandomBytes = 8 << 20;  // repeated

bool on_gpu(const device::DeviceInfo& info) {
  return info.kind == device::Kind::kCuda;
}

int64_t elem_bytes(DType dtype) {
  return tensor::dtype_bytes(dtype, 1);
}

kv::KvGeometry geometry_of(const AttentionCase& c) {
  kv::KvGeometry g;
  g.layer = {c.heads.kv, c.heads.qk_dim, c.heads.v_dim, c.kv_dtype, c.heads.mla};
  g.layers = 1;
  g.page_size = c.page_size;
  return g;
}

int64_t token_bytes(const AttentionCase& c) {
  const AttentionHeads& h = c.heads;
  return int64_t{h.kv} * (h.qk_dim + (h.mla ? 0 : h.v_dim)) * elem_bytes(c.kv_dtype);
}

// A binary tree: token i follows (i - 1) / 2, and sees itself and whom it follows.
std::vector<uint64_t> tree_words(int32_t seqs, int32_t q_len) {
  std::vector<uint64_t> words;
  for (int32_t s = 0; s < seqs; ++s)
    for (int32_t i = 0; i < q_len; ++i) {
      const uint64_t before = i == 0 ? 0 : words[words.size() - i + (i - 1) / 2];
      words.push_back(before | uint64_t{1} << i);
    }
  return words;
}

std::vector<char> random_values(DType dtype, int64_t bytes) {
  uint64_t state = 88172645463325252u;
  const auto next = [&] {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return float(int32_t(state >> 40) - (1 << 23)) * 0x1p-23f;
  };
  std::vector<float> values(bytes / elem_bytes(dtype));
  for (float& v : values) v = next();
  std::vector<char> out(bytes);
  ops::cpu::convert_row(values.data(), std::ssize(values), dtype, out.data());
  return out;
}

}  // namespace

DType activations_on(const device::DeviceInfo& info) {
  return on_gpu(info) ? DType::kBF16 : DType::kF32;
}

Result<char*> SharedMemory::values(DType dtype, int64_t bytes) {
  const bool large_enough = bytes <= memory_.bytes();
  if (!large_enough) {
    memory_.reset();
    ATTUNE_ASSIGN_OR_RETURN(memory_, device_.allocate(bytes, "KV pools"));
  }
  if (!large_enough || dtype != dtype_) ATTUNE_RETURN_IF_ERROR(fill(memory_, dtype));
  dtype_ = dtype;
  return memory_.as<char>();
}

Status SharedMemory::fill(device::Buffer& buffer, DType dtype) {
  const std::vector<char> some = random_values(dtype, std::min(buffer.bytes(), kRandomBytes));
  char* to = buffer.as<char>();
  stream_.copy(to, some.data(), std::ssize(some));
  for (int64_t at = std::ssize(some); at < buffer.bytes(); at *= 2)
    stream_.copy(to + at, to, std::min(at, buffer.bytes() - at));
  stream_.synchronize();
  return stream_.status();
}

Result<const OutputWeights*> SharedMemory::output_weights(const AttentionHeads& heads) {
  for (const auto& [whose, weights] : weights_)
    if (whose == heads) return weights.get();
  ATTUNE_ASSIGN_OR_RETURN(OutputWeights made, OutputWeights::create(heads, device_, stream_));
  weights_.emplace_back(heads, std::make_unique<OutputWeights>(std::move(made)));
  return weights_.back().second.get();
}

Result<std::unique_ptr<AttentionTimer>> AttentionTimer::create(const AttentionCase& c,
                                                               Timing timing, SharedMemory& shared,
                                                               device::Device& device,
                                                               device::Stream& stream,
                                                               const attention::Tuning& tuning) {
  std::unique_ptr<AttentionTimer> t(new AttentionTimer(c, timing, device, stream));
  t->tuning_ = tuning;
  t->lay_out();
  ATTUNE_RETURN_IF_ERROR(t->make_pools(shared));
  ATTUNE_RETURN_IF_ERROR(t->make_rows(shared));
  if (timing == Timing::kStep) ATTUNE_RETURN_IF_ERROR(t->make_neighbours(shared));
  return t;
}

Result<double> AttentionTimer::time_backend(attention::Backend& backend, int repeats) {
  ATTUNE_ASSIGN_OR_RETURN(const Prepared ready, prepare(backend));
  const auto once = [&] { backend.plan_on(*ready.plan, stream_); };
  const auto run = [&](int i) { this->run(backend, *ready.plan, i); };
  if (timing_ == Timing::kAlone) return time(run, once, repeats);
  const auto step = [&](int i, bool with_attention) {
    neighbours_->before(views_[i % views_.size()], q_.data());
    if (with_attention) run(i);
    neighbours_->after(out_.data(), i);
  };
  if (step_without_ == 0) {
    ATTUNE_ASSIGN_OR_RETURN(step_without_, time([&](int i) { step(i, false); }, [] {}, repeats));
  }
  ATTUNE_ASSIGN_OR_RETURN(const double with, time([&](int i) { step(i, true); }, once, repeats));
  if (with <= step_without_) return unsupported("too little to measure");
  return with - step_without_;
}

Result<AttentionChain> AttentionTimer::chain(attention::Backend& backend) {
  ATTUNE_ASSIGN_OR_RETURN(Prepared ready, prepare(backend));
  AttentionChain chain;
  chain.calls = calls();
  ATTUNE_ASSIGN_OR_RETURN(chain.graph, capture([&](int i) { run(backend, *ready.plan, i); },
                                               [&] { backend.plan_on(*ready.plan, stream_); }));
  chain.workspace = std::move(ready.workspace);
  chain.plan = std::move(ready.plan);
  return chain;
}

Result<AttentionTimer::Prepared> AttentionTimer::prepare(attention::Backend& backend) {
  attention::Limits limits = this->limits();
  limits.calls = {{layer(), views_[0], io()}};
  Prepared ready;
  ATTUNE_ASSIGN_OR_RETURN(ready.workspace,
                          device_.allocate(backend.workspace_bytes(limits), "attention scratch"));
  ready.plan = backend.make_plan(limits, ready.workspace.data());
  ATTUNE_RETURN_IF_ERROR(backend.plan(batch_, *ready.plan, stream_));
  return ready;
}

void AttentionTimer::run(const attention::Backend& backend, attention::Plan& plan, int i) const {
  backend.run(plan, layer(), views_[i % views_.size()], io(), stream_);
}

Result<double> AttentionTimer::time_read(int repeats) {
  const int64_t bytes = std::max<int64_t>(kReadUnit, kv_bytes() / kReadUnit * kReadUnit);
  if (bytes > pool_bytes_) return unsupported("too little to read");
  const ops::OpTable& table = ops::op_table(device_.info());
  return time(
      [&](int i) {
        table.bulk_read({.data = views_[i % views_.size()].base,
                         .bytes = bytes,
                         .unlikely = 0x9e3779b97f4a7c15u,
                         .sink = sink_.as<uint64_t>()},
                        stream_);
      },
      [] {}, repeats);
}

int64_t AttentionTimer::kv_bytes() const {
  return std::accumulate(kv_len_.begin(), kv_len_.end(), int64_t{0}) * token_bytes(case_);
}

double AttentionTimer::flops() const {
  double pairs = 0;
  for (int32_t kv : kv_len_) {
    const double q = case_.q_len;
    pairs += q * kv - q * (q - 1) / 2;
  }
  for (size_t i = 0; i < tree_.size(); ++i)  // what a chain would see of its own
    pairs -= double(i % case_.q_len + 1 - __builtin_popcountll(tree_[i]));
  return 2.0 * pairs * case_.heads.q * (case_.heads.qk_dim + case_.heads.v_dim);
}

void AttentionTimer::lay_out() {
  std::mt19937 random(1);
  std::uniform_int_distribution<int32_t> length(case_.q_len, case_.kv_len);
  q_indptr_.assign(1, 0);
  page_indptr_.assign(1, 0);
  int32_t rows = 0;
  for (int32_t s = 0; s < case_.seqs; ++s) {
    kv_len_.push_back(case_.ragged ? length(random) : case_.kv_len);
    q_indptr_.push_back(q_indptr_.back() + case_.q_len);
    kv_start_.push_back(std::exchange(rows, rows + kv_len_.back()));
    if (!case_.dense_rows())
      page_indptr_.push_back(page_indptr_.back() +
                             (kv_len_.back() + case_.page_size - 1) / case_.page_size);
  }
  page_slots_.resize(page_indptr_.back());
  std::iota(page_slots_.begin(), page_slots_.end(), 1);
  std::shuffle(page_slots_.begin(), page_slots_.end(), random);
  if (case_.tree) tree_ = tree_words(case_.seqs, case_.q_len);
}

Status AttentionTimer::make_pools(SharedMemory& shared) {
  const int32_t rows = kv_start_.back() + kv_len_.back(), slots = page_indptr_.back() + 1;
  const int64_t used =
      case_.dense_rows() ? rows * token_bytes(case_) : slots * geometry_of(case_).piece_bytes();
  pool_bytes_ = (used + 255) / 256 * 256;
  const int64_t cold = on_gpu(device_.info()) ? kGpuColdBytes : kCpuColdBytes;
  const int64_t count = std::clamp<int64_t>((cold + pool_bytes_ - 1) / pool_bytes_, 2, 256);
  ATTUNE_ASSIGN_OR_RETURN(char* memory, shared.values(case_.kv_dtype, count * pool_bytes_));
  const AttentionHeads& h = case_.heads;
  const int64_t k_bytes = int64_t{rows} * h.kv * h.qk_dim * elem_bytes(case_.kv_dtype);
  for (int64_t i = 0; i < count; ++i) {
    char* pool = memory + i * pool_bytes_;
    views_.push_back(case_.dense_rows() ? kv::make_ragged_view(pool, pool + k_bytes, case_.kv_dtype,
                                                               rows, h.kv, h.qk_dim, h.v_dim)
                                        : kv::make_view(geometry_of(case_), pool, slots));
  }
  return {};
}

Status AttentionTimer::make_neighbours(SharedMemory& shared) {
  std::vector<int64_t> slots;
  for (int32_t s = 0; s < case_.seqs; ++s) {
    const int32_t last = kv_len_[s] - 1;
    slots.push_back(int64_t{page_slots_[page_indptr_[s] + last / case_.page_size]} *
                        case_.page_size +
                    last % case_.page_size);
  }
  ATTUNE_ASSIGN_OR_RETURN(const OutputWeights* weights, shared.output_weights(case_.heads));
  ATTUNE_ASSIGN_OR_RETURN(neighbours_,
                          Neighbours::create(case_, slots, *weights, device_, stream_));
  return {};
}

Status AttentionTimer::make_rows(SharedMemory& shared) {
  const AttentionHeads& h = case_.heads;
  const int64_t tokens = q_indptr_.back();
  const DType act = activations_on(device_.info());
  ATTUNE_ASSIGN_OR_RETURN(q_,
                          device_.allocate(tokens * h.q * h.qk_dim * elem_bytes(act), "queries"));
  ATTUNE_ASSIGN_OR_RETURN(out_,
                          device_.allocate(tokens * h.q * h.v_dim * elem_bytes(act), "outputs"));
  ATTUNE_ASSIGN_OR_RETURN(sink_, device_.allocate(8, "a sink"));
  ATTUNE_RETURN_IF_ERROR(shared.fill(q_, act));
  batch_ = {.phase = case_.phase,
            .path = case_.dense_rows() ? attention::Path::kRagged
                    : h.mla            ? attention::Path::kAbsorbed
                                       : attention::Path::kPaged,
            .num_seqs = case_.seqs,
            .num_tokens = q_indptr_.back(),
            .max_q_len = case_.q_len,
            .max_kv_len = *std::max_element(kv_len_.begin(), kv_len_.end()),
            .q_indptr = q_indptr_.data(),
            .kv_len = kv_len_.data(),
            .page_size = case_.page_size,
            .tree_mask = case_.tree ? tree_.data() : nullptr};
  if (case_.dense_rows()) {
    batch_.kv_start = kv_start_.data();
  } else {
    batch_.page_indptr = page_indptr_.data();
    batch_.page_slots = page_slots_.data();
  }
  if (on_gpu(device_.info())) ATTUNE_RETURN_IF_ERROR(send_arrays());
  stream_.synchronize();
  return stream_.status();
}

Status AttentionTimer::send_arrays() {
  int64_t bytes = 0;
  for (const auto* array : {&q_indptr_, &kv_len_, &page_indptr_, &page_slots_, &kv_start_})
    bytes += engine::Staging::bytes_of(std::ssize(*array), 4);
  bytes += engine::Staging::bytes_of(std::ssize(tree_), 8);
  ATTUNE_ASSIGN_OR_RETURN(staging_, engine::Staging::create(device_, bytes, 1));
  staging_.begin(0);
  auto& arrays = batch_.on_device;
  arrays = {.q_indptr = staging_.add(q_indptr_), .kv_len = staging_.add(kv_len_)};
  if (case_.dense_rows()) {
    arrays.kv_start = staging_.add(kv_start_);
  } else {
    arrays.page_indptr = staging_.add(page_indptr_);
    arrays.page_slots = staging_.add(page_slots_);
  }
  if (case_.tree) arrays.tree_mask = staging_.add(tree_);
  staging_.send(stream_);
  return {};
}

attention::Limits AttentionTimer::limits() const {
  const AttentionHeads& h = case_.heads;
  return {.max_seqs = case_.seqs,
          .max_tokens = q_indptr_.back(),
          .max_kv_len = case_.kv_len,
          .q_heads = h.q,
          .kv_heads = h.kv,
          .qk_dim = h.qk_dim,
          .v_dim = h.v_dim,
          .page_size = views_[0].page_size,
          .num_slots = views_[0].num_slots,
          .threads = device_.info().threads,
          .tuning = tuning_};
}

attention::LayerParams AttentionTimer::layer() const {
  const AttentionHeads& h = case_.heads;
  return {.q_heads = h.q, .kv_heads = h.kv, .scale = 1.0f / std::sqrt(float(h.qk_dim))};
}

attention::Io AttentionTimer::io() const {
  const AttentionHeads& h = case_.heads;
  const DType act = activations_on(device_.info());
  return {.q = q_.data(),
          .q_dtype = act,
          .q_stride = int64_t{h.q} * h.qk_dim,
          .out = out_.data(),
          .out_dtype = act,
          .out_stride = int64_t{h.q} * h.v_dim};
}

int AttentionTimer::calls() const {
  const int least = !on_gpu(device_.info())          ? kCpuLaunches
                    : case_.phase == Phase::kPrefill ? kGpuPrefillLaunches
                                                     : kGpuLaunches;
  return std::max(least, static_cast<int>(views_.size()));
}

Result<std::unique_ptr<device::Graph>> AttentionTimer::capture(const std::function<void(int)>& fn,
                                                               const std::function<void()>& once) {
  stream_.launch([&] {
    once();
    fn(0);  // what libraries do once
  });
  stream_.synchronize();
  ATTUNE_RETURN_IF_ERROR(stream_.status());
  return stream_.capture("a case", [&] {
    stream_.launch([&fn, &once, calls = calls()] {
      for (int i = 0; i < calls; ++i) {
        if (i % kLayers == 0) once();
        fn(i);
      }
    });
  });
}

Result<double> AttentionTimer::time(const std::function<void(int)>& fn,
                                    const std::function<void()>& once, int repeats) {
  using Clock = std::chrono::steady_clock;
  ATTUNE_ASSIGN_OR_RETURN(const std::unique_ptr<device::Graph> graph, capture(fn, once));
  const auto replay = [&](int64_t times) {
    const auto start = Clock::now();
    for (int64_t i = 0; i < times; ++i) graph->launch(stream_);
    stream_.synchronize();
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  replay(1);
  const double first = replay(1);
  const auto times = static_cast<int64_t>(std::ceil(kMeasured / std::max(first, 1e-6)));
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) seconds.push_back(replay(times));
  ATTUNE_RETURN_IF_ERROR(stream_.status());
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return seconds[repeats / 2] / static_cast<double>(times * calls());
}

}  // namespace attune::bench
