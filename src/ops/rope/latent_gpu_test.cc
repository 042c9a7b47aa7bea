#include <algorithm>
#include <array>
#include <numeric>
#include <random>

#include "ops/cuda_kernels.h"
#include "ops/gpu_test_util.h"

namespace attune::ops {
namespace {

using test::element;
using test::random_floats;

class CudaLatent : public test::GpuTest {
 protected:
  static constexpr int32_t kPage = 4, kHeads = 3;

  // Appends, then gathers in another order; both against the CPU's ops and the formulas.
  void check(int32_t tokens, int32_t latent, int32_t rot, RopeStyle style, DType kv, float scale) {
    const int32_t row = latent + rot, half = rot / 2, pages = tokens / kPage + 2;
    const int64_t e = tensor::dtype_bytes(kv, 1), ld = row + 5;
    const auto x = random_floats(static_cast<size_t>(tokens * ld), row, 2);
    const auto norm = random_floats(latent, 2);
    std::vector<float> cos, sin;
    for (int32_t i = 0; i < tokens * half; ++i) {
      cos.push_back(std::cos(0.3f * static_cast<float>(i)));
      sin.push_back(std::sin(0.3f * static_cast<float>(i)));
    }
    std::vector<int64_t> slots(tokens);
    std::iota(slots.begin(), slots.end(), 2);
    std::shuffle(slots.begin(), slots.end(), std::mt19937(1));
    if (tokens > 2) slots[2] = -1;
    const size_t pool_bytes = static_cast<size_t>(int64_t{pages} * kPage * row * e);
    uint8_t* pool = output<uint8_t>(pool_bytes);
    LatentAppendParams p{};
    p.ldkv = ld;
    p.tokens = tokens;
    p.latent_dim = latent;
    p.rot_dim = rot;
    p.style = style;
    p.norm_eps = 1e-6f;
    p.kv_dtype = kv;
    p.page_stride = kPage * row * e;
    p.token_stride = row * e;
    p.page_size = kPage;
    p.kv_scale = scale;
    LatentAppendParams on_cpu = p;
    std::vector<uint8_t> host(pool_bytes, kPoison);
    on_cpu.kv = x.data();
    on_cpu.cos = cos.data();
    on_cpu.sin = sin.data();
    on_cpu.norm = norm.data();
    on_cpu.slot_mapping = slots.data();
    on_cpu.kv_base = host.data();
    run_on_cpu(cpu_table().latent_append, on_cpu);
    p.kv = upload(x);
    p.cos = upload(cos);
    p.sin = upload(sin);
    p.norm = upload(norm);
    p.slot_mapping = upload(slots);
    p.kv_base = pool;
    run(cuda::latent_append, p);
    const auto got = download(pool, pool_bytes);
    std::vector<char> owned(pool_bytes, 0);
    const double subnormal = kv == DType::kF8E4M3 ? 0x1p-10 : 0x1p-17;
    for (int32_t t = 0; t < tokens; ++t) {
      if (slots[t] < 0) continue;
      const float* in = x.data() + t * ld;
      double square = 0;
      for (int32_t i = 0; i < latent; ++i) square += double(in[i]) * in[i];
      for (int32_t i = 0; i < row; ++i) {
        double want = in[i] / std::sqrt(square / latent + 1e-6) * (i < latent ? norm[i] : 0);
        if (i >= latent) {
          const int32_t j = i - latent, pair = style == RopeStyle::kHalf ? j % half : j / 2;
          const bool second = style == RopeStyle::kHalf ? j >= half : j % 2 == 1;
          const int32_t other = latent + (style == RopeStyle::kHalf ? (j + half) % rot : j ^ 1);
          const double c = cos[t * half + pair], s = sin[t * half + pair];
          want = second ? in[i] * c + in[other] * s : in[i] * c - in[other] * s;
        }
        want /= scale;
        const int64_t at = slots[t] * row;
        ASSERT_NEAR(element(got.data(), kv, at + i), want,
                    std::abs(want) * 1.01 * test::rounding(kv) + subnormal + 1e-5 / scale)
            << "token " << t << ", element " << i;
        ASSERT_NEAR(element(host.data(), kv, at + i), want,
                    std::abs(want) * 1.01 * test::rounding(kv) + subnormal + 1e-5 / scale)
            << "on the CPU: token " << t << ", element " << i;
      }
      std::memset(&owned[slots[t] * row * e], 1, row * e);
    }
    for (size_t i = 0; i < pool_bytes; ++i)
      if (!owned[i]) {
        ASSERT_EQ(got[i], kPoison) << i;
      }
    gather(got, pool, latent, rot, kv, scale, slots);
  }

  // Rows of a pool, against the CPU's: what is stored is the same, so the numbers are equal.
  void gather(const std::vector<uint8_t>& pool, const uint8_t* device_pool, int32_t latent,
              int32_t rot, DType kv, float scale, std::vector<int64_t> positions) {
    std::reverse(positions.begin(), positions.end());
    const auto rows = static_cast<int32_t>(positions.size());
    const int32_t head = rot + 3;
    for (DType out_dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      const DType rope_dtype = out_dtype == DType::kF32 ? DType::kF32 : DType::kBF16;
      const int64_t e = tensor::dtype_bytes(kv, 1);
      const size_t latent_bytes =
          static_cast<size_t>(tensor::dtype_bytes(out_dtype, int64_t{rows} * latent));
      const auto rope_bytes =
          static_cast<size_t>(tensor::dtype_bytes(rope_dtype, int64_t{rows} * kHeads * head));
      std::vector<uint8_t> latents(latent_bytes), rope(rope_bytes, kPoison);
      LatentGatherParams p{};
      p.rows = rows;
      p.latent_dim = latent;
      p.rot_dim = rot;
      p.heads = kHeads;
      p.kv_dtype = kv;
      p.page_stride = kPage * (latent + rot) * e;
      p.token_stride = (latent + rot) * e;
      p.page_size = kPage;
      p.latent_dtype = out_dtype;
      p.rope_dtype = rope_dtype;
      p.rope_row_stride = kHeads * head;
      p.rope_head_stride = head;
      p.kv_scale = scale;
      LatentGatherParams on_cpu = p;
      on_cpu.positions = positions.data();
      on_cpu.kv_base = pool.data();
      on_cpu.latents = latents.data();
      on_cpu.rope = rope.data();
      run_on_cpu(cpu_table().latent_gather, on_cpu);
      p.positions = upload(positions);
      p.kv_base = device_pool;
      uint8_t* out = output<uint8_t>(latent_bytes);
      p.latents = out;
      uint8_t* out_rope = output<uint8_t>(rope_bytes);
      p.rope = out_rope;
      run(cuda::latent_gather, p);
      ASSERT_EQ(download(out, latent_bytes), latents);
      ASSERT_EQ(download(out_rope, rope_bytes), rope);
    }
  }
};

// Bug E-04: also in 8 bits, and with a scale, every row is the token's own in any order of reading.
TEST_F(CudaLatent, BugE04AppendAndGather) {
  for (DType kv : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2})
    for (RopeStyle style : {RopeStyle::kHalf, RopeStyle::kInterleaved})
      for (const auto& [tokens, latent, rot] :
           {std::array{0, 8, 4}, {1, 512, 64}, {23, 512, 64}, {9, 515, 8}, {300, 96, 32}})
        for (float scale : {1.0f, 0.25f}) {
          SCOPED_TRACE(::testing::Message() << tensor::dtype_name(kv) << ", " << tokens
                                            << " tokens of " << latent << ", scale " << scale);
          check(tokens, latent, rot, style, kv, scale);
          if (HasFatalFailure()) return;
        }
}

}  // namespace
}  // namespace attune::ops
