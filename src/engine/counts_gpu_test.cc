// What a decode step on a GPU asks of the CUDA runtime, counted at the runtime's door: the linker
// puts the functions below between this program and the runtime (--wrap in CMakeLists.txt). Steps
// allocate nothing and wait for nothing; of copies there are two, of graphs one. (The thread that
// tells of a step's end sleeps on its event: that one may.)
#include <cuda_runtime.h>

#include <array>
#include <atomic>

#include "device/device.h"
#include "engine/testing.h"
#include "formats/test_files.h"

namespace attune::engine::testing {
namespace {

struct Counts {
  std::atomic<int64_t> allocations{0}, waits{0}, pageable_copies{0}, copies{0}, graphs{0},
      captures{0};
};
Counts counts;

bool pageable(const void* p) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, p) != cudaSuccess) {
    cudaGetLastError();
    return true;
  }
  return attributes.type == cudaMemoryTypeUnregistered;
}

}  // namespace

#define ATTUNE_WRAP(counter, name, params, args) \
  cudaError_t __real_##name params;              \
  cudaError_t __wrap_##name params {             \
    ++counts.counter;                            \
    return __real_##name args;                   \
  }

extern "C" {
ATTUNE_WRAP(allocations, cudaMalloc, (void** p, size_t n), (p, n))
ATTUNE_WRAP(allocations, cudaMallocAsync, (void** p, size_t n, cudaStream_t s), (p, n, s))
ATTUNE_WRAP(allocations, cudaHostAlloc, (void** p, size_t n, unsigned f), (p, n, f))
ATTUNE_WRAP(allocations, cudaMallocHost, (void** p, size_t n), (p, n))
ATTUNE_WRAP(allocations, cudaFree, (void* p), (p))
ATTUNE_WRAP(allocations, cudaFreeHost, (void* p), (p))
ATTUNE_WRAP(waits, cudaDeviceSynchronize, (), ())
ATTUNE_WRAP(waits, cudaStreamSynchronize, (cudaStream_t s), (s))
ATTUNE_WRAP(waits, cudaMemcpy, (void* to, const void* from, size_t n, cudaMemcpyKind k),
            (to, from, n, k))
ATTUNE_WRAP(waits, cudaMemset, (void* p, int v, size_t n), (p, v, n))
ATTUNE_WRAP(captures, cudaStreamBeginCapture, (cudaStream_t s, cudaStreamCaptureMode m), (s, m))
ATTUNE_WRAP(graphs, cudaGraphLaunch, (cudaGraphExec_t g, cudaStream_t s), (g, s))

cudaError_t __real_cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t);
cudaError_t __wrap_cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind k,
                                   cudaStream_t s) {
  ++counts.copies;
  if (pageable(to) || pageable(from)) ++counts.pageable_copies;
  return __real_cudaMemcpyAsync(to, from, n, k, s);
}
}

namespace {

// A model of the shape that every backend serves, with made-up weights.
constexpr char kConfig[] = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
  "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4,
  "num_key_value_heads": 2, "vocab_size": 1024, "max_position_embeddings": 2048,
  "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "tie_word_embeddings": false})";

class StepCounts : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto device = ::attune::device::create_cuda_device(0);
    if (!device.ok()) GTEST_SKIP() << device.status().message();
    folder_.write("config.json", kConfig);
    options_.model = folder_.path();
    options_.load_format = "dummy";
    options_.device = "cuda";
    options_.max_total_tokens = 16384;
    options_.attention_backend = GetParam();
    options_.cuda_libraries = cuda_libraries();
    const std::string missing = backend_missing(GetParam());
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
  // What is done once: steps of every number of sequences alone, which are captured at their
  // second, and prompts that join those which decode.
  static void warm_up(Engine& engine) {
    std::vector<Started> all;
    for (int32_t i = 0; i < 3; ++i) {
      all.push_back(start(engine, {i + 1, 2, 3, 4}, testing::tokens(96 - 24 * i)));
      all.back()->wait_for_tokens(8);
    }
    for (Started& s : all) s->wait();
  }
  // Some sequences decode `tokens` tokens, together.
  static void decode(Engine& engine, int32_t tokens) {
    std::vector<Started> all;
    for (int32_t i = 0; i < 3; ++i)
      all.push_back(start(engine, {i + 1, 2, 3, 4}, testing::tokens(tokens)));
    for (Started& s : all) s->wait();
    for (Started& s : all) EXPECT_EQ(std::ssize(s->tokens), tokens) << s->error;
  }
  const formats::TempFolder folder_;
  Options options_;
};

TEST_P(StepCounts, DecodeStepsNeitherAllocateNorWait) {
  auto engine = make_engine(options_);
  ASSERT_TRUE(engine);
  warm_up(*engine);
  decode(*engine, 64);  // what differs below is decode alone
  const auto read = [] {
    return std::array<int64_t, 6>{counts.allocations, counts.waits,  counts.pageable_copies,
                                  counts.copies,      counts.graphs, counts.captures};
  };
  const auto before_short = read();
  const uint64_t steps_before = engine->stats().steps;
  decode(*engine, 16);
  const auto after_short = read();
  const uint64_t steps_short = engine->stats().steps;
  decode(*engine, 272);
  const auto after_long = read();
  const uint64_t steps_long = engine->stats().steps;
  // Per 256 decode steps more than the short run had.
  const auto more = [&](int i) {
    return (after_long[i] - after_short[i]) - (after_short[i] - before_short[i]);
  };
  const auto steps =
      static_cast<int64_t>((steps_long - steps_short) - (steps_short - steps_before));
  EXPECT_GE(steps, 250);
  EXPECT_EQ(more(0), 0) << "allocations";
  EXPECT_EQ(more(1), 0) << "waits";
  EXPECT_EQ(more(2), 0) << "copies that wait for pageable memory";
  EXPECT_EQ(more(5), 0) << "captures";
  EXPECT_NEAR(double(more(4)), double(steps), 4) << "graph launches";
  // Up: the step's arrays, and what a library planned on the host (two); down: the sampled tokens.
  EXPECT_LE(more(3), 4 * steps + 8) << "copies";
  EXPECT_GE(more(3), 2 * steps - 8) << "copies";
}

// An engine is ready without graphs: each is made when a second step of its size comes.
TEST_P(StepCounts, BugL11GraphsAreCapturedWhenTheyAreNeeded) {
  const int64_t before = counts.captures;
  auto engine = make_engine(options_);
  ASSERT_TRUE(engine);
  EXPECT_EQ(counts.captures - before, 0);
  auto alone = start(*engine, {1, 2, 3}, testing::tokens(16));
  alone->wait();
  EXPECT_EQ(counts.captures - before, 1) << "one sequence, one size";
  decode(*engine, 16);
  EXPECT_LE(counts.captures - before, 3) << "up to three sequences";
}
INSTANTIATE_TEST_SUITE_P(Backends, StepCounts, ::testing::Values("", "reference", "cudnn", "fa3"));

}  // namespace
}  // namespace attune::engine::testing
