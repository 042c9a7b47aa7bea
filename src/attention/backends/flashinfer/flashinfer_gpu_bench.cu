// flashinfer_gpu_bench [NAME]: times a backend's layers on the GPU, beside a plain read of as many
// bytes. Each figure is the median of graph replays; a graph's launches rotate over layers of more
// memory than the L2 holds.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "attention/registry.h"

namespace attune::attention {
namespace {

using tensor::DType;

constexpr int kLaunches = 24, kReplays = 15;
constexpr int64_t kRotate = int64_t{640} << 20;  // bytes of layers, ten times the L2

struct Seq {
  int32_t q_len, kv_len;
};

struct Case {
  const char* name;
  std::vector<Seq> seqs;
  Phase phase = Phase::kDecode;
  int32_t q_heads = 32, kv_heads = 8, head_dim = 128, page_size = 64;
  DType kv_dtype = DType::kBF16;
  bool latent = false, tree = false;
};

__global__ void __launch_bounds__(512) read_all(const uint4* from, int64_t n, uint32_t* to) {
  constexpr int kUnroll = 8;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  uint32_t sum = 0;
  for (; i + (kUnroll - 1) * stride < n; i += kUnroll * stride) {
    uint4 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) v[u] = __ldcs(from + i + u * stride);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sum ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
  }
  for (; i < n; i += stride) sum ^= from[i].x;
  if (sum == 0x12345678) *to = sum;
}

class Bench {
 public:
  explicit Bench(device::Device& device) : device_(device), stream_(device.create_stream()) {
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
    // Small finite numbers of either type: bytes of 0x38 to 0x3b in every place.
    noise_ = device_.allocate_pinned(int64_t{64} << 20, "noise").value();
    std::mt19937 random(3);
    for (int64_t i = 0; i < noise_.bytes() / 4; ++i)
      noise_.as<uint32_t>()[i] = 0x38383838 ^ (random() & 0x83838383);
  }

  void run(const Backend& backend, const Case& c) {
    const int32_t qk = c.latent ? 576 : c.head_dim, v = c.latent ? 512 : c.head_dim;
    std::vector<int32_t> q_indptr{0}, kv_len, page_indptr{0}, slots;
    for (const Seq& s : c.seqs) {
      q_indptr.push_back(q_indptr.back() + s.q_len);
      kv_len.push_back(s.kv_len);
      page_indptr.push_back(page_indptr.back() + (s.kv_len + c.page_size - 1) / c.page_size);
    }
    for (int32_t i = 0; i < page_indptr.back(); ++i) slots.push_back(i);
    std::shuffle(slots.begin(), slots.end(), std::mt19937(1));
    std::vector<uint64_t> tree;
    for (const Seq& s : c.seqs)
      for (int32_t i = 0; c.tree && i < s.q_len; ++i) tree.push_back(uint64_t{1} << i | 1);
    const kv::KvGeometry g{.layer = {.kv_heads = c.kv_heads,
                                     .k_dim = qk,
                                     .v_dim = v,
                                     .dtype = c.kv_dtype,
                                     .v_in_k = c.latent},
                           .layers = 1,
                           .page_size = c.page_size};
    const int64_t layer_bytes = g.piece_bytes() * static_cast<int64_t>(slots.size());
    const auto layers =
        static_cast<int32_t>(std::clamp<int64_t>(kRotate / layer_bytes + 1, 2, kLaunches));
    device::Buffer pool = filled(layer_bytes * layers);
    const int64_t q_width = int64_t{c.q_heads} * qk, out_width = int64_t{c.q_heads} * v;
    device::Buffer q = filled(q_indptr.back() * q_width * 2);
    device::Buffer out = device_.allocate(q_indptr.back() * out_width * 2, "out").value();

    Limits limits{.max_seqs = static_cast<int32_t>(c.seqs.size()),
                  .max_tokens = std::max(q_indptr.back(), 8192),
                  .q_heads = c.q_heads,
                  .kv_heads = c.kv_heads,
                  .qk_dim = qk,
                  .v_dim = v,
                  .page_size = c.page_size,
                  .num_slots = static_cast<int32_t>(slots.size())};
    Batch b;
    b.phase = c.phase;
    b.path = c.latent ? Path::kAbsorbed : Path::kPaged;
    b.num_seqs = limits.max_seqs;
    b.num_tokens = q_indptr.back();
    for (const Seq& s : c.seqs) {
      b.max_q_len = std::max(b.max_q_len, s.q_len);
      b.max_kv_len = limits.max_kv_len = std::max(limits.max_kv_len, s.kv_len);
    }
    b.q_indptr = q_indptr.data();
    b.kv_len = kv_len.data();
    b.page_indptr = page_indptr.data();
    b.page_slots = slots.data();
    b.page_size = c.page_size;
    b.tree_mask = c.tree ? tree.data() : nullptr;
    std::vector<device::Buffer> kept;
    b.on_device = {.q_indptr = copied(q_indptr, &kept),
                   .kv_len = copied(kv_len, &kept),
                   .page_indptr = copied(page_indptr, &kept),
                   .page_slots = copied(slots, &kept),
                   .tree_mask = copied(tree, &kept)};
    device::Buffer workspace =
        device_.allocate(std::max<int64_t>(backend.workspace_bytes(limits), 16), "w").value();
    auto plan = backend.make_plan(limits, workspace.data());
    const Status planned = backend.plan(b, *plan, *stream_);
    if (!planned.ok()) return void(std::printf("%s: %s\n", c.name, planned.to_string().c_str()));

    const LayerParams layer{.q_heads = c.q_heads, .kv_heads = c.kv_heads, .scale = 0.01f};
    const double us = time([&](int i) {
      backend.run(*plan, layer,
                  kv::make_view(g, pool.as<char>() + i % layers * layer_bytes, limits.num_slots),
                  {.q = q.data(),
                   .q_dtype = DType::kBF16,
                   .q_stride = q_width,
                   .out = out.data(),
                   .out_dtype = DType::kBF16,
                   .out_stride = out_width},
                  *stream_);
    });
    double bytes = 0, flop = 0;
    for (const Seq& s : c.seqs) {
      bytes += double(s.kv_len) * g.piece_bytes() / c.page_size;
      flop += 2.0 * c.q_heads * (qk + v) *
              (double(s.q_len) * s.kv_len - double(s.q_len) * (s.q_len - 1) / 2);
    }
    const double read_us = time([&](int i) {
      read_all<<<264, 512, 0, static_cast<cudaStream_t>(stream_->native())>>>(
          reinterpret_cast<const uint4*>(pool.as<char>() + i % layers * layer_bytes),
          static_cast<int64_t>(bytes / 16), out.as<uint32_t>());
    });
    std::printf("%-34s %9.1f us  %7.0f GB/s  %6.1f TFLOP/s   read %8.1f us  %6.0f GB/s   %s\n",
                c.name, us, bytes / us * 1e-3, flop / us * 1e-6, read_us, bytes / read_us * 1e-3,
                stream_->status().ok() ? "" : stream_->status().to_string().c_str());
    std::fflush(stdout);
  }

 private:
  template <typename T>
  const T* copied(const std::vector<T>& from, std::vector<device::Buffer>* kept) {
    const int64_t bytes = std::max<int64_t>(from.size() * sizeof(T), 16);
    device::Buffer pinned = device_.allocate_pinned(bytes, "array").value();
    std::copy(from.begin(), from.end(), pinned.as<T>());
    kept->push_back(device_.allocate(bytes, "array").value());
    stream_->copy(kept->back().data(), pinned.data(), bytes);
    stream_->synchronize();
    return kept->back().as<T>();
  }

  device::Buffer filled(int64_t bytes) {
    device::Buffer made = device_.allocate(bytes, "noise").value();
    for (int64_t at = 0; at < bytes; at += noise_.bytes())
      stream_->copy(made.as<char>() + at, noise_.data(), std::min(noise_.bytes(), bytes - at));
    stream_->synchronize();
    return made;
  }

  // Microseconds of one launch.
  template <typename Fn>
  double time(Fn fn) {
    auto graph = stream_->capture("timing", [&] {
      stream_->launch([&] {
        for (int i = 0; i < kLaunches; ++i) fn(i);
      });
    });
    if (!graph.ok()) return std::printf("%s\n", graph.status().to_string().c_str()), 0;
    const auto native = static_cast<cudaStream_t>(stream_->native());
    std::vector<float> times;
    for (int i = 0; i < kReplays; ++i) {
      cudaEventRecord(begin_, native);
      (*graph)->launch(*stream_);
      cudaEventRecord(end_, native);
      stream_->synchronize();
      float ms = 0;
      cudaEventElapsedTime(&ms, begin_, end_);
      if (i > 1) times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2] * 1e3 / kLaunches;
  }

  device::Device& device_;
  std::unique_ptr<device::Stream> stream_;
  device::Buffer noise_;
  cudaEvent_t begin_, end_;
};

std::vector<Seq> same(int n, Seq seq) {
  return std::vector<Seq>(n, seq);
}

std::vector<Seq> ragged(int n, int most) {
  std::mt19937 random(5);
  std::vector<Seq> made;
  for (int i = 0; i < n; ++i) made.push_back({1, 1 + static_cast<int32_t>(random() % most)});
  return made;
}

std::vector<Case> mha_cases() {
  const Phase prefill = Phase::kPrefill, decode = Phase::kDecode, verify = Phase::kVerify;
  return {
      {"decode 64x4096", same(64, {1, 4096})},
      {"decode 1x8192", same(1, {1, 8192})},
      {"decode 1x1024", same(1, {1, 1024})},
      {"decode 8x4096", same(8, {1, 4096})},
      {"decode 256x1024", same(256, {1, 1024})},
      {"decode 64 x 1..8192", ragged(64, 8192)},
      {"decode 64x4096, page 16", same(64, {1, 4096}), decode, 32, 8, 128, 16},
      {"decode 64x4096, page 1", same(64, {1, 4096}), decode, 32, 8, 128, 1},
      {"decode 64x4096, fp8", same(64, {1, 4096}), decode, 32, 8, 128, 64, DType::kF8E4M3},
      {"decode 64x2048, MHA 32/32", same(64, {1, 2048}), decode, 32, 32},
      {"decode 64x4096, 8/1 x 64", same(64, {1, 4096}), decode, 8, 1, 64},
      {"verify 64x8 on 2048", same(64, {8, 2056}), verify},
      {"verify 64x8 on 2048, tree", same(64, {8, 2056}), verify, 32, 8, 128, 64, DType::kBF16,
       false, true},
      {"prefill 16x1024", same(16, {1024, 1024}), prefill},
      {"prefill 4x4096", same(4, {4096, 4096}), prefill},
      {"prefill 1x16384", same(1, {16384, 16384}), prefill},
      {"prefill 8x512 on 8192", same(8, {512, 8704}), prefill},
  };
}

std::vector<Case> mla_cases() {
  const Phase prefill = Phase::kPrefill, decode = Phase::kDecode;
  std::vector<Case> cases;
  for (int32_t heads : {16, 128})
    for (auto [n, len] : {std::pair{1, 8192}, {16, 4096}, {64, 4096}, {128, 2048}})
      cases.push_back({heads == 16 ? "decode, 16 heads" : "decode, 128 heads", same(n, {1, len}),
                       decode, heads, 1, 0, 64, DType::kBF16, true});
  for (int32_t heads : {16, 128})
    cases.push_back({heads == 16 ? "8x16 on 2048, 16 heads" : "8x16 on 2048, 128 heads",
                     same(8, {16, 2064}), prefill, heads, 1, 0, 64, DType::kBF16, true});
  return cases;
}

int bench(const std::string& name) {
  auto device = device::create_cuda_device(0);
  if (!device.ok()) return std::printf("%s\n", device.status().to_string().c_str()), 1;
  const BackendEntry* entry = find_backend(name);
  if (!entry || !entry->create)
    return std::printf("%s: %s\n", name.c_str(), entry ? entry->unavailable.c_str() : "unknown"), 1;
  auto backend = entry->create(**device);
  Bench bench(**device);
  const bool mla = entry->capabilities.kinds[0] == AttentionKind::kMla;
  for (const Case& c : mla ? mla_cases() : mha_cases()) bench.run(*backend, c);
  return 0;
}

}  // namespace
}  // namespace attune::attention

int main(int argc, char** argv) {
  return attune::attention::bench(argc > 1 ? argv[1] : "flashinfer");
}
