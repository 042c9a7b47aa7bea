#include "bench/attention.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>

#include "attention/arch.h"
#include "attention/registry.h"
#include "base/log.h"
#include "bench/attention_neighbours.h"
#include "engine/staging.h"
#include "ops/convert.h"
#include "ops/ops.h"

namespace attune::bench {
namespace {

using attention::arch_of;
using attention::Backend;
using attention::BackendEntry;
using attention::Batch;
using attention::Capabilities;
using attention::Phase;
using base::cat;
using tensor::DType;

// More than any cache holds.
constexpr int64_t kGpuColdBytes = 768 << 20, kCpuColdBytes = 96 << 20;
constexpr int kGpuLaunches = 24, kGpuPrefillLaunches = 4, kCpuLaunches = 4;
constexpr double kMeasured = 0.01;  // seconds of one repeat at least
constexpr int64_t kReadUnit = 16384;
constexpr int64_t kRandomBytes = 8 << 20;  // repeated

bool on_gpu(const device::DeviceInfo& info) {
  return info.kind == device::Kind::kCuda;
}

template <typename T>
bool has(const std::vector<T>& all, const T& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

kv::KvGeometry geometry_of(const AttentionCase& c) {
  kv::KvGeometry g;
  g.layer = {c.heads.kv, c.heads.qk_dim, c.heads.v_dim, c.kv_dtype, c.heads.mla};
  g.layers = 1;
  g.page_size = c.page_size;
  return g;
}

// What the cases of a run share, so that each begins at once.
class Shared {
 public:
  Shared(device::Device& device, device::Stream& stream) : device_(device), stream_(stream) {}

  // Memory full of random values of the type, at least `bytes`; the next call's takes its place.
  Result<char*> values(DType dtype, int64_t bytes) {
    const bool large_enough = bytes <= memory_.bytes();
    if (!large_enough) {
      memory_.reset();
      ATTUNE_ASSIGN_OR_RETURN(memory_, device_.allocate(bytes, "KV pools"));
    }
    if (!large_enough || dtype != dtype_) ATTUNE_RETURN_IF_ERROR(fill(memory_, dtype));
    dtype_ = dtype;
    return memory_.as<char>();
  }
  // Uniform in [-1, 1).
  Status fill(device::Buffer& buffer, DType dtype) {
    const std::vector<char> some = random_values(dtype, std::min(buffer.bytes(), kRandomBytes));
    char* to = buffer.as<char>();
    stream_.copy(to, some.data(), std::ssize(some));
    for (int64_t at = std::ssize(some); at < buffer.bytes(); at *= 2)
      stream_.copy(to + at, to, std::min(at, buffer.bytes() - at));
    stream_.synchronize();
    return stream_.status();
  }
  Result<const OutputWeights*> output_weights(const AttentionHeads& heads) {
    for (const auto& [whose, weights] : weights_)
      if (whose == heads) return weights.get();
    ATTUNE_ASSIGN_OR_RETURN(OutputWeights made, OutputWeights::create(heads, device_, stream_));
    weights_.emplace_back(heads, std::make_unique<OutputWeights>(std::move(made)));
    return weights_.back().second.get();
  }

 private:
  static std::vector<char> random_values(DType dtype, int64_t bytes) {
    uint64_t state = 88172645463325252u;
    const auto next = [&] {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      return float(int32_t(state >> 40) - (1 << 23)) * 0x1p-23f;
    };
    std::vector<float> values(bytes / tensor::dtype_bytes(dtype, 1));
    for (float& v : values) v = next();
    std::vector<char> out(bytes);
    ops::cpu::convert_row(values.data(), std::ssize(values), dtype, out.data());
    return out;
  }

  device::Device& device_;
  device::Stream& stream_;
  device::Buffer memory_;
  DType dtype_ = DType::kF32;  // of what is in it
  std::vector<std::pair<AttentionHeads, std::unique_ptr<OutputWeights>>> weights_;
};

// One case on one device: pools, arrays, queries. Backends take turns on it.
class Bench {
 public:
  static Result<std::unique_ptr<Bench>> create(const AttentionCase& c, Shared& shared,
                                               device::Device& device, device::Stream& stream) {
    std::unique_ptr<Bench> b(new Bench(c, device, stream));
    b->lay_out();
    ATTUNE_RETURN_IF_ERROR(b->make_pools(shared));
    ATTUNE_RETURN_IF_ERROR(b->make_rows(shared));
    if (b->in_a_step()) ATTUNE_RETURN_IF_ERROR(b->make_neighbours(shared));
    return b;
  }

  // Decode on a GPU: between its neighbours, less what these take without it, which is measured
  // once. Else alone.
  Result<double> time_backend(Backend& backend, int repeats) {
    const AttentionHeads& h = case_.heads;
    const DType act = on_gpu(device_.info()) ? DType::kBF16 : DType::kF32;
    const attention::LayerParams layer{
        .q_heads = h.q, .kv_heads = h.kv, .scale = 1.0f / std::sqrt(float(h.qk_dim))};
    const attention::Io io{.q = q_.data(),
                           .q_dtype = act,
                           .q_stride = int64_t{h.q} * h.qk_dim,
                           .out = out_.data(),
                           .out_dtype = act,
                           .out_stride = int64_t{h.q} * h.v_dim};
    attention::Limits limits = this->limits();
    limits.calls = {{layer, views_[0], io}};
    ATTUNE_ASSIGN_OR_RETURN(device::Buffer workspace,
                            device_.allocate(backend.workspace_bytes(limits), "attention scratch"));
    const auto plan = backend.make_plan(limits, workspace.data());
    ATTUNE_RETURN_IF_ERROR(backend.plan(batch_, *plan, stream_));
    const auto once = [&] { backend.plan_on(*plan, stream_); };
    const auto run = [&](int i) {
      backend.run(*plan, layer, views_[i % views_.size()], io, stream_);
    };
    if (!in_a_step()) return time(run, once, repeats);
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

  Result<double> time_read(int repeats) {
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

  // K and V of every key once. A prefix that several queries share is read once.
  int64_t kv_bytes() const {
    const kv::KvGeometry g = geometry_of(case_);
    return std::accumulate(kv_len_.begin(), kv_len_.end(), int64_t{0}) * g.piece_bytes() /
           g.page_size;
  }
  // Two products of 2 flop for each query and key that it sees.
  double flops() const {
    double pairs = 0;
    for (int32_t kv : kv_len_) {
      const double q = case_.q_len;
      pairs += q * kv - q * (q - 1) / 2;
    }
    return 2.0 * pairs * case_.heads.q * (case_.heads.qk_dim + case_.heads.v_dim);
  }
  const Batch& batch() const { return batch_; }

 private:
  Bench(const AttentionCase& c, device::Device& device, device::Stream& stream)
      : case_(c), device_(device), stream_(stream) {}

  void lay_out() {
    std::mt19937 random(1);
    std::uniform_int_distribution<int32_t> length(case_.q_len, case_.kv_len);
    q_indptr_.assign(1, 0);
    page_indptr_.assign(1, 0);
    for (int32_t s = 0; s < case_.seqs; ++s) {
      kv_len_.push_back(case_.ragged ? length(random) : case_.kv_len);
      q_indptr_.push_back(q_indptr_.back() + case_.q_len);
      page_indptr_.push_back(page_indptr_.back() +
                             (kv_len_.back() + case_.page_size - 1) / case_.page_size);
    }
    page_slots_.resize(page_indptr_.back());
    std::iota(page_slots_.begin(), page_slots_.end(), 1);
    std::shuffle(page_slots_.begin(), page_slots_.end(), random);
  }

  bool in_a_step() const { return on_gpu(device_.info()) && case_.phase == Phase::kDecode; }

  Status make_pools(Shared& shared) {
    const kv::KvGeometry g = geometry_of(case_);
    const int32_t slots = page_indptr_.back() + 1;
    pool_bytes_ = (slots * g.piece_bytes() + 255) / 256 * 256;
    const int64_t cold = on_gpu(device_.info()) ? kGpuColdBytes : kCpuColdBytes;
    const int64_t count = std::clamp<int64_t>((cold + pool_bytes_ - 1) / pool_bytes_, 2, 256);
    ATTUNE_ASSIGN_OR_RETURN(char* memory, shared.values(case_.kv_dtype, count * pool_bytes_));
    for (int64_t i = 0; i < count; ++i)
      views_.push_back(kv::make_view(g, memory + i * pool_bytes_, slots));
    return {};
  }

  Status make_neighbours(Shared& shared) {
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

  Status make_rows(Shared& shared) {
    const AttentionHeads& h = case_.heads;
    const int64_t tokens = q_indptr_.back();
    const int64_t elem = on_gpu(device_.info()) ? 2 : 4;
    ATTUNE_ASSIGN_OR_RETURN(q_, device_.allocate(tokens * h.q * h.qk_dim * elem, "queries"));
    ATTUNE_ASSIGN_OR_RETURN(out_, device_.allocate(tokens * h.q * h.v_dim * elem, "outputs"));
    ATTUNE_ASSIGN_OR_RETURN(sink_, device_.allocate(8, "a sink"));
    ATTUNE_RETURN_IF_ERROR(shared.fill(q_, elem == 2 ? DType::kBF16 : DType::kF32));
    batch_ = {.phase = case_.phase,
              .path = h.mla ? attention::Path::kAbsorbed : attention::Path::kPaged,
              .num_seqs = case_.seqs,
              .num_tokens = q_indptr_.back(),
              .max_q_len = case_.q_len,
              .max_kv_len = *std::max_element(kv_len_.begin(), kv_len_.end()),
              .q_indptr = q_indptr_.data(),
              .kv_len = kv_len_.data(),
              .page_indptr = page_indptr_.data(),
              .page_slots = page_slots_.data(),
              .page_size = case_.page_size};
    if (on_gpu(device_.info())) {
      const int64_t ints = 3 * (case_.seqs + 17) + page_indptr_.back() + 64;
      ATTUNE_ASSIGN_OR_RETURN(staging_, engine::Staging::create(device_, ints * 4, 1));
      staging_.begin(0);
      batch_.on_device = {.q_indptr = staging_.add(q_indptr_),
                          .kv_len = staging_.add(kv_len_),
                          .page_indptr = staging_.add(page_indptr_),
                          .page_slots = staging_.add(page_slots_)};
      staging_.send(stream_);
    }
    stream_.synchronize();
    return stream_.status();
  }

  attention::Limits limits() const {
    const AttentionHeads& h = case_.heads;
    return {.max_seqs = case_.seqs,
            .max_tokens = q_indptr_.back(),
            .max_kv_len = case_.kv_len,
            .q_heads = h.q,
            .kv_heads = h.kv,
            .qk_dim = h.qk_dim,
            .v_dim = h.v_dim,
            .page_size = case_.page_size,
            .num_slots = views_[0].num_slots,
            .threads = device_.info().threads};
  }

  // Seconds of one call of fn, the median of `repeats` measurements.
  Result<double> time(const std::function<void(int)>& fn, const std::function<void()>& once,
                      int repeats) {
    using Clock = std::chrono::steady_clock;
    const int least = !on_gpu(device_.info())          ? kCpuLaunches
                      : case_.phase == Phase::kPrefill ? kGpuPrefillLaunches
                                                       : kGpuLaunches;
    const int launches = std::max(least, static_cast<int>(views_.size()));
    stream_.launch([&] {
      once();
      fn(0);  // what libraries do once
    });
    stream_.synchronize();
    ATTUNE_RETURN_IF_ERROR(stream_.status());
    ATTUNE_ASSIGN_OR_RETURN(const std::unique_ptr<device::Graph> graph,
                            stream_.capture("a case", [&] {
                              stream_.launch([&fn, launches] {
                                for (int i = 0; i < launches; ++i) fn(i);
                              });
                            }));
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
    return seconds[repeats / 2] / static_cast<double>(times * launches);
  }

  const AttentionCase case_;
  device::Device& device_;
  device::Stream& stream_;
  std::vector<int32_t> q_indptr_, kv_len_, page_indptr_, page_slots_;
  std::vector<kv::PagedKvView> views_;  // pools that no cache holds together
  int64_t pool_bytes_ = 0;
  device::Buffer q_, out_, sink_;
  engine::Staging staging_;
  Batch batch_;
  std::unique_ptr<Neighbours> neighbours_;
  double step_without_ = 0;  // seconds of the neighbours alone; 0: not measured yet
};

// Why a backend is not asked at all; empty: it is.
std::string cannot(const Capabilities& c, const AttentionCase& a, const device::DeviceInfo& info) {
  const attention::HeadDims dims{a.heads.qk_dim, a.heads.v_dim};
  const auto kind = a.heads.mla ? attention::AttentionKind::kMla : attention::AttentionKind::kMha;
  const DType act = on_gpu(info) ? DType::kBF16 : DType::kF32;
  if (!has(c.archs, arch_of(info))) return "not for this device";
  if (!has(c.kinds, kind)) return cat("not for ", attention::kind_name(kind));
  if (!has(c.phases, a.phase)) return cat("not for ", attention::phase_name(a.phase));
  if (!c.head_dims.empty() && !has(c.head_dims, dims)) return "not these head sizes";
  if (!has(c.kv_dtypes, a.kv_dtype)) return cat("no ", tensor::dtype_name(a.kv_dtype), " cache");
  if (c.kv_as_q && a.kv_dtype != act) return "KV of the queries' type alone";
  if (!has(c.q_dtypes, act)) return cat("no ", tensor::dtype_name(act), " queries");
  if (!c.page_sizes.empty() && !has(c.page_sizes, a.page_size)) return "not this page size";
  if (a.heads.mla && a.phase == Phase::kPrefill &&
      !attention::takes_path(c, attention::Path::kAbsorbed))
    return "does not take the absorbed path";
  return "";
}

struct Candidate {
  const BackendEntry* entry;
  std::unique_ptr<Backend> backend;
};

Result<std::vector<Candidate>> candidates(const AttentionConfig& config, device::Device& device) {
  for (const std::string& name : config.backends)
    if (!attention::find_backend(name))
      return invalid_argument(cat("--backends: there is no backend '", name, "'"));
  std::vector<Candidate> out;
  for (const BackendEntry& entry : attention::backends()) {
    const std::string& name = entry.capabilities.name;
    const bool named = has(config.backends, name);
    // The oracle is a hundred times slower: only on request.
    if (config.backends.empty() ? entry.capabilities.oracle : !named) continue;
    const bool here = has(entry.capabilities.archs, arch_of(device.info()));
    if (named && (!entry.create || !here))
      return unsupported(cat("--backends ", name, ": ",
                             entry.create ? "it does not run on this device" : entry.unavailable));
    if (entry.create && here) out.push_back({&entry, entry.create(device)});
  }
  return out;
}

}  // namespace

std::vector<AttentionCase> attention_grid(const AttentionConfig& config,
                                          const device::DeviceInfo& device) {
  const bool gpu = on_gpu(device);
  struct Load {
    Phase phase;
    int32_t seqs, q_len, kv_len;
    bool ragged = false;
  };
  const AttentionHeads gqa{32, 8, 128, 128}, wide{64, 8, 128, 128}, mha{32, 32, 128, 128};
  const AttentionHeads small{9, 3, 64, 64}, mla16{16, 1, 576, 512, true};
  const AttentionHeads mla128{128, 1, 576, 512, true};
  constexpr Phase kDecode = Phase::kDecode, kPrefill = Phase::kPrefill;
  std::vector<std::pair<AttentionHeads, Load>> all;
  if (gpu) {
    for (const Load& l : {Load{kDecode, 1, 1, 1024},
                          {kDecode, 1, 1, 8192},
                          {kDecode, 1, 1, 32768},
                          {kDecode, 4, 1, 1024},
                          {kDecode, 8, 1, 4096},
                          {kDecode, 16, 1, 2048},
                          {kDecode, 64, 1, 4096},
                          {kDecode, 128, 1, 2048},
                          {kDecode, 256, 1, 1024},
                          {kDecode, 64, 1, 8192, true},
                          {kPrefill, 16, 1024, 1024},
                          {kPrefill, 4, 4096, 4096},
                          {kPrefill, 1, 16384, 16384},
                          {kPrefill, 8, 512, 8704}})
      all.push_back({gqa, l});
    all.push_back({wide, {kDecode, 64, 1, 4096}});
    all.push_back({mha, {kDecode, 64, 1, 2048}});
    all.push_back({small, {kDecode, 64, 1, 1024}});
    for (const AttentionHeads& h : {mla16, mla128})
      for (const Load& l : {Load{kDecode, 1, 1, 8192},
                            {kDecode, 16, 1, 4096},
                            {kDecode, 64, 1, 4096},
                            {kDecode, 128, 1, 2048},
                            {kPrefill, 8, 128, 2176}})
        all.push_back({h, l});
  } else {
    for (const Load& l : {Load{kDecode, 1, 1, 1024},
                          {kDecode, 8, 1, 1024},
                          {kDecode, 32, 1, 512},
                          {kPrefill, 1, 512, 512},
                          {kPrefill, 1, 256, 2048}})
      for (const AttentionHeads& h : {small, gqa}) all.push_back({h, l});
    all.push_back({mla16, {kDecode, 8, 1, 1024}});
  }
  std::vector<std::string> dtypes = config.kv_dtypes;
  if (dtypes.empty()) dtypes = {gpu ? "bfloat16" : "float32"};
  std::vector<AttentionCase> grid;
  for (const std::string& dtype : dtypes)
    for (const int32_t page : config.page_sizes)
      for (const auto& [heads, load] : all) {
        if (heads.mla && !config.mla) continue;
        if (!config.phases.empty() &&
            !has(config.phases, std::string(attention::phase_name(load.phase))))
          continue;
        grid.push_back({.heads = heads,
                        .phase = load.phase,
                        .seqs = load.seqs,
                        .q_len = load.q_len,
                        .kv_len = load.kv_len,
                        .ragged = load.ragged,
                        .page_size = page,
                        .kv_dtype = tensor::parse_dtype(dtype).value_or(DType::kBF16)});
      }
  return grid;
}

Status run_attention(const AttentionConfig& config, device::Device& device,
                     const std::function<void(const AttentionRow&)>& told) {
  for (const std::string& dtype : config.kv_dtypes)
    if (!tensor::parse_dtype(dtype) || tensor::dtype_info(*tensor::parse_dtype(dtype)).quantized)
      return invalid_argument(cat("--kv-dtypes: '", dtype, "' is no type of a cache"));
  ATTUNE_ASSIGN_OR_RETURN(const std::vector<Candidate> all, candidates(config, device));
  const std::unique_ptr<device::Stream> stream = device.create_stream();
  ATTUNE_RETURN_IF_ERROR(stream->status());
  stream->set_pdl(config.pdl);
  Shared shared(device, *stream);
  for (const AttentionCase& c : attention_grid(config, device.info())) {
    ATTUNE_ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench,
                            Bench::create(c, shared, device, *stream));
    const auto read = bench->time_read(config.repeats);
    for (const Candidate& candidate : all) {
      AttentionRow row{.what = c,
                       .backend = candidate.entry->capabilities.name,
                       .read_seconds = read.ok() ? *read : 0,
                       .kv_bytes = bench->kv_bytes(),
                       .flops = bench->flops(),
                       .refused = cannot(candidate.entry->capabilities, c, device.info())};
      if (row.refused.empty()) {
        const attention::Support support = candidate.backend->supports(bench->batch());
        if (!support.ok()) row.refused = support.reasons[0];
      }
      if (row.refused.empty()) {
        const auto seconds = bench->time_backend(*candidate.backend, config.repeats);
        if (seconds.ok()) row.seconds = *seconds;
        if (!seconds.ok()) row.refused = seconds.status().message();
        ATTUNE_RETURN_IF_ERROR(stream->status());
      }
      told(row);
    }
  }
  return {};
}

std::string to_json(const AttentionRow& r, const device::DeviceInfo& device) {
  const AttentionCase& c = r.what;
  char figures[256];
  std::snprintf(figures, sizeof figures,
                "\"us\":%.2f,\"read_us\":%.2f,\"gb_per_s\":%.1f,\"tflop_per_s\":%.2f",
                r.seconds * 1e6, r.read_seconds * 1e6, r.kv_bytes / r.seconds / 1e9,
                r.flops / r.seconds / 1e12);
  return cat("{\"device\":\"", device.name, "\",\"arch\":\"", attention::arch_name(arch_of(device)),
             "\",\"backend\":\"", r.backend, "\",\"kind\":\"", c.heads.mla ? "mla" : "mha",
             "\",\"phase\":\"", attention::phase_name(c.phase), "\",\"q_heads\":", c.heads.q,
             ",\"kv_heads\":", c.heads.kv, ",\"qk_dim\":", c.heads.qk_dim,
             ",\"v_dim\":", c.heads.v_dim, ",\"kv_dtype\":\"", tensor::dtype_name(c.kv_dtype),
             "\",\"page_size\":", c.page_size, ",\"seqs\":", c.seqs, ",\"q_len\":", c.q_len,
             ",\"kv_len\":", c.kv_len, ",\"ragged\":", c.ragged ? "true" : "false", ",", figures,
             "}");
}

std::string attention_header() {
  return "phase    heads    dim      batch           page  KV        backend          us     GB/s  "
         "TFLOP/s  of a read";
}

std::string to_line(const AttentionRow& r) {
  const AttentionCase& c = r.what;
  const std::string batch =
      c.q_len == 1
          ? cat(c.seqs, "x", c.ragged ? "1.." : "", c.kv_len)
          : cat(c.seqs, "x", c.q_len, c.kv_len > c.q_len ? cat("+", c.kv_len - c.q_len) : "");
  char line[256];
  std::snprintf(line, sizeof line, "%-8s %-8s %-8s %-15s %4d  %-9s %-14s ",
                attention::phase_name(c.phase), cat(c.heads.q, "/", c.heads.kv).c_str(),
                cat(c.heads.qk_dim, "/", c.heads.v_dim).c_str(), batch.c_str(), c.page_size,
                tensor::dtype_name(c.kv_dtype), r.backend.c_str());
  char figures[128];
  if (!r.refused.empty()) return cat(line, r.refused);
  std::snprintf(figures, sizeof figures, "%8.1f %8.0f %8.1f  %8.3f", r.seconds * 1e6,
                r.kv_bytes / r.seconds / 1e9, r.flops / r.seconds / 1e12,
                r.read_seconds / r.seconds);
  return cat(line, figures);
}

}  // namespace attune::bench
