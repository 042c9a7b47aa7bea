// How near the memory's rate the products of a decode step run: the 129 of Llama-3-8B as one graph,
// against a plain read of the same bytes; then the rates of products of many rows.
//   attune_gemv_gpu_bench [--sweep | --codes]: also ways of launching that are not the chosen ones;
//   weights of codes alone
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

#include "ops/cuda_kernels.h"
#include "ops/gemm/cuda/batch.h"
#include "ops/gemm/cuda/context.h"
#include "ops/gemm/cuda/gemv.h"
#include "ops/gemm/cuda/rows.h"
#include "ops/gemm/gemm_test_util.h"

namespace attune::ops {
namespace {

using gemm::CudaLayout;
using test::DType;

struct Shape {
  int32_t n, k;
  bool residual;  // y float32, added to; else bfloat16
};
// Fused qkv, attention's output, fused gate and up, down; the head comes once.
constexpr Shape kLayer[] = {
    {6144, 4096, false}, {4096, 4096, true}, {28672, 4096, false}, {4096, 14336, true}};
constexpr Shape kHead = {128256, 4096, false};
constexpr int kLayers = 32;
constexpr int32_t kMostRows = 8192, kMostWidth = 28672;

class Bench {
 public:
  bool open() {
    const char* places = std::getenv("ATTUNE_CUDA_LIBRARIES");
    auto made = device::create_cuda_device(0, places ? places : "");
    if (!made.ok()) return say(made.status());
    device_ = std::move(*made);
    stream_ = device_->create_stream();
    std::printf("%s\n", device_->info().name.c_str());
    const auto raw = test::random_weight(DType::kBF16, 16, 32, 1);
    auto packed = cuda::pack_weight({raw.view}, DType::kBF16, *device_, *stream_);
    if (!packed.ok()) return say(packed.status());
    context_ = packed->cuda;
    for (int i = 0; i < kLayers; ++i) shapes_.insert(shapes_.end(), kLayer, kLayer + 4);
    shapes_.push_back(kHead);
    for (const Shape& s : shapes_) bytes_ += gemm::weight_bytes(CudaLayout::kBF16, s.n, s.k);
    if (!allocate(arena_, bytes_) || !allocate(x_, int64_t{kMostRows} * kMostWidth * 2) ||
        !allocate(y_, int64_t{kMostRows} * kMostWidth * 4) || !fill())
      return false;
    const auto start = std::chrono::steady_clock::now();
    for (const Shape& s : {kLayer[0], kLayer[1], kLayer[2], kLayer[3], kHead})
      context_->tune(arena_.data(), s.n, s.k, *device_, *stream_);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::printf("cuBLASLt's algorithms timed in %.2f s\n", took.count());
    return true;
  }

  void read() {
    auto graph = captured([&] {
      cuda::bulk_read(
          {.data = arena_.data(), .bytes = bytes_, .unlikely = 1, .sink = y_.as<uint64_t>()},
          *stream_);
    });
    report("plain read", time(*graph, 5), bytes_);
  }

  // One product at a time, by every cluster.
  void batch_shapes(int32_t m) {
    for (const Shape& s : {kLayer[0], kLayer[1], kLayer[2], kLayer[3], kHead}) {
      const int64_t each = gemm::weight_bytes(CudaLayout::kBF16, s.n, s.k);
      const int count = static_cast<int>(std::min<int64_t>(40, bytes_ / each));
      for (const int cluster : {1, 2, 4, 8}) {
        for (const bool spread : {false, true}) {
          bool served = true;
          auto graph = captured([&] {
            for (int i = 0; i < count; ++i)
              served &= gemm::batch_linear({.w = arena_.as<uint8_t>() + i * each,
                                            .n = s.n,
                                            .k = s.k,
                                            .m = m,
                                            .x = x_.data(),
                                            .ldx = s.k,
                                            .y = y_.data(),
                                            .ldy = s.n,
                                            .y_bf16 = !s.residual,
                                            .accumulate = s.residual},
                                           {cluster, spread}, context_->batch_room(), *stream_);
          });
          if (!served) continue;
          const double ms = time(*graph, 3) / count;
          std::printf("  batch n=%-6d k=%-6d m=%-3d clusters of %d%s %8.2f us  %6.0f GB/s\n", s.n,
                      s.k, m, cluster, spread ? ", spread" : "        ", ms * 1e3,
                      1e-6 * static_cast<double>(each) / ms);
        }
      }
    }
  }

  void chain(const std::string& what, CudaLayout layout, int32_t m, bool pdl,
             const gemm::GemvTuning& tuning, bool between = false) {
    stream_->set_pdl(pdl);
    int64_t bytes = 0, none = 0;
    const PackedWeight of_small = weight({4096, 32, true}, none);
    const LinearParams small{.m = 1,
                             .weight = &of_small,
                             .bias = x_.as<float>(),
                             .y = y_.data(),
                             .y_dtype = DType::kF32,
                             .ldy = 4096};
    auto graph = captured([&] {
      for (const Shape& s : shapes_) {
        gemm::gemv({.w = arena_.as<uint8_t>() + bytes,
                    .n = s.n,
                    .k = s.k,
                    .m = m,
                    .x = x_.data(),
                    .ldx = s.k,
                    .y = y_.data(),
                    .ldy = s.n,
                    .y_bf16 = !s.residual,
                    .accumulate = s.residual},
                   layout, device_->info(), *stream_, tuning);
        if (between) gemm::add_bias(small, *stream_);
        bytes += gemm::weight_bytes(layout, s.n, s.k);
      }
    });
    report(what + (pdl ? "" : ", no PDL"), time(*graph, 5), bytes);
    stream_->set_pdl(true);
  }

  // The same products through `linear`, one after the other.
  void step(int32_t m) {
    int64_t at = 0;
    std::vector<PackedWeight> weights;
    for (const Shape& s : shapes_) weights.push_back(weight(s, at));
    auto graph = captured([&] {
      for (size_t i = 0; i < weights.size(); ++i) launch(weights[i], shapes_[i], m);
    });
    report("all products, m=" + std::to_string(m), time(*graph, 3), bytes_);
  }

  void rate(int32_t m) {
    for (const Shape& s : kLayer) {
      int64_t at = 0;
      const PackedWeight w = weight(s, at);
      auto graph = captured([&] {
        for (int i = 0; i < 8; ++i) launch(w, s, m);
      });
      const double ms = time(*graph, 5) / 8;
      std::printf("m=%-5d n=%-6d k=%-6d %8.3f ms  %6.0f TFLOP/s\n", m, s.n, s.k, ms,
                  2e-9 * m * s.n * s.k / ms);
    }
  }

  // A row's result not depending on the others, which costs something.
  void deterministic(int32_t m) {
    for (const Shape& s : kLayer) {
      std::vector<PackedWeight> weights;
      int64_t at = 0;
      for (int i = 0; i < 8; ++i) weights.push_back(weight(s, at));
      auto graph = captured([&] {
        for (const PackedWeight& w : weights) launch(w, s, m, true);
      });
      const double ms = time(*graph, 5) / 8;
      std::printf("deterministic m=%-5d n=%-6d k=%-6d %8.3f ms  %5.0f GB/s  %4.0f TFLOP/s\n", m,
                  s.n, s.k, ms, 2e-6 * s.n * s.k / ms, 2e-9 * m * s.n * s.k / ms);
    }
  }

  // Experts' gate and up, of several layers in a row; tokens choose at random.
  void experts(int32_t count, int32_t n, int32_t k, int32_t tokens, int32_t top_k) {
    std::mt19937 rng(3);
    std::vector<int32_t> sizes(count), offsets(count + 1), ids(count);
    for (int32_t i = 0; i < count; ++i) ids[i] = i;
    for (int32_t t = 0; t < tokens; ++t) {
      std::shuffle(ids.begin(), ids.end(), rng);
      for (int32_t i = 0; i < top_k; ++i) ++sizes[ids[i]];
    }
    for (int32_t i = 0; i < count; ++i) offsets[i + 1] = offsets[i] + sizes[i];
    const auto used = std::count_if(sizes.begin(), sizes.end(), [](int32_t s) { return s > 0; });
    device::Buffer on_device;
    if (!allocate(on_device, (count + 1) * 4)) return;
    stream_->copy(on_device.data(), offsets.data(), (count + 1) * 4);
    constexpr int kLayersHere = 4;
    std::vector<std::vector<PackedWeight>> weights(kLayersHere);
    std::vector<ExpertWeights> gathered;
    int64_t at = 0;
    for (auto& layer : weights) {
      std::vector<const PackedWeight*> places;
      layer.reserve(count);
      for (int32_t i = 0; i < count; ++i) {
        layer.push_back(weight({n, k, false}, at));
        places.push_back(&layer.back());
      }
      auto made = gather_experts(places, *device_, *stream_);
      if (!made.ok()) return void(say(made.status()));
      gathered.push_back(std::move(*made));
    }
    auto graph = captured([&] {
      for (const ExpertWeights& layer : gathered)
        cuda::expert_linear({.x = x_.data(),
                             .x_dtype = DType::kBF16,
                             .ldx = k,
                             .rows = tokens * top_k,
                             .offsets = on_device.as<int32_t>(),
                             .weights = &layer,
                             .y = y_.data(),
                             .y_dtype = DType::kBF16,
                             .ldy = n},
                            *stream_);
    });
    const double ms = time(*graph, 5) / kLayersHere;
    std::printf("experts: %d x [%d, %d], %d tokens, top %d: %8.3f ms  %5.0f GB/s  %4.0f TFLOP/s\n",
                count, n, k, tokens, top_k, ms, 2e-6 * static_cast<double>(used) * n * k / ms,
                2e-9 * tokens * top_k * n * k / ms);
  }

  // One launch of each layout, for a profiler.
  void profile() {
    for (const CudaLayout layout : {CudaLayout::kBF16, CudaLayout::kCode4, CudaLayout::kCode8})
      for (const int32_t m : {1, 16})
        stream_->launch([&] {
          gemm::gemv({.w = arena_.as<uint8_t>(),
                      .n = 28672,
                      .k = 4096,
                      .m = m,
                      .x = x_.data(),
                      .ldx = 4096,
                      .y = y_.data(),
                      .ldy = 28672,
                      .y_bf16 = true},
                     layout, device_->info(), *stream_);
        });
    stream_->synchronize();
  }

  // One product at a time, weights from all over the arena.
  void shapes(CudaLayout layout, int32_t m) {
    for (const Shape& s : {kLayer[0], kLayer[1], kLayer[2], kLayer[3], Shape{576, 576, true}}) {
      const int64_t each = gemm::weight_bytes(layout, s.n, s.k);
      const int count = static_cast<int>(std::min<int64_t>(40, bytes_ / each));
      auto graph = captured([&] {
        for (int i = 0; i < count; ++i)
          gemm::gemv({.w = arena_.as<uint8_t>() + i * each,
                      .n = s.n,
                      .k = s.k,
                      .m = m,
                      .x = x_.data(),
                      .ldx = s.k,
                      .y = y_.data(),
                      .ldy = s.n,
                      .y_bf16 = !s.residual,
                      .accumulate = s.residual},
                     layout, device_->info(), *stream_);
      });
      const double ms = time(*graph, 5) / count;
      std::printf("  n=%-6d k=%-6d m=%-3d %8.2f us  %6.0f GB/s\n", s.n, s.k, m, ms * 1e3,
                  1e-6 * static_cast<double>(each) / ms);
    }
  }

 private:
  static bool say(const Status& status) {
    std::printf("%s\n", status.to_string().c_str());
    return false;
  }
  bool allocate(device::Buffer& to, int64_t bytes) {
    auto made = device_->allocate(bytes, "a benchmark");
    if (!made.ok()) return say(made.status());
    to = std::move(*made);
    return true;
  }
  // Random numbers: power, and so the clock, depends on what is multiplied.
  bool fill() {
    std::mt19937 rng(1);
    std::vector<uint16_t> part(32 << 20);
    for (uint16_t& v : part) v = static_cast<uint16_t>((rng() & 0x807f) | (0x3c + rng() % 3) << 7);
    const int64_t each = static_cast<int64_t>(part.size()) * 2;
    for (device::Buffer* b : {&arena_, &x_, &y_})
      for (int64_t at = 0; at < b->bytes(); at += each)
        stream_->copy(b->as<char>() + at, part.data(), std::min(each, b->bytes() - at));
    stream_->synchronize();
    return stream_->status().ok() || say(stream_->status());
  }
  PackedWeight weight(const Shape& s, int64_t& at) {
    PackedWeight w;
    w.n = s.n;
    w.k = s.k;
    w.act = DType::kBF16;
    w.layout = static_cast<int32_t>(CudaLayout::kBF16);
    w.cuda = context_;
    const int64_t bytes = gemm::weight_bytes(CudaLayout::kBF16, s.n, s.k);
    w.data = device::Buffer(arena_.as<char>() + at, bytes, [](void*) {});
    at += bytes;
    return w;
  }
  void launch(const PackedWeight& w, const Shape& s, int32_t m, bool deterministic = false) {
    cuda::linear({.x = x_.data(),
                  .x_dtype = DType::kBF16,
                  .ldx = s.k,
                  .m = m,
                  .weight = &w,
                  .y = y_.data(),
                  .y_dtype = s.residual ? DType::kF32 : DType::kBF16,
                  .ldy = s.n,
                  .accumulate = s.residual,
                  .deterministic = deterministic},
                 *stream_);
  }
  std::unique_ptr<device::Graph> captured(const std::function<void()>& fn) {
    auto graph = stream_->capture("a benchmark", fn);
    if (!graph.ok()) {
      say(graph.status());
      std::exit(1);
    }
    return std::move(*graph);
  }
  // Milliseconds of one launch among several in a row: the median.
  double time(device::Graph& graph, int runs) {
    constexpr int kInARow = 4;
    std::vector<double> ms;
    for (int i = 0; i <= runs; ++i) {
      const auto start = std::chrono::steady_clock::now();
      for (int j = 0; j < kInARow; ++j) graph.launch(*stream_);
      stream_->synchronize();
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - start;
      if (i > 0) ms.push_back(took.count() / kInARow);
    }
    if (!stream_->status().ok()) {
      say(stream_->status());
      std::exit(1);
    }
    std::sort(ms.begin(), ms.end());
    return ms[ms.size() / 2];
  }
  static void report(const std::string& what, double ms, int64_t bytes) {
    std::printf("%-52s %7.3f ms  %5.0f GB/s\n", what.c_str(), ms,
                1e-6 * static_cast<double>(bytes) / ms);
    std::fflush(stdout);
  }

  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  std::shared_ptr<gemm::CudaContext> context_;
  std::vector<Shape> shapes_;
  int64_t bytes_ = 0;
  device::Buffer arena_, x_, y_;
};

void sweep(Bench& bench) {
  for (const bool between : {false, true})
    for (int32_t m : {1, 4, 16})
      for (int stages : {2, 3, 4})
        bench.chain("  m=" + std::to_string(m) + ", " + std::to_string(stages) + " stages" +
                        (between ? ", a small kernel between" : ""),
                    CudaLayout::kBF16, m, true, {.stages = stages}, between);
  for (int32_t m : {17, 64, 128}) bench.batch_shapes(m);
}

}  // namespace
}  // namespace attune::ops

int main(int argc, char** argv) {
  using namespace attune::ops;
  Bench bench;
  if (!bench.open()) return 1;
  if (argc > 1 && std::strcmp(argv[1], "--profile") == 0) return bench.profile(), 0;
  bench.read();
  const std::pair<const char*, gemm::CudaLayout> layouts[] = {{"bfloat16", gemm::CudaLayout::kBF16},
                                                              {"4 bits", gemm::CudaLayout::kCode4},
                                                              {"8 bits", gemm::CudaLayout::kCode8}};
  const bool codes_alone = argc > 1 && std::strcmp(argv[1], "--codes") == 0;
  for (const auto& [name, layout] : layouts) {
    if (codes_alone && layout == gemm::CudaLayout::kBF16) continue;
    for (int32_t m : {1, 4, 8, 16})
      for (bool pdl : {true, false})
        bench.chain(std::string(name) + ", m=" + std::to_string(m), layout, m, pdl, {});
    bench.shapes(layout, 1);
  }
  if (codes_alone) return 0;
  if (argc > 1 && std::strcmp(argv[1], "--sweep") == 0) {
    sweep(bench);
  } else {
    for (int32_t m : {17, 32, 64, 128, 256}) bench.step(m);
    for (int32_t m : {2048, 8192}) bench.rate(m);
    for (int32_t m : {1, 16, 2048}) bench.deterministic(m);
    for (int32_t tokens : {1, 4, 16, 64, 256, 1024, 4096})
      bench.experts(128, 1536, 2048, tokens, 8);
  }
  bench.read();
}
