// Speed of the attention backends for shapes of a step: GFLOP/s of prefill, GB/s of KV in decode.
// The layers' pools lie apart, as in a model, so that decode reads memory and not a cache that one
// layer fits into. attention_bench [backend] [isa] [threads] [phase]
//
// With "mla" as the phase: MLA's shapes against MHA's, all taking turns, and what the first reach
// of the second's rates. A decode of MHA is bound by memory, one of MLA on a CPU by arithmetic
// (each key of 576 elements serves all heads), so both rates are compared and the larger ratio
// counts.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "attention/registry.h"
#include "base/check.h"

namespace attune::attention {
namespace {

using tensor::DType;

struct Shape {
  const char* name;
  int32_t q_heads, kv_heads, qk_dim, v_dim, layers;
  Path path = Path::kPaged;
};

struct Load {
  Phase phase;
  int32_t seqs, q_len, kv_len;
};

double now(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

// Best of the rounds. On a busy machine the processor time of one thread says more than the wall's.
struct Seconds {
  double wall = 1e9, cpu = 1e9;
};

// A batch over the pools of all layers of a shape, to be run again and again.
class Case {
 public:
  Case(Backend& backend, device::Device& device, device::Stream& stream, const Shape& shape,
       DType dtype, const Load& load)
      : backend_(backend), stream_(stream), shape_(shape), dtype_(dtype), load_(load) {
    make_pools(device);
    const int32_t pages = (load.kv_len + kPage - 1) / kPage;
    page_slots_.resize(load.seqs * pages);
    std::iota(page_slots_.begin(), page_slots_.end(), 1);
    std::shuffle(page_slots_.begin(), page_slots_.end(), std::mt19937(1));
    for (int32_t s = 0; s <= load.seqs; ++s) {
      q_indptr_.push_back(s * load.q_len);
      page_indptr_.push_back(s * pages);
      kv_start_.push_back(s * load.kv_len);
    }
    kv_len_.assign(load.seqs, load.kv_len);
    const bool rows = reads_rows(shape.path);
    const Limits limits{.max_seqs = load.seqs,
                        .max_tokens = load.seqs * load.q_len,
                        .max_kv_len = load.kv_len,
                        .q_heads = shape.q_heads,
                        .kv_heads = shape.kv_heads,
                        .qk_dim = shape.qk_dim,
                        .v_dim = shape.v_dim,
                        .page_size = rows ? load.seqs * load.kv_len : kPage,
                        .num_slots = views_[0].num_slots,
                        .threads = device.info().threads};
    workspace_ = *device.allocate(backend.workspace_bytes(limits), "the workspace");
    plan_ = backend.make_plan(limits, workspace_.data());
    q_.resize(int64_t{limits.max_tokens} * shape.q_heads * shape.qk_dim);
    for (size_t i = 0; i < q_.size(); ++i) q_[i] = float(int(i * 37 % 101) - 50) * 0.02f;
    out_.resize(int64_t{limits.max_tokens} * shape.q_heads * shape.v_dim);
  }

  // Plans once and runs all layers.
  void round() {
    const Batch batch{.phase = load_.phase,
                      .path = shape_.path,
                      .num_seqs = load_.seqs,
                      .num_tokens = load_.seqs * load_.q_len,
                      .max_q_len = load_.q_len,
                      .max_kv_len = load_.kv_len,
                      .q_indptr = q_indptr_.data(),
                      .kv_len = kv_len_.data(),
                      .page_indptr = page_indptr_.data(),
                      .page_slots = page_slots_.data(),
                      .page_size = kPage,
                      .kv_start = kv_start_.data()};
    const Io io{.q = q_.data(),
                .q_stride = int64_t{shape_.q_heads} * shape_.qk_dim,
                .out = out_.data(),
                .out_stride = int64_t{shape_.q_heads} * shape_.v_dim};
    const LayerParams layer{.q_heads = shape_.q_heads,
                            .kv_heads = shape_.kv_heads,
                            .scale = 1.0f / std::sqrt(float(shape_.qk_dim))};
    const double wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    ATTUNE_CHECK(backend_.plan(batch, *plan_, stream_).ok());
    stream_.launch([&] {
      backend_.plan_on(*plan_, stream_);
      for (const kv::PagedKvView& view : views_) backend_.run(*plan_, layer, view, io, stream_);
    });
    stream_.synchronize();
    best_.wall = std::min(best_.wall, now(CLOCK_MONOTONIC) - wall);
    best_.cpu = std::min(best_.cpu, now(CLOCK_PROCESS_CPUTIME_ID) - cpu);
  }

  // 1e9 operations of the two products, and bytes that must be read, a second of processor time.
  double gflops() const {
    const double rows = double(load_.seqs) * load_.q_len * shape_.q_heads * shape_.layers;
    const double keys = load_.kv_len - (load_.q_len - 1) / 2.0;  // mean of what a query sees
    return 2.0 * rows * keys * (shape_.qk_dim + shape_.v_dim) / best_.cpu * 1e-9;
  }
  double gbytes() const {
    const int32_t width = shape_.qk_dim + (shape_.path == Path::kAbsorbed ? 0 : shape_.v_dim);
    return double(load_.seqs) * load_.kv_len * shape_.kv_heads * width * shape_.layers *
           double(tensor::dtype_bytes(dtype_, 1)) / best_.cpu * 1e-9;
  }
  double wall() const { return best_.wall; }

  std::string text() const {
    char line[200];
    std::snprintf(line, sizeof line,
                  "%-12s %-8s %-7s seqs %2d q %3d kv %5d  wall %8.3f ms  cpu %8.3f ms  per cpu "
                  "second: %6.1f GFLOP %6.2f GB",
                  shape_.name, tensor::dtype_name(dtype_), phase_name(load_.phase), load_.seqs,
                  load_.q_len, load_.kv_len, best_.wall * 1e3, best_.cpu * 1e3, gflops(), gbytes());
    return line;
  }

 private:
  static constexpr int32_t kPage = 16;

  void make_pools(device::Device& device) {
    const Shape& s = shape_;
    if (reads_rows(s.path)) {
      const int32_t rows = load_.seqs * load_.kv_len;
      const int64_t e = tensor::dtype_bytes(dtype_, 1);
      const int64_t k = int64_t{rows} * s.kv_heads * s.qk_dim * e,
                    v = int64_t{rows} * s.kv_heads * s.v_dim * e;
      pool_ = *device.allocate((k + v) * s.layers, "dense keys and values");
      for (int32_t i = 0; i < s.layers; ++i) {
        char* at = pool_.as<char>() + i * (k + v);
        views_.push_back(
            kv::make_ragged_view(at, at + k, dtype_, rows, s.kv_heads, s.qk_dim, s.v_dim));
      }
    } else {
      const int32_t slots = load_.seqs * ((load_.kv_len + kPage - 1) / kPage) + 1;
      const kv::KvGeometry g{
          {s.kv_heads, s.qk_dim, s.v_dim, dtype_, s.path == Path::kAbsorbed}, s.layers, kPage};
      pool_ = *device.allocate(g.page_bytes() * slots, "the KV pool");
      for (int32_t i = 0; i < s.layers; ++i)
        views_.push_back(kv::make_view(g, pool_.as<char>() + i * g.piece_bytes() * slots, slots));
    }
    fill();
  }

  void fill() {
    std::minstd_rand rng(1);
    if (dtype_ == DType::kF32) {
      float* p = pool_.as<float>();
      for (int64_t i = 0; i < pool_.bytes() / 4; ++i) p[i] = float(rng() % 2001) / 1000.0f - 1.0f;
    } else {
      uint16_t* p = pool_.as<uint16_t>();  // 1.0 to 2.0 in bfloat16, about 2 to 3 in float16
      for (int64_t i = 0; i < pool_.bytes() / 2; ++i) p[i] = uint16_t(0x3f80 + rng() % 128);
    }
  }

  Backend& backend_;
  device::Stream& stream_;
  const Shape shape_;
  const DType dtype_;
  const Load load_;
  device::Buffer pool_, workspace_;
  std::vector<kv::PagedKvView> views_;
  std::vector<int32_t> page_slots_, q_indptr_, page_indptr_, kv_start_, kv_len_;
  std::vector<float> q_, out_;
  std::unique_ptr<Plan> plan_;
  Seconds best_;
};

struct Bench {
  Backend& backend;
  device::Device& device;
  device::Stream& stream;

  void run_all(const std::string& phase) {
    const Shape shapes[] = {{"smollm2", 9, 3, 64, 64, 30},
                            {"mha-64", 8, 8, 64, 64, 8},
                            {"gqa4-128", 8, 2, 128, 128, 8}};
    const Load loads[] = {{Phase::kPrefill, 1, 128, 128},  {Phase::kPrefill, 1, 512, 512},
                          {Phase::kPrefill, 1, 256, 4096}, {Phase::kDecode, 1, 1, 64},
                          {Phase::kDecode, 1, 1, 1024},    {Phase::kDecode, 1, 1, 8192},
                          {Phase::kDecode, 8, 1, 1024},    {Phase::kDecode, 32, 1, 512}};
    for (const Shape& shape : shapes)
      for (DType kv : {DType::kF32, DType::kBF16})
        for (const Load& load : loads) {
          if (!phase.empty() && phase != phase_name(load.phase)) continue;
          Case c(backend, device, stream, shape, kv, load);
          double spent = 0;
          for (int round = 0; round < 200 && (round < 3 || spent < 0.5); ++round) {
            c.round();
            spent += c.wall();
          }
          std::printf("%s\n", c.text().c_str());
        }
  }

  // Prefill, decode from one sequence, decode from several: MHA's shapes of each, then MLA's.
  void run_mla(DType kv) {
    const Shape mha[] = {{"mha-128", 16, 16, 128, 128, 2}, {"gqa4-128", 16, 4, 128, 128, 4}};
    const Shape ragged{"ragged", 16, 16, 192, 128, 2, Path::kRagged};
    const Shape absorbed[] = {{"absorbed-16", 16, 1, 576, 512, 4, Path::kAbsorbed},
                              {"absorbed-128", 128, 1, 576, 512, 1, Path::kAbsorbed}};
    const Load prefill[] = {{Phase::kPrefill, 1, 512, 512}, {Phase::kPrefill, 1, 128, 2048}};
    const Load decode[] = {{Phase::kDecode, 1, 1, 4096}, {Phase::kDecode, 8, 1, 1024}};
    std::vector<std::unique_ptr<Case>> old, fresh;
    const auto add = [&](std::vector<std::unique_ptr<Case>>* to, const Shape& shape,
                         const Load& load) {
      to->push_back(std::make_unique<Case>(backend, device, stream, shape, kv, load));
    };
    for (const Shape& shape : mha)
      for (const auto& loads : {prefill, decode})
        for (int i = 0; i < 2; ++i) add(&old, shape, loads[i]);
    for (const Load& load : prefill) add(&fresh, ragged, load);
    for (const Shape& shape : absorbed)
      for (const auto& loads : {prefill, decode})
        for (int i = 0; i < 2; ++i) add(&fresh, shape, loads[i]);
    for (int round = 0; round < 8; ++round) {
      for (const auto& c : old) c->round();
      for (const auto& c : fresh) c->round();
    }
    double flops = 0, bytes = 0, lowest = 1e9;
    for (const auto& c : old) {
      flops = std::max(flops, c->gflops());
      bytes = std::max(bytes, c->gbytes());
      std::printf("%s\n", c->text().c_str());
    }
    for (const auto& c : fresh) {
      const double compute = c->gflops() / flops, memory = c->gbytes() / bytes;
      lowest = std::min(lowest, std::max(compute, memory));
      std::printf("%s  ratio %.2f (%s)\n", c->text().c_str(), std::max(compute, memory),
                  compute > memory ? "arithmetic" : "bandwidth");
    }
    std::printf("MHA at best: %.1f GFLOP, %.2f GB a second. MLA's lowest ratio: %.2f\n", flops,
                bytes, lowest);
  }
};

int run_bench(const std::string& name, const std::string& isa, int threads,
              const std::string& phase) {
  auto device = device::create_cpu_device(threads, isa);
  const BackendEntry* entry = find_backend(name);
  if (!device.ok() || !entry || !entry->create) {
    std::fprintf(stderr, "attention_bench: no such backend or level here: %s %s\n", name.c_str(),
                 isa.c_str());
    return 2;
  }
  std::printf("%s on %s\n", name.c_str(), (*device)->info().name.c_str());
  const auto stream = (*device)->create_stream();
  const auto backend = entry->create(**device);
  Bench bench{*backend, **device, *stream};
  if (phase == "mla") {
    for (DType kv : {DType::kF32, DType::kBF16}) bench.run_mla(kv);
  } else {
    bench.run_all(phase);
  }
  return 0;
}

}  // namespace
}  // namespace attune::attention

int main(int argc, char** argv) {
  return attune::attention::run_bench(argc > 1 ? argv[1] : "cpu", argc > 2 ? argv[2] : "auto",
                                      argc > 3 ? std::atoi(argv[3]) : 0, argc > 4 ? argv[4] : "");
}
