// Times of the small CUDA ops at a decode step's and a prompt's sizes (Llama-3-8B and a mixture of
// 256 experts): many launches in one graph, with programmatic dependent launch, so that a figure
// is what a step pays. Prints microseconds and the rate of the memory traffic.
//   small_ops_bench [--sampling]: nothing but that
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "device/device.h"
#include "ops/cuda_kernels.h"
#include "ops/sample/device_sampler.h"

namespace attune::ops {
namespace {

class Bench {
 public:
  Bench(device::Device& device, device::Stream& stream) : device_(device), stream_(stream) {}

  // Zeroed memory that stays.
  template <typename T = void>
  T* memory(int64_t bytes) {
    auto made = device_.allocate(bytes, "the benchmark");
    if (!made.ok()) {
      std::printf("%s\n", made.status().to_string().c_str());
      std::exit(1);
    }
    buffers_.push_back(std::move(*made));
    return buffers_.back().as<T>();
  }
  template <typename T>
  T* upload(const std::vector<T>& v) {
    T* to = memory<T>(static_cast<int64_t>(v.size() * sizeof(T)));
    stream_.copy(to, v.data(), static_cast<int64_t>(v.size() * sizeof(T)));
    stream_.synchronize();
    return to;
  }
  void time(const char* what, double bytes, const std::function<void()>& launch) {
    const int launches = bytes > 1e8 ? 10 : 200;
    auto graph = stream_.capture(what, [&] {
      for (int i = 0; i < launches; ++i) launch();
    });
    if (!graph.ok()) {
      std::printf("%s: %s\n", what, graph.status().to_string().c_str());
      return;
    }
    double best = 1e30;
    for (int i = 0; i < 5; ++i) {
      stream_.synchronize();
      const auto start = std::chrono::steady_clock::now();
      (*graph)->launch(stream_);
      stream_.synchronize();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      best = std::min(best, took.count() / launches);
    }
    std::printf("%-44s %8.2f us  %7.0f GB/s\n", what, best * 1e6, bytes / best * 1e-9);
    std::fflush(stdout);
  }

 private:
  device::Device& device_;
  device::Stream& stream_;
  std::vector<device::Buffer> buffers_;
};

void norms(Bench& b, device::Stream& stream) {
  for (int32_t rows : {1, 8, 64, 8192}) {
    const int32_t n = 4096;
    RmsNormParams p{b.memory<float>(int64_t{rows} * n * 4),
                    n,
                    b.memory<float>(n * 4),
                    1e-5f,
                    rows,
                    n,
                    b.memory(int64_t{rows} * n * 2),
                    n,
                    DType::kBF16};
    char name[64];
    std::snprintf(name, sizeof name, "rms_norm %d x 4096", rows);
    b.time(name, 6.0 * rows * n, [&] { cuda::rms_norm(p, stream); });
  }
}

void appends(Bench& b, device::Stream& stream) {
  const int32_t q = 32, kv = 8, d = 128, page = 64;
  for (int32_t tokens : {1, 64, 8192}) {
    for (DType kv_dtype : {DType::kBF16, DType::kF8E4M3}) {
      std::vector<int64_t> slots(tokens);
      for (int32_t t = 0; t < tokens; ++t) slots[t] = int64_t{tokens == 8192 ? t : t * 977};
      const int64_t e = tensor::dtype_bytes(kv_dtype, 1), piece = 2 * kv * page * d * e;
      RopeAppendParams p{};
      p.qkv = b.memory(int64_t{tokens} * (q + 2 * kv) * d * 2);
      p.dtype = DType::kBF16;
      p.ldqkv = (q + 2 * kv) * d;
      p.tokens = tokens;
      p.q_heads = q;
      p.kv_heads = kv;
      p.head_dim = p.rot_dim = d;
      p.cos = b.memory<float>(int64_t{tokens} * d * 2);
      p.sin = b.memory<float>(int64_t{tokens} * d * 2);
      p.norm_eps = 1e-6f;
      p.q_out = b.memory(int64_t{tokens} * q * d * 2);
      p.slot_mapping = b.upload(slots);
      p.kv_base = b.memory((slots.back() / page + 1) * piece);
      p.kv_dtype = kv_dtype;
      p.page_stride = piece;
      p.head_stride = page * d * e;
      p.token_stride = d * e;
      p.v_offset = piece / 2;
      p.page_size = page;
      for (bool norm : {false, true}) {
        if (norm) p.q_norm = p.k_norm = b.memory<float>(d * 4);
        char name[64];
        std::snprintf(name, sizeof name, "rope_append %d tokens, %s%s", tokens,
                      tensor::dtype_name(kv_dtype), norm ? ", normed" : "");
        b.time(name, tokens * (2.0 * (q + 2 * kv) * d + 2.0 * q * d + 2.0 * kv * d * e + 4.0 * d),
               [&] { cuda::rope_append(p, stream); });
      }
    }
  }
}

void elementwise(Bench& b, device::Stream& stream) {
  for (int32_t rows : {1, 64, 8192}) {
    const int32_t n = 14336;
    char name[64];
    SiluMulParams silu{b.memory(int64_t{rows} * n * 4),
                       DType::kBF16,
                       2 * n,
                       rows,
                       n,
                       b.memory(int64_t{rows} * n * 2),
                       n,
                       DType::kBF16};
    std::snprintf(name, sizeof name, "silu_mul %d x 14336", rows);
    b.time(name, 6.0 * rows * n, [&] { cuda::silu_mul(silu, stream); });
    std::vector<int32_t> ids(rows);
    for (int32_t t = 0; t < rows; ++t) ids[t] = (t * 997) % 100000;
    EmbedParams embed{
        b.upload(ids), rows, b.memory(int64_t{100000} * 4096 * 2),     100000, DType::kBF16,
        4096,          1.0f, b.memory<float>(int64_t{rows} * 4096 * 4)};
    std::snprintf(name, sizeof name, "embed %d x 4096", rows);
    b.time(name, 6.0 * rows * 4096, [&] { cuda::embed(embed, stream); });
    const auto freq = std::vector<float>(64, 0.01f);
    RopeTableParams table{b.upload(ids),
                          rows,
                          b.upload(freq),
                          128,
                          1.0f,
                          b.memory<float>(int64_t{rows} * 256),
                          b.memory<float>(int64_t{rows} * 256)};
    std::snprintf(name, sizeof name, "rope_table %d", rows);
    b.time(name, 512.0 * rows, [&] { cuda::rope_table(table, stream); });
  }
  SoftCapParams cap{b.memory<float>(64 * 128256 * 4), 64 * 128256, 30.0f};
  b.time("soft_cap 64 x 128256", 8.0 * cap.count, [&] { cuda::soft_cap(cap, stream); });
}

void experts(Bench& b, device::Stream& stream) {
  for (int32_t tokens : {1, 64, 8192}) {
    const int32_t count = 256, top_k = 8, n = 7168;
    std::vector<float> logits(static_cast<size_t>(tokens) * count);
    for (size_t i = 0; i < logits.size(); ++i)
      logits[i] = static_cast<float>(i * 2654435761u % 1000) * 0.01f;
    MoeRouteParams route{};
    route.logits = b.upload(logits);
    route.tokens = tokens;
    route.experts = count;
    route.top_k = top_k;
    route.sigmoid = true;
    route.bias = b.memory<float>(count * 4);
    route.groups = 8;
    route.top_groups = 4;
    route.group_top2 = route.normalize = true;
    route.scale = 2.5f;
    route.ids = b.memory<int32_t>(int64_t{tokens} * top_k * 4);
    route.weights = b.memory<float>(int64_t{tokens} * top_k * 4);
    char name[64];
    std::snprintf(name, sizeof name, "moe_route %d x 256", tokens);
    b.time(name, 4.0 * tokens * count, [&] { cuda::moe_route(route, stream); });
    MoeSortParams sort{route.ids,
                       tokens,
                       top_k,
                       count,
                       b.memory<int32_t>((count + 1) * 4),
                       b.memory<int32_t>(int64_t{tokens} * top_k * 4),
                       b.memory<int32_t>(int64_t{tokens} * top_k * 4)};
    std::snprintf(name, sizeof name, "moe_sort %d x 8", tokens);
    b.time(name, 12.0 * tokens * top_k, [&] { cuda::moe_sort(sort, stream); });
    const auto pairs = int64_t{tokens} * top_k;
    CopyRowsParams copy{b.memory(int64_t{tokens} * n * 2), n * 2, sort.token_of_row,
                        static_cast<int32_t>(pairs),       n * 2, b.memory(pairs * n * 2)};
    std::snprintf(name, sizeof name, "copy_rows %ld x 7168 bf16", static_cast<long>(pairs));
    b.time(name, 4.0 * pairs * n, [&] { cuda::copy_rows(copy, stream); });
    MoeCombineParams combine{b.memory<float>(pairs * n * 4),
                             sort.row_of_pair,
                             route.weights,
                             tokens,
                             top_k,
                             n,
                             b.memory<float>(int64_t{tokens} * n * 4),
                             n};
    std::snprintf(name, sizeof name, "moe_combine %d x 7168", tokens);
    b.time(name, 4.0 * (pairs + 2 * tokens) * n, [&] { cuda::moe_combine(combine, stream); });
  }
}

void sampling(Bench& b, device::Device& device, device::Stream& stream) {
  const int32_t vocab = 128256, most = 64;
  auto made = create_device_sampler({.max_places = most, .max_rows = most, .vocab = vocab}, device);
  if (!made.ok()) {
    std::printf("%s\n", made.status().to_string().c_str());
    std::exit(1);
  }
  DeviceSampler& sampler = **made;
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, 2.5f);
  std::vector<float> logits(size_t{most} * vocab);
  for (float& v : logits) v = normal(rng);
  for (int32_t i = 0; i < most * 30; ++i)  // a peaked head, as models have it
    logits[static_cast<size_t>(i / 30) * vocab + rng() % vocab] += 8.0f;
  std::vector<int32_t> places(most);
  for (int32_t i = 0; i < most; ++i) places[i] = i;
  float* x = b.upload(logits);
  const int32_t *ids = b.upload(places), *positions = b.upload(places);
  auto* out = b.memory<SampledRow>(most * int64_t{sizeof(SampledRow)});
  const std::pair<const char*, SamplingParams> kinds[] = {
      {"greedy", {.temperature = 0}},
      {"plain", {.temperature = 1}},
      {"top-p 0.9", {.temperature = 0.8f, .top_p = 0.9f}},
      {"top-k 50, top-p 0.9", {.temperature = 0.8f, .top_p = 0.9f, .top_k = 50}},
      {"top-p 0.95, min-p 0.05", {.temperature = 1, .top_p = 0.95f, .min_p = 0.05f}},
      {"flat, top-p 0.99", {.temperature = 2, .top_p = 0.99f}},
      {"penalised, top-p 0.9", {.temperature = 0.8f, .top_p = 0.9f, .presence_penalty = 0.5f}},
      {"greedy, 20 top logprobs", {.temperature = 0, .top_logprobs = 20}},
  };
  for (const auto& [what, sampling] : kinds) {
    for (int32_t i = 0; i < most; ++i)
      if (!sampler.admit(i, sampling, {}, places, 1, stream).ok()) std::exit(1);
    for (int32_t n : {1, 8, 64}) {
      char name[64];
      std::snprintf(name, sizeof name, "sample %d: %s", n, what);
      b.time(name, 4.0 * n * vocab, [&] { sampler.sample(ids, positions, x, n, stream); });
    }
  }
  b.time("logprobs 64, top 20", 4.0 * most * vocab,
         [&] { sampler.logprobs(ids, x, most, 20, out, stream); });
}

int run(bool sampling_alone) {
  auto device = device::create_cuda_device(0);
  if (!device.ok()) {
    std::printf("%s\n", device.status().to_string().c_str());
    return 1;
  }
  auto stream = (*device)->create_stream();
  if (!sampling_alone) {
    Bench b(**device, *stream);
    norms(b, *stream);
    appends(b, *stream);
  }
  {
    Bench b(**device, *stream);
    if (!sampling_alone) {
      elementwise(b, *stream);
      experts(b, *stream);
    }
    sampling(b, **device, *stream);
  }
  stream->synchronize();
  std::printf("%s\n", stream->status().to_string().c_str());
  return stream->status().ok() ? 0 : 1;
}

}  // namespace
}  // namespace attune::ops

int main(int argc, char** argv) {
  return attune::ops::run(argc > 1 && std::strcmp(argv[1], "--sampling") == 0);
}
