// Public bug reports about appending to the cache, each as its own small case: what is written is
// the rows of the slot mapping, whatever the pool's size, and not a byte more.
#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "ops/ops.h"
#include "ops/test_stream.h"

namespace attune::ops {
namespace {

using test::random_floats;
using test::TestStream;

const OpTable& table() {
  return cpu_ops(device::CpuIsa::kAvx2);
}

// Address space that takes memory only where it is touched, and tells where that was.
class SparsePool {
 public:
  explicit SparsePool(int64_t bytes)
      : bytes_(bytes),
        base_(mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (base_ != MAP_FAILED) madvise(base_, static_cast<size_t>(bytes), MADV_NOHUGEPAGE);
  }
  ~SparsePool() {
    if (base_ != MAP_FAILED) munmap(base_, static_cast<size_t>(bytes_));
  }
  bool mapped() const { return base_ != MAP_FAILED; }
  char* base() const { return static_cast<char*>(base_); }

  // First bytes of the system's pages that were written to.
  std::set<int64_t> touched() const {
    const int64_t page = system_page();
    std::vector<unsigned char> resident(static_cast<size_t>(bytes_ / page));
    EXPECT_EQ(mincore(base_, static_cast<size_t>(bytes_), resident.data()), 0);
    std::set<int64_t> pages;
    for (size_t i = 0; i < resident.size(); ++i)
      if (resident[i] & 1) pages.insert(static_cast<int64_t>(i) * page);
    return pages;
  }
  static int64_t system_page() { return sysconf(_SC_PAGESIZE); }

 private:
  const int64_t bytes_;
  void* const base_;
};

constexpr int32_t kLength = 4096, kRows = 5, kDim = 16;

// A cache of five rows of 4096 tokens, each row 2^30 and then 2^31 elements from the next: tokens
// at both ends of rows 0 to 4 lie where they belong, and nothing else is touched.
TEST(BugA16, AnAppendStaysInItsRowHoweverFarRowsLieApart) {
  for (const int64_t stride : {int64_t{1} << 30, int64_t{1} << 31}) {
    const int64_t row_bytes = stride * 4, token_bytes = 2 * kDim * 4;  // K and V of one head
    SparsePool pool(kRows * row_bytes);
    ASSERT_TRUE(pool.mapped());
    std::vector<int64_t> slots;
    for (int64_t r : {3, 0, 4, 1, 2})
      for (int64_t at : {0, kLength - 1}) slots.push_back(r * kLength + at);
    const auto tokens = static_cast<int32_t>(slots.size());
    const auto qkv = random_floats(static_cast<size_t>(tokens) * 3 * kDim, 7);
    const std::vector<float> cos(tokens * kDim / 2, 1.0f), sin(tokens * kDim / 2, 0.0f);
    std::vector<float> q(tokens * kDim);
    TestStream stream(2);
    stream.run(table().rope_append, {.qkv = qkv.data(),
                                     .ldqkv = 3 * kDim,
                                     .tokens = tokens,
                                     .q_heads = 1,
                                     .kv_heads = 1,
                                     .head_dim = kDim,
                                     .rot_dim = kDim,
                                     .cos = cos.data(),
                                     .sin = sin.data(),
                                     .q_out = q.data(),
                                     .slot_mapping = slots.data(),
                                     .kv_base = pool.base(),
                                     .kv_dtype = DType::kF32,
                                     .page_stride = row_bytes,
                                     .head_stride = token_bytes,
                                     .token_stride = token_bytes,
                                     .v_offset = kDim * 4,
                                     .page_size = kLength});
    std::set<int64_t> expected;
    for (int32_t t = 0; t < tokens; ++t) {
      const int64_t at = slots[t] / kLength * row_bytes + slots[t] % kLength * token_bytes;
      // Angles of 0: keys and values are as they came.
      EXPECT_EQ(std::memcmp(pool.base() + at, qkv.data() + t * 3 * kDim + kDim, token_bytes), 0)
          << "token " << t << ", stride " << stride;
      expected.insert(at / SparsePool::system_page() * SparsePool::system_page());
      std::memset(pool.base() + at, 0, token_bytes);
    }
    EXPECT_EQ(pool.touched(), expected) << "stride " << stride;
    for (int64_t page : expected) {
      const char* begin = pool.base() + page;
      EXPECT_TRUE(
          std::all_of(begin, begin + SparsePool::system_page(), [](char c) { return c == 0; }));
    }
  }
}

// The same for latent rows, which are one head of [latent | rotated key].
TEST(BugA16, ALatentRowStaysInItsRowHoweverFarRowsLieApart) {
  constexpr int32_t kLatent = 24, kRot = 8, kRow = kLatent + kRot;
  const int64_t row_bytes = (int64_t{1} << 31) * 4;
  SparsePool pool(kRows * row_bytes);
  ASSERT_TRUE(pool.mapped());
  const std::vector<int64_t> slots = {4 * kLength + 1, 0, 2 * kLength - 1, 2 * kLength};
  const auto tokens = static_cast<int32_t>(slots.size());
  const auto kv = random_floats(static_cast<size_t>(tokens) * kRow, 8);
  const std::vector<float> norm(kLatent, 1.0f), cos(tokens * kRot / 2, 1.0f),
      sin(tokens * kRot / 2, 0.0f);
  TestStream stream(2);
  stream.run(table().latent_append, {.kv = kv.data(),
                                     .ldkv = kRow,
                                     .tokens = tokens,
                                     .latent_dim = kLatent,
                                     .rot_dim = kRot,
                                     .cos = cos.data(),
                                     .sin = sin.data(),
                                     .norm = norm.data(),
                                     .norm_eps = 1e-6f,
                                     .slot_mapping = slots.data(),
                                     .kv_base = pool.base(),
                                     .kv_dtype = DType::kF32,
                                     .page_stride = row_bytes,
                                     .token_stride = kRow * 4,
                                     .page_size = kLength});
  std::set<int64_t> expected;
  for (int32_t t = 0; t < tokens; ++t) {
    const int64_t at = slots[t] / kLength * row_bytes + slots[t] % kLength * kRow * 4;
    const float* x = kv.data() + t * kRow;
    EXPECT_EQ(std::memcmp(pool.base() + at + kLatent * 4, x + kLatent, kRot * 4), 0) << t;
    expected.insert(at / SparsePool::system_page() * SparsePool::system_page());
  }
  EXPECT_EQ(pool.touched(), expected);
}

// Heads that fill no vector, in the first and the last place of a pool: no row is longer than its
// head, so neither the bytes before and behind the pool nor another token's are written.
TEST(BugE06, RowsOfTheFirstAndLastPlaceEndWhereTheirHeadsDo) {
  constexpr int32_t kHeads = 3, kOdd = 20, kPage = 4, kSlots = 2, kGuard = 64;
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (RopeStyle style : {RopeStyle::kHalf, RopeStyle::kInterleaved}) {
      const int64_t e = tensor::dtype_bytes(dtype, 1),
                    half_pool = kSlots * kPage * kHeads * kOdd * e;
      std::vector<char> memory(2 * half_pool + 2 * kGuard, char(0x5a));
      const std::vector<int64_t> slots = {0, kSlots * kPage - 1};
      const auto qkv = random_floats(2 * 3 * kHeads * kOdd, 9);
      const auto norm = random_floats(kOdd, 10);
      const std::vector<float> cos(kOdd, 0.8f), sin(kOdd, 0.6f);
      std::vector<float> q(2 * kHeads * kOdd);
      TestStream stream(1);
      stream.run(table().rope_append, {.qkv = qkv.data(),
                                       .ldqkv = 3 * kHeads * kOdd,
                                       .tokens = 2,
                                       .q_heads = kHeads,
                                       .kv_heads = kHeads,
                                       .head_dim = kOdd,
                                       .rot_dim = 12,
                                       .style = style,
                                       .cos = cos.data(),
                                       .sin = sin.data(),
                                       .q_norm = norm.data(),
                                       .k_norm = norm.data(),
                                       .norm_eps = 1e-6f,
                                       .q_out = q.data(),
                                       .slot_mapping = slots.data(),
                                       .kv_base = memory.data() + kGuard,
                                       .kv_dtype = dtype,
                                       .page_stride = kPage * kHeads * kOdd * e,
                                       .head_stride = kOdd * e,
                                       .token_stride = kHeads * kOdd * e,
                                       .v_offset = half_pool,
                                       .page_size = kPage});
      const int64_t token = kHeads * kOdd * e;
      const auto owned = [&](int64_t i) {  // by one of the two tokens, in K or in V
        const int64_t at = i - kGuard, in_half = at % half_pool;
        return at >= 0 && at < 2 * half_pool && (in_half < token || in_half >= half_pool - token);
      };
      int64_t changed = 0;
      for (int64_t i = 0; i < static_cast<int64_t>(memory.size()); ++i) {
        if (owned(i)) {
          changed += memory[i] != 0x5a;
        } else {
          ASSERT_EQ(memory[i], 0x5a) << tensor::dtype_name(dtype) << ", byte " << i - kGuard;
        }
      }
      EXPECT_GT(changed, 4 * token * 9 / 10);
    }
  }
}

}  // namespace
}  // namespace attune::ops
