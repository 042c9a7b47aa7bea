// What a CPU's backends do with host memory: address space without memory behind it, and counted
// allocations.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <future>

#include "allocations.h"
#include "suite.h"
#include "tensor/half.h"

namespace attune::attention::test {
namespace {

using tensor::DType;

using BugA14 = Suite;
using BugE09 = Suite;
using Allocations = Suite;

// A pool of more than 2^32 bytes and 2^31 elements; only the pages that are touched take memory.
TEST_P(BugA14, OffsetsOf64Bits) {
  const kv::KvGeometry g{{1, 16, 16, DType::kBF16}, 1, 16};
  const int64_t slots = (int64_t{5} << 30) / g.piece_bytes();
  const int64_t bytes = slots * g.piece_bytes();
  void* pool = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(pool, MAP_FAILED);
  const auto view = kv::make_view(g, pool, static_cast<int32_t>(slots));
  const std::vector<int32_t> near = {1, 2}, far = {int32_t(slots - 1), int32_t(slots - 2)};
  const auto values = Problem::values(3, 0, 20, 32);
  for (const auto& where : {near, far}) {
    for (int i = 0; i < 20; ++i) {
      for (int d = 0; d < 32; ++d) {
        char* at = static_cast<char*>(pool) + int64_t{where[i / 16]} * view.page_stride +
                   (d < 16 ? 0 : view.v_offset) + i % 16 * view.k_token_stride + d % 16 * 2;
        const uint16_t h = tensor::f32_to_bf16(values[i * 32 + d]);
        std::memcpy(at, &h, 2);
      }
    }
  }
  auto device = device::create_cpu_device(1, "auto");
  const auto stream = (*device)->create_stream();
  const auto q = Problem::values(4, 0, 1, 16);
  std::vector<float> results[2];
  for (int i = 0; i < 2; ++i) {
    const int32_t indptr[] = {0, 1}, kv_len[] = {20}, pages[] = {0, 2};
    Batch b{.phase = Phase::kDecode,
            .num_seqs = 1,
            .num_tokens = 1,
            .max_q_len = 1,
            .max_kv_len = 20,
            .q_indptr = indptr,
            .kv_len = kv_len,
            .page_indptr = pages,
            .page_slots = (i ? far : near).data(),
            .page_size = 16};
    const Limits limits{1, 1, 20, 1, 1, 16, 16, 16, int32_t(slots), 1};
    std::vector<char> workspace(runner_.backend().workspace_bytes(limits));
    const auto plan = runner_.backend().make_plan(limits, workspace.data());
    ASSERT_TRUE(runner_.backend().plan(b, *plan, runner_.stream()).ok());
    results[i].resize(16);
    const Io io{.q = q.data(), .q_stride = 16, .out = results[i].data(), .out_stride = 16};
    const LayerParams layer{.q_heads = 1, .kv_heads = 1, .scale = 0.25f};
    stream->launch([&] { runner_.backend().run(*plan, layer, view, io, *stream); });
    stream->synchronize();
  }
  munmap(pool, bytes);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_NE(results[0][0], 0.0f);
}
ATTUNE_SUITE_OVER(BugA14, best_targets());

// A pool of 40,000 pages of which only the request's can be touched at all: any pass over the pool
// would fault. Nor does the workspace grow with it.
TEST_P(BugE09, ThePoolBesideARequestIsNeverTouched) {
  if (!serves(absorbed(16, 512, 64), Phase::kDecode)) return;
  const kv::KvGeometry g{{1, 576, 512, tensor::DType::kF32, true}, 1, 16};
  const int64_t slots = 40000, piece = g.piece_bytes();
  ASSERT_EQ(piece % getpagesize(), 0);
  char* pool = static_cast<char*>(
      mmap(nullptr, slots * piece, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  ASSERT_NE(pool, MAP_FAILED);
  const std::vector<int32_t> mine = {39998, 7, 20000};
  const int32_t len = 41;
  const auto rows = Problem::values(1, 0, len, 576);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(mprotect(pool + mine[i] * piece, piece, PROT_READ | PROT_WRITE), 0);
    for (int t = 0; t < 16 && i * 16 + t < len; ++t)
      std::memcpy(pool + mine[i] * piece + t * 2304, rows.data() + (i * 16 + t) * 576, 2304);
  }
  const Problem small(absorbed(16, 512, 64), {{1, len, 1}});
  const Output want = runner_.run(small, Phase::kDecode);

  Batch batch = small.batch(Phase::kDecode);
  batch.page_slots = mine.data();
  Limits limits = small.limits(2);
  const int64_t bytes = runner_.backend().workspace_bytes(limits);
  limits.num_slots = slots;
  EXPECT_EQ(runner_.backend().workspace_bytes(limits), bytes);
  std::vector<char> workspace(bytes + 64);
  const auto plan = runner_.backend().make_plan(limits, workspace.data());
  ASSERT_TRUE(runner_.backend().plan(batch, *plan, runner_.stream()).ok());
  Output got{std::vector<float>(16 * 512), std::vector<float>(16)};
  const Io io{.q = small.q().data(),
              .q_stride = 16 * 576,
              .out = got.out.data(),
              .out_stride = 16 * 512,
              .lse = got.lse.data()};
  const auto view = kv::make_view(g, pool, static_cast<int32_t>(slots));
  runner_.stream().launch([&] {
    runner_.backend().plan_on(*plan, runner_.stream());
    runner_.backend().run(*plan, small.layer(), view, io, runner_.stream());
  });
  runner_.stream().synchronize();
  munmap(pool, slots * piece);
  expect_same_bits(got, want, "in a large pool");
}
ATTUNE_SUITE(BugE09);

// F5 and F8: the second time that a batch of some size comes, its metadata go where they were.
TEST_P(Allocations, NoAllocationOnceWarm) {
  if (caps().name == "reference") GTEST_SKIP() << "the oracle allocates as it goes";
  for (const Shape& wanted :
       {Shape{.q_heads = 6, .kv_heads = 2, .qk_dim = 16, .v_dim = 16}, absorbed(16, 16, 8)}) {
    const Shape shape = adapt(wanted);
    if (!serves(shape, Phase::kDecode)) continue;
    // More tiles than fit a small sort's buffer; some contexts long enough to be split.
    Problem p(shape, {{1, 3000, 1}, {40, 90, 2}, {1, 5, 3}, {0, 9, 4}, {1, 700, 5}, {90, 90, 6}});
    const auto plan = runner_.make_plan(p);
    const Batch batch = p.batch(Phase::kPrefill);
    const LayerParams layer = p.layer();
    const int64_t q_width = int64_t{shape.q_heads} * shape.qk_dim,
                  out_width = int64_t{shape.q_heads} * shape.v_dim;
    std::vector<float> out(p.tokens() * out_width), lse(p.tokens() * shape.q_heads);
    const Io io{.q = p.q().data(),
                .q_stride = q_width,
                .out = out.data(),
                .out_stride = out_width,
                .lse = lse.data()};
    device::Stream& stream = runner_.stream();
    const auto step = [&] {
      const Status planned =
          counting([&] { return runner_.backend().plan(batch, *plan, runner_.stream()); });
      EXPECT_TRUE(planned.ok()) << planned.to_string();
      std::promise<void> counted;  // synchronize() itself may allocate
      const auto until_counted = counted.get_future();
      stream.launch([&] {
        counting([&] {
          runner_.backend().plan_on(*plan, stream);
          for (int i = 0; i < 3; ++i) runner_.backend().run(*plan, layer, p.view(), io, stream);
        });
        counted.set_value();
      });
      until_counted.wait();
      stream.synchronize();
    };
    step();
    const int64_t before = allocations();
    for (int i = 0; i < 5; ++i) step();
    EXPECT_EQ(allocations(), before);
    counting([&] { p.set_q(std::vector<float>(p.q())); });
    EXPECT_GT(allocations(), before) << "an allocation would have been seen";
  }
}
ATTUNE_SUITE(Allocations);

}  // namespace
}  // namespace attune::attention::test
