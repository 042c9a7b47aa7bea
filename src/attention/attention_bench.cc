// Speed of the attention backends for shapes of a step: GFLOP/s of prefill, GB/s of KV in decode.
// The layers' pools lie apart, as in a model, so that decode reads memory and not a cache that one
// layer fits into. attention_bench [backend] [isa] [threads] [phase]
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
  int32_t q_heads, kv_heads, dim, layers;
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

class Bench {
 public:
  Bench(Backend& backend, device::Device& device, device::Stream& stream)
      : backend_(backend), device_(device), stream_(stream) {}

  void run(const Shape& shape, DType kv_dtype, const Load& load) {
    const int32_t page = 16, pages = (load.kv_len + page - 1) / page;
    const int32_t slots = load.seqs * pages + 1;
    const kv::KvGeometry g{{shape.kv_heads, shape.dim, shape.dim, kv_dtype}, shape.layers, page};
    auto pool = device_.allocate(g.page_bytes() * slots, "the KV pool");
    ATTUNE_CHECK(pool.ok());
    fill(*pool, kv_dtype);
    std::vector<kv::PagedKvView> views;
    for (int32_t i = 0; i < shape.layers; ++i)
      views.push_back(kv::make_view(g, pool->as<char>() + i * g.piece_bytes() * slots, slots));

    std::vector<int32_t> page_slots(slots - 1), q_indptr(load.seqs + 1), page_indptr(load.seqs + 1);
    std::iota(page_slots.begin(), page_slots.end(), 1);
    std::shuffle(page_slots.begin(), page_slots.end(), std::mt19937(1));
    for (int32_t s = 0; s <= load.seqs; ++s) {
      q_indptr[s] = s * load.q_len;
      page_indptr[s] = s * pages;
    }
    const std::vector<int32_t> kv_len(load.seqs, load.kv_len);
    const Batch batch{.phase = load.phase,
                      .num_seqs = load.seqs,
                      .num_tokens = load.seqs * load.q_len,
                      .max_q_len = load.q_len,
                      .max_kv_len = load.kv_len,
                      .q_indptr = q_indptr.data(),
                      .kv_len = kv_len.data(),
                      .page_indptr = page_indptr.data(),
                      .page_slots = page_slots.data(),
                      .page_size = page};
    report(shape, kv_dtype, load, time(shape, batch, views, slots));
  }

 private:
  static void fill(device::Buffer& pool, DType dtype) {
    std::minstd_rand rng(1);
    if (dtype == DType::kF32) {
      float* p = pool.as<float>();
      for (int64_t i = 0; i < pool.bytes() / 4; ++i) p[i] = float(rng() % 2001) / 1000.0f - 1.0f;
    } else {
      uint16_t* p = pool.as<uint16_t>();  // 1.0 to 2.0 in bfloat16, about 2 to 3 in float16
      for (int64_t i = 0; i < pool.bytes() / 2; ++i) p[i] = uint16_t(0x3f80 + rng() % 128);
    }
  }

  // For all layers.
  Seconds time(const Shape& shape, const Batch& batch, const std::vector<kv::PagedKvView>& views,
               int32_t slots) {
    const Limits limits{.max_seqs = batch.num_seqs,
                        .max_tokens = batch.num_tokens,
                        .max_kv_len = batch.max_kv_len,
                        .q_heads = shape.q_heads,
                        .kv_heads = shape.kv_heads,
                        .qk_dim = shape.dim,
                        .v_dim = shape.dim,
                        .page_size = batch.page_size,
                        .num_slots = slots,
                        .threads = device_.info().threads};
    auto workspace = device_.allocate(backend_.workspace_bytes(limits), "the workspace");
    ATTUNE_CHECK(workspace.ok());
    const auto plan = backend_.make_plan(limits, workspace->data());
    const int64_t width = shape.q_heads * shape.dim;
    std::vector<float> q(batch.num_tokens * width, 0.01f), out(q.size());
    for (size_t i = 0; i < q.size(); ++i) q[i] = float(int(i * 37 % 101) - 50) * 0.02f;
    const Io io{.q = q.data(), .q_stride = width, .out = out.data(), .out_stride = width};
    const LayerParams layer{.q_heads = shape.q_heads,
                            .kv_heads = shape.kv_heads,
                            .scale = 1.0f / std::sqrt(float(shape.dim))};
    Seconds best;
    double spent = 0;
    for (int round = 0; round < 200 && (round < 3 || spent < 0.5); ++round) {
      const double wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
      ATTUNE_CHECK(backend_.plan(batch, *plan).ok());
      stream_.launch([&] {
        backend_.plan_on(*plan, stream_);
        for (const kv::PagedKvView& view : views) backend_.run(*plan, layer, view, io, stream_);
      });
      stream_.synchronize();
      best.wall = std::min(best.wall, now(CLOCK_MONOTONIC) - wall);
      best.cpu = std::min(best.cpu, now(CLOCK_PROCESS_CPUTIME_ID) - cpu);
      spent += now(CLOCK_MONOTONIC) - wall;
    }
    return best;
  }

  static void report(const Shape& shape, DType kv_dtype, const Load& load, Seconds seconds) {
    const double rows = double(load.seqs) * load.q_len * shape.q_heads * shape.layers;
    const double keys = load.kv_len - (load.q_len - 1) / 2.0;  // mean of what a query sees
    const double flop = 4.0 * rows * keys * shape.dim;
    const double bytes = 2.0 * load.seqs * load.kv_len * shape.kv_heads * shape.dim *
                         tensor::dtype_bytes(kv_dtype, 1) * shape.layers;
    std::printf(
        "%-9s %-8s %-7s seqs %2d q %3d kv %5d  wall %8.3f ms  cpu %8.3f ms  per cpu second: %6.1f "
        "GFLOP %6.2f GB\n",
        shape.name, tensor::dtype_name(kv_dtype), phase_name(load.phase), load.seqs, load.q_len,
        load.kv_len, seconds.wall * 1e3, seconds.cpu * 1e3, flop / seconds.cpu * 1e-9,
        bytes / seconds.cpu * 1e-9);
  }

  Backend& backend_;
  device::Device& device_;
  device::Stream& stream_;
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
  Bench bench(*backend, **device, *stream);
  const Shape shapes[] = {
      {"smollm2", 9, 3, 64, 30}, {"mha-64", 8, 8, 64, 8}, {"gqa4-128", 8, 2, 128, 8}};
  const Load loads[] = {{Phase::kPrefill, 1, 128, 128},  {Phase::kPrefill, 1, 512, 512},
                        {Phase::kPrefill, 1, 256, 4096}, {Phase::kDecode, 1, 1, 64},
                        {Phase::kDecode, 1, 1, 1024},    {Phase::kDecode, 1, 1, 8192},
                        {Phase::kDecode, 8, 1, 1024},    {Phase::kDecode, 32, 1, 512}};
  for (const Shape& shape : shapes)
    for (DType kv : {DType::kF32, DType::kBF16})
      for (const Load& load : loads)
        if (phase.empty() || phase == phase_name(load.phase)) bench.run(shape, kv, load);
  return 0;
}

}  // namespace
}  // namespace attune::attention

int main(int argc, char** argv) {
  return attune::attention::run_bench(argc > 1 ? argv[1] : "cpu", argc > 2 ? argv[2] : "auto",
                                      argc > 3 ? std::atoi(argv[3]) : 0, argc > 4 ? argv[4] : "");
}
