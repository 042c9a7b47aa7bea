#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "ops/cuda_kernels.h"
#include "ops/gpu_test_util.h"

namespace attune::ops {
namespace {

using test::element;
using test::encode;
using test::random_floats;

constexpr DType kKvTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3,
                              DType::kF8E5M2};

// Angles of any kind: the ops only use the table.
std::vector<float> table_of(int32_t tokens, int32_t half, bool sine) {
  std::vector<float> v(static_cast<size_t>(tokens) * half);
  for (int32_t t = 0; t < tokens; ++t)
    for (int32_t i = 0; i < half; ++i)
      v[static_cast<size_t>(t) * half + i] =
          static_cast<float>(sine ? std::sin(0.37 * t + 0.11 * i) : std::cos(0.37 * t + 0.11 * i));
  return v;
}

struct Shape {
  int32_t tokens, q_heads, kv_heads, head_dim, rot_dim;
  RopeStyle style;
  bool norm;
  int32_t gap;  // of qkv's rows, elements
};

class CudaRopeAppend : public test::GpuTest {
 protected:
  static constexpr int32_t kPage = 4;

  void check(const Shape& s, DType in, DType kv, float k_scale, float v_scale, bool head_major) {
    const int32_t d = s.head_dim, half = s.rot_dim / 2;
    const int64_t width = int64_t{s.q_heads + 2 * s.kv_heads} * d, ld = width + s.gap;
    const auto qkv = encode(random_floats(static_cast<size_t>(s.tokens * ld), d, 2.0f), in);
    const auto q_norm = random_floats(d, 4), k_norm = random_floats(d, 5);
    const auto cos = table_of(s.tokens, half, false), sin = table_of(s.tokens, half, true);
    const int32_t pages = s.tokens / kPage + 3;
    std::vector<int64_t> slots(s.tokens);
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), std::mt19937(9));
    for (auto& slot : slots) slot += kPage;
    for (int32_t t = 4; t < s.tokens; t += 9) slots[t] = -1;
    const int64_t e = tensor::dtype_bytes(kv, 1), piece = 2 * s.kv_heads * kPage * d * e;
    const size_t pool_bytes = static_cast<size_t>(pages * piece);
    const size_t q_bytes =
        static_cast<size_t>(int64_t{s.tokens} * s.q_heads * d * tensor::dtype_bytes(in, 1));
    RopeAppendParams p{};
    p.dtype = in;
    p.ldqkv = ld;
    p.tokens = s.tokens;
    p.q_heads = s.q_heads;
    p.kv_heads = s.kv_heads;
    p.head_dim = d;
    p.rot_dim = s.rot_dim;
    p.style = s.style;
    p.norm_eps = 1e-6f;
    p.kv_dtype = kv;
    p.page_stride = piece;
    p.head_stride = (head_major ? kPage : 1) * d * e;
    p.token_stride = (head_major ? 1 : s.kv_heads) * d * e;
    p.v_offset = piece / 2;
    p.page_size = kPage;
    p.k_scale = k_scale;
    p.v_scale = v_scale;
    p.qkv = upload(qkv);
    p.cos = upload(cos);
    p.sin = upload(sin);
    p.q_norm = s.norm ? upload(q_norm) : nullptr;
    p.k_norm = s.norm ? upload(k_norm) : nullptr;
    p.slot_mapping = upload(slots);
    uint8_t *q = output<uint8_t>(q_bytes), *pool = output<uint8_t>(pool_bytes);
    p.q_out = q;
    p.kv_base = pool;
    run(cuda::rope_append, p);
    const auto got_q = download(q, q_bytes), got_kv = download(pool, pool_bytes);

    std::vector<char> owned(pool_bytes, 0);
    const auto wanted = [&](int32_t t, int32_t head, const float* norm) {
      std::vector<double> y(d);
      double square = 0;
      for (int32_t i = 0; i < d; ++i) {
        y[i] = element(qkv.data(), in, t * ld + int64_t{head} * d + i);
        square += y[i] * y[i];
      }
      if (norm)
        for (int32_t i = 0; i < d; ++i) y[i] *= norm[i] / std::sqrt(square / d + 1e-6);
      return y;
    };
    const auto rotated = [&](int32_t t, std::vector<double> y) {
      for (int32_t i = 0; i < half; ++i) {
        const int32_t a = s.style == RopeStyle::kHalf ? i : 2 * i,
                      b = s.style == RopeStyle::kHalf ? i + half : 2 * i + 1;
        const double c = cos[t * half + i], n = sin[t * half + i], ya = y[a], yb = y[b];
        y[a] = ya * c - yb * n;
        y[b] = yb * c + ya * n;
      }
      return y;
    };
    // Of a sum of two products: relative to their size, which is some units.
    const auto tolerance = [](double want, DType to, double divisor) {
      const double subnormal = to == DType::kF8E4M3   ? 0x1p-10
                               : to == DType::kF8E5M2 ? 0x1p-17
                               : to == DType::kF16    ? 0x1p-25
                                                      : 0;
      return std::abs(want) * 1.01 * test::rounding(to) + subnormal + 1e-5 / divisor;
    };
    for (int32_t t = 0; t < s.tokens; ++t) {
      for (int32_t h = 0; h < s.q_heads; ++h) {
        const auto want = rotated(t, wanted(t, h, s.norm ? q_norm.data() : nullptr));
        for (int32_t i = 0; i < d; ++i)
          ASSERT_NEAR(element(got_q.data(), in, (int64_t{t} * s.q_heads + h) * d + i), want[i],
                      tolerance(want[i], in, 1))
              << "q: token " << t << ", head " << h << ", element " << i;
      }
      if (slots[t] < 0) continue;
      for (int32_t h = 0; h < s.kv_heads; ++h) {
        const int64_t at =
            slots[t] / kPage * piece + slots[t] % kPage * p.token_stride + h * p.head_stride;
        const auto k = rotated(t, wanted(t, s.q_heads + h, s.norm ? k_norm.data() : nullptr));
        const auto v = wanted(t, s.q_heads + s.kv_heads + h, nullptr);
        for (int32_t i = 0; i < d; ++i) {
          ASSERT_NEAR(element(&got_kv[at], kv, i), k[i] / k_scale,
                      tolerance(k[i] / k_scale, kv, k_scale))
              << "k: token " << t << ", head " << h << ", element " << i;
          ASSERT_NEAR(element(&got_kv[at + p.v_offset], kv, i), v[i] / v_scale,
                      tolerance(v[i] / v_scale, kv, v_scale))
              << "v: token " << t << ", head " << h << ", element " << i;
        }
        std::memset(&owned[at], 1, d * e);
        std::memset(&owned[at + p.v_offset], 1, d * e);
      }
    }
    for (size_t i = 0; i < pool_bytes; ++i)  // bug A-16: nothing else is touched
      if (!owned[i]) {
        ASSERT_EQ(got_kv[i], kPoison) << "byte " << i;
      }
    if (in == DType::kF32) compare_with_cpu(p, qkv, cos, sin, q_norm, k_norm, slots, got_q, got_kv);
  }

  // The CPU's op on the same numbers: within a rounding of the stored type.
  void compare_with_cpu(RopeAppendParams p, const std::vector<uint8_t>& qkv,
                        const std::vector<float>& cos, const std::vector<float>& sin,
                        const std::vector<float>& q_norm, const std::vector<float>& k_norm,
                        const std::vector<int64_t>& slots, const std::vector<uint8_t>& got_q,
                        const std::vector<uint8_t>& got_kv) {
    std::vector<float> q(got_q.size() / 4);
    std::vector<uint8_t> pool(got_kv.size(), kPoison);
    p.qkv = qkv.data();
    p.cos = cos.data();
    p.sin = sin.data();
    if (p.q_norm) p.q_norm = q_norm.data();
    if (p.k_norm) p.k_norm = k_norm.data();
    p.slot_mapping = slots.data();
    p.q_out = q.data();
    p.kv_base = pool.data();
    run_on_cpu(cpu_table().rope_append, p);
    for (size_t i = 0; i < q.size(); ++i)
      ASSERT_NEAR(q[i], element(got_q.data(), DType::kF32, static_cast<int64_t>(i)), 2e-5);
    const auto n = static_cast<int64_t>(pool.size()) / tensor::dtype_bytes(p.kv_dtype, 1);
    for (int64_t i = 0; i < n; ++i) {
      const float a = element(pool.data(), p.kv_dtype, i),
                  b = element(got_kv.data(), p.kv_dtype, i);
      if (std::isnan(a) && std::isnan(b)) continue;
      ASSERT_NEAR(a, b, std::abs(a) * 2.1 * test::rounding(p.kv_dtype) + 2e-5 / p.k_scale) << i;
    }
  }
};

TEST_F(CudaRopeAppend, ShapesStylesAndTypes) {
  const Shape shapes[] = {
      {11, 6, 2, 128, 128, RopeStyle::kHalf, false, 0},
      {11, 6, 2, 128, 128, RopeStyle::kInterleaved, false, 8},
      {5, 32, 8, 128, 128, RopeStyle::kHalf, true, 0},
      {3, 4, 4, 64, 64, RopeStyle::kHalf, false, 16},
      {3, 4, 1, 64, 32, RopeStyle::kInterleaved, true, 0},
      {7, 3, 1, 96, 96, RopeStyle::kHalf, true, 0},
      {7, 5, 5, 80, 32, RopeStyle::kHalf, true, 0},
      {2, 8, 4, 256, 256, RopeStyle::kHalf, true, 0},
      {2, 2, 2, 512, 128, RopeStyle::kInterleaved, true, 0},
      {9, 6, 2, 20, 20, RopeStyle::kHalf, false, 3},  // one element at a time
      {9, 6, 2, 20, 12, RopeStyle::kInterleaved, true, 3},
      {9, 3, 3, 128, 128, RopeStyle::kHalf, true, 1},  // rows that are not aligned
      {4, 2, 1, 112, 56, RopeStyle::kHalf, true, 0},
      {1, 1, 1, 1024, 1024, RopeStyle::kHalf, true, 0},
      {300, 4, 2, 128, 128, RopeStyle::kHalf, true, 0},
  };
  for (const Shape& s : shapes)
    for (DType in : {DType::kF32, DType::kBF16})
      for (DType kv : kKvTypes) {
        SCOPED_TRACE(::testing::Message()
                     << s.tokens << " tokens, " << s.q_heads << "/" << s.kv_heads << " heads of "
                     << s.head_dim << ", rotated " << s.rot_dim << ", " << tensor::dtype_name(in)
                     << " to " << tensor::dtype_name(kv));
        check(s, in, kv, 1, 1, s.tokens % 2 == 0);
        if (HasFatalFailure()) return;
      }
}

// A pool of pages full of NaN, before and after tokens were appended.
struct ClearCase {
  static constexpr int32_t kPage = 16, kPages = 14, kQHeads = 4, kKvHeads = 2;
  DType kv = DType::kBF16;
  int32_t d = 0;
  bool head_major = true, asked = true;
  std::vector<int64_t> slots;
  std::vector<float> qkv;

  int32_t tokens() const { return static_cast<int32_t>(slots.size()); }
  int64_t width() const { return int64_t{kQHeads + 2 * kKvHeads} * d; }
  RopeAppendParams params() const {
    const int64_t e = tensor::dtype_bytes(kv, 1);
    RopeAppendParams p{};
    p.dtype = DType::kF32;
    p.ldqkv = width();
    p.tokens = tokens();
    p.q_heads = kQHeads;
    p.kv_heads = kKvHeads;
    p.head_dim = d;  // and nothing is rotated
    p.kv_dtype = kv;
    p.page_stride = 2 * kKvHeads * kPage * d * e;
    p.head_stride = (head_major ? kPage : 1) * d * e;
    p.token_stride = (head_major ? 1 : kKvHeads) * d * e;
    p.v_offset = p.page_stride / 2;
    p.page_size = kPage;
    p.clear_rest = asked;
    return p;
  }
  std::vector<uint8_t> poisoned() const {
    const auto nan = encode({std::numeric_limits<float>::quiet_NaN()}, kv);
    std::vector<uint8_t> pool(static_cast<size_t>(kPages * params().page_stride));
    for (size_t i = 0; i < pool.size(); ++i) pool[i] = nan[i % nan.size()];
    return pool;
  }
  bool holds(int64_t slot) const {
    return std::find(slots.begin(), slots.end(), slot) != slots.end();
  }
  // Every slot of a page that was begun has what a token wrote there, or zeros; others are as they
  // were.
  void expect(const std::vector<uint8_t>& pool) const {
    for (int64_t slot = 0; slot < int64_t{kPages} * kPage; ++slot)
      for (int32_t h = 0; h < 2 * kKvHeads; ++h)
        expect_row(pool, slot, h % kKvHeads, h >= kKvHeads);
  }
  void expect_row(const std::vector<uint8_t>& pool, int64_t slot, int32_t h, bool v) const {
    const RopeAppendParams p = params();
    const uint8_t* row = pool.data() + slot / kPage * p.page_stride +
                         slot % kPage * p.token_stride + h * p.head_stride + (v ? p.v_offset : 0);
    const auto token = std::find(slots.begin(), slots.end(), slot) - slots.begin();
    const int64_t first = token * width() + (kQHeads + (v ? kKvHeads : 0) + h) * d;
    const bool cleared = asked && holds(slot / kPage * kPage);
    for (int32_t i = 0; i < d; ++i) {
      const float x = element(row, kv, i);
      if (token < tokens()) {
        const float want = qkv[static_cast<size_t>(first + i)];
        ASSERT_NEAR(x, want, std::abs(want) * 1.01 * test::rounding(kv) + 0x1p-10) << slot;
      } else if (cleared) {
        ASSERT_EQ(x, 0.0f) << slot;
      } else {
        ASSERT_TRUE(std::isnan(x)) << slot;
      }
    }
  }
};

// Pages begun by the only token of a call, filled by one call to the end or nearly, begun in the
// middle of a run, begun by an earlier call, and left alone. Alike on both devices.
TEST_F(CudaRopeAppend, APageThatIsBegunIsCleared) {
  constexpr int32_t kSize = ClearCase::kPage;
  std::vector<int64_t> slots;
  for (const auto& [first, count] : {std::pair{2 * kSize, 1},
                                     {5 * kSize, kSize},
                                     {3 * kSize, 7},
                                     {7 * kSize + 5, 3},
                                     {8 * kSize, 20},
                                     {11 * kSize + 15, 1},
                                     {12 * kSize, kSize - 1}}) {
    for (int32_t i = 0; i < count; ++i) slots.push_back(first + i);
    slots.push_back(-1);
  }
  for (int32_t d : {128, 20})
    for (DType kv : kKvTypes)
      for (int variant = 0; variant < 4; ++variant) {
        ClearCase c{kv, d, variant % 2 == 0, variant < 2, slots, {}};
        c.qkv = random_floats(static_cast<size_t>(c.tokens() * c.width()), 8);
        SCOPED_TRACE(::testing::Message() << d << " " << tensor::dtype_name(kv) << " " << variant);
        std::vector<float> q(static_cast<size_t>(c.tokens()) * ClearCase::kQHeads * d);
        std::vector<uint8_t> host = c.poisoned();
        RopeAppendParams p = c.params();
        p.qkv = c.qkv.data();
        p.q_out = q.data();
        p.slot_mapping = slots.data();
        p.kv_base = host.data();
        run_on_cpu(cpu_table().rope_append, p);
        c.expect(host);
        uint8_t* pool = output(c.poisoned());
        p.qkv = upload(c.qkv);
        p.q_out = output<float>(q.size());
        p.slot_mapping = upload(slots);
        p.kv_base = pool;
        run(cuda::rope_append, p);
        c.expect(download(pool, host.size()));
        if (HasFatalFailure()) return;
      }
}

TEST_F(CudaRopeAppend, NoTokens) {
  RopeAppendParams p{};
  p.kv_dtype = DType::kBF16;
  run(cuda::rope_append, p);
}

// Bug A-23: the scales of an 8-bit cache are applied, k's to k and v's to v.
TEST_F(CudaRopeAppend, BugA23ScalesDivideWhatIsStored) {
  const Shape vectors = {9, 4, 2, 128, 128, RopeStyle::kHalf, true, 0},
              elements = {9, 4, 2, 20, 20, RopeStyle::kHalf, false, 1};
  for (DType kv : kKvTypes)
    for (float k_scale : {0.5f, 1.0f, 3.7f})
      for (float v_scale : {0.5f, 1.0f, 3.7f})
        for (const Shape& s : {vectors, elements}) {
          SCOPED_TRACE(::testing::Message() << tensor::dtype_name(kv) << " " << k_scale << " "
                                            << v_scale << " " << s.head_dim);
          check(s, DType::kF32, kv, k_scale, v_scale, true);
          check(s, DType::kBF16, kv, k_scale, v_scale, true);
          if (HasFatalFailure()) return;
        }
}

// Bug A-24's numbers, which are too large for 8 bits: the largest finite is stored, NaN stays NaN,
// and with a scale that brings them into range they are whole. Alike on both devices.
TEST_F(CudaRopeAppend, BugA24TooLargeForEightBits) {
  const float inf = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [dtype, largest] :
       {std::pair{DType::kF8E4M3, 448.0f}, {DType::kF8E5M2, 57344.0f}}) {
    for (int32_t d : {16, 12}) {
      std::vector<float> qkv(3 * d, 1.0f);
      const std::vector<float> special = {2 * largest, -2 * largest, inf,
                                          -inf,        nan,          1.06f * largest};
      std::copy(special.begin(), special.end(), qkv.begin() + 2 * d);
      const std::vector<float> cos(d / 2, 1.0f), sin(d / 2, 0.0f);
      const std::vector<int64_t> slots = {0};
      for (float scale : {1.0f, 4.0f}) {
        RopeAppendParams p{};
        p.dtype = DType::kF32;
        p.ldqkv = 3 * d;
        p.tokens = p.q_heads = p.kv_heads = 1;
        p.head_dim = p.rot_dim = d;
        p.kv_dtype = dtype;
        p.page_stride = 2 * d;
        p.head_stride = p.token_stride = p.v_offset = d;
        p.page_size = 1;
        p.v_scale = scale;
        std::vector<float> q(d);
        std::vector<uint8_t> host(2 * d);
        RopeAppendParams on_cpu = p;
        on_cpu.qkv = qkv.data();
        on_cpu.cos = cos.data();
        on_cpu.sin = sin.data();
        on_cpu.q_out = q.data();
        on_cpu.slot_mapping = slots.data();
        on_cpu.kv_base = host.data();
        run_on_cpu(cpu_table().rope_append, on_cpu);
        p.qkv = upload(qkv);
        p.cos = upload(cos);
        p.sin = upload(sin);
        p.q_out = output<float>(d);
        p.slot_mapping = upload(slots);
        uint8_t* pool = output<uint8_t>(2 * d);
        p.kv_base = pool;
        run(cuda::rope_append, p);
        const auto got = download(pool, 2 * d);
        for (const uint8_t* bytes : {static_cast<const uint8_t*>(host.data()), got.data()}) {
          const auto at = [&](int32_t i) { return element(bytes + d, dtype, i); };
          EXPECT_EQ(at(0), scale == 1 ? largest : largest / 2);
          EXPECT_EQ(at(1), scale == 1 ? -largest : -largest / 2);
          EXPECT_EQ(at(2), largest);
          EXPECT_EQ(at(3), -largest);
          EXPECT_TRUE(std::isnan(at(4)));
          if (scale == 1) {
            EXPECT_EQ(at(5), largest);
          }
          EXPECT_EQ(at(6), 1 / scale);
        }
      }
    }
  }
}

// A pool of 5 GB, in which only far slots are used.
TEST_F(CudaRopeAppend, BugA16SlotsBeyondTwoToThe31Elements) {
  const int32_t d = 128, kv_heads = 8, tokens = 3;
  const int64_t slot_bytes = 2 * kv_heads * d * 2, slots_in_all = 5'000'000'000 / slot_bytes;
  auto* pool = static_cast<uint8_t*>(allocate(static_cast<size_t>(slots_in_all * slot_bytes)));
  ASSERT_NE(pool, nullptr);
  const std::vector<int64_t> slots = {slots_in_all - 1, slots_in_all / 2, slots_in_all - 2};
  const auto qkv = random_floats(tokens * 3 * kv_heads * d, 3);
  const std::vector<float> cos(tokens * d / 2, 1.0f), sin(tokens * d / 2, 0.0f);
  RopeAppendParams p{};
  p.qkv = upload(qkv);
  p.dtype = DType::kF32;
  p.ldqkv = 3 * kv_heads * d;
  p.tokens = tokens;
  p.q_heads = p.kv_heads = kv_heads;
  p.head_dim = p.rot_dim = d;
  p.cos = upload(cos);
  p.sin = upload(sin);
  p.q_out = output<float>(tokens * kv_heads * d);
  p.slot_mapping = upload(slots);
  p.kv_base = pool;
  p.kv_dtype = DType::kBF16;
  p.page_stride = slot_bytes;
  p.head_stride = d * 2;
  p.token_stride = slot_bytes / 2;
  p.v_offset = slot_bytes / 2;
  p.page_size = 1;
  run(cuda::rope_append, p);
  std::vector<uint16_t> got(2 * kv_heads * d);
  for (int32_t t = 0; t < tokens; ++t) {
    stream_->copy(got.data(), pool + slots[t] * slot_bytes, slot_bytes);
    stream_->synchronize();
    for (int32_t i = 0; i < 2 * kv_heads * d; ++i)
      ASSERT_EQ(got[i], tensor::f32_to_bf16(qkv[t * 3 * kv_heads * d + kv_heads * d + i]))
          << "token " << t;
  }
  stream_->copy(got.data(), pool, slot_bytes);  // where 32 bits would have wrapped to
  stream_->synchronize();
  for (uint16_t v : got) ASSERT_EQ(v, 0);
}

class CudaRope : public test::GpuTest {};

TEST_F(CudaRope, TableIsTheCpus) {
  for (const auto& [tokens, rot_dim] : {std::pair{0, 8}, {1, 128}, {77, 64}, {3000, 96}}) {
    std::vector<int32_t> positions(tokens);
    for (int32_t t = 0; t < tokens; ++t) positions[t] = t * 47;
    const int32_t half = rot_dim / 2;
    std::vector<float> inv_freq(half);
    for (int32_t i = 0; i < half; ++i)
      inv_freq[i] = static_cast<float>(std::pow(500000.0, -2.0 * i / rot_dim));
    const auto size = static_cast<size_t>(tokens) * half;
    std::vector<float> cos(size), sin(size);
    RopeTableParams p{positions.data(), tokens,    inv_freq.data(), rot_dim, 1.25f,
                      cos.data(),       sin.data()};
    run_on_cpu(cpu_table().rope_table, p);
    p.positions = upload(positions);
    p.inv_freq = upload(inv_freq);
    p.cos = output<float>(size);
    p.sin = output<float>(size);
    run(cuda::rope_table, p);
    const auto got_cos = download(p.cos, size), got_sin = download(p.sin, size);
    for (size_t i = 0; i < size; ++i) {
      ASSERT_NEAR(got_cos[i], cos[i], 1.3e-7) << i;
      ASSERT_NEAR(got_sin[i], sin[i], 1.3e-7) << i;
    }
  }
}

TEST_F(CudaRope, RotatesPartOfEveryHeadAlsoInPlace) {
  for (RopeStyle style : {RopeStyle::kHalf, RopeStyle::kInterleaved}) {
    for (bool in_place : {false, true}) {
      const int32_t tokens = 13, heads = 5, rot = 24, head = 41, half = rot / 2;
      const auto x = random_floats(tokens * heads * head, 3);
      const auto cos = table_of(tokens, half, false), sin = table_of(tokens, half, true);
      float* from = output(x, x.size());
      float* to = in_place ? from : output<float>(x.size());
      run(cuda::rope, RopeParams{from, heads * head, head, tokens, heads, rot, style, upload(cos),
                                 upload(sin), to, DType::kF32, heads * head, head});
      run(cuda::rope, RopeParams{from, heads * head, head, 0, heads, rot, style, nullptr, nullptr,
                                 to, DType::kF32, heads * head, head});
      const auto got = download(to, x.size());
      for (int32_t t = 0; t < tokens; ++t)
        for (int32_t h = 0; h < heads; ++h) {
          const int64_t at = (t * heads + h) * head;
          for (int32_t i = 0; i < half; ++i) {
            const int32_t a = style == RopeStyle::kHalf ? i : 2 * i,
                          b = style == RopeStyle::kHalf ? i + half : 2 * i + 1;
            const double c = cos[t * half + i], s = sin[t * half + i];
            ASSERT_NEAR(got[at + a], x[at + a] * c - x[at + b] * s, 2e-6);
            ASSERT_NEAR(got[at + b], x[at + b] * c + x[at + a] * s, 2e-6);
          }
          for (int32_t i = rot; i < head && in_place; ++i) ASSERT_EQ(got[at + i], x[at + i]);
        }
    }
  }
}

TEST_F(CudaRope, RotatesIntoBfloat16) {
  const int32_t tokens = 7, heads = 3, rot = 64, half = rot / 2;
  const auto x = random_floats(tokens * heads * rot, 4);
  const auto cos = table_of(tokens, half, false), sin = table_of(tokens, half, true);
  uint16_t* out = output<uint16_t>(x.size());
  run(cuda::rope, RopeParams{upload(x), heads * rot, rot, tokens, heads, rot, RopeStyle::kHalf,
                             upload(cos), upload(sin), out, DType::kBF16, heads * rot, rot});
  const auto got = download(out, x.size());
  for (int32_t at = 0; at < tokens * heads; ++at)
    for (int32_t i = 0; i < half; ++i) {
      const double c = cos[at / heads * half + i], s = sin[at / heads * half + i];
      const double a = x[at * rot + i], b = x[at * rot + i + half];
      ASSERT_NEAR(tensor::bf16_to_f32(got[at * rot + i]), a * c - b * s,
                  std::abs(a * c - b * s) * test::rounding(DType::kBF16) + 1e-6);
      ASSERT_NEAR(tensor::bf16_to_f32(got[at * rot + i + half]), b * c + a * s,
                  std::abs(b * c + a * s) * test::rounding(DType::kBF16) + 1e-6);
    }
}

TEST_F(CudaRope, CastHeadsWithGaps) {
  for (DType out_dtype : kKvTypes)
    for (const auto& [n, gap] : {std::pair{9, 1}, {64, 0}, {128, 4}, {512, 64}})
      for (int32_t rows : {0, 1, 7}) {
        const int32_t heads = 3;
        const auto x = random_floats(static_cast<size_t>(rows) * heads * (n + gap), n);
        const size_t bytes =
            static_cast<size_t>(tensor::dtype_bytes(out_dtype, int64_t{rows} * heads * n));
        uint8_t* out = output<uint8_t>(bytes);
        run(cuda::cast,
            CastParams{upload(x), heads * (n + gap), n + gap, rows, heads, n, out, out_dtype});
        const auto got = download(out, bytes);
        for (int32_t i = 0; i < rows * heads * n; ++i) {
          const auto want = encode({x[i / n * (n + gap) + i % n]}, out_dtype);
          ASSERT_EQ(element(got.data(), out_dtype, i), element(want.data(), out_dtype, 0));
        }
      }
}

}  // namespace
}  // namespace attune::ops
