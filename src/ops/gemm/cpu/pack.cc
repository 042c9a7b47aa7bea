// Packing: reads the file's blocks row by row, 16 rows at a time, and writes packed.h's panels. The
// work is a byte transposition with 16x16 tiles in registers, so that it runs near memory speed.
#include <immintrin.h>

#include <cstring>

#include "base/log.h"
#include "ops/gemm/cpu/packed.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/parts.h"
#include "tensor/half.h"

namespace attune::ops {
namespace gemm {
namespace {

using tensor::DType;

// The rows of a panel in the file; rows past the end read zeros, with step 0.
struct Rows {
  const uint8_t* at[kPanel];
  int64_t step[kPanel];  // 1, or 0 for padding
  const uint8_t* block(int r, int64_t offset) const { return at[r] + offset * step[r]; }
};

__m128i load16(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}

// out[j] = byte j of each of the 16 rows.
void transpose16x16(const __m128i rows[16], uint8_t* out) {
  __m128i a[16], b[16];
  // Rows r and r + 8 interleave; four rounds of that sort bytes by column.
  for (int i = 0; i < 8; ++i) {
    a[2 * i] = _mm_unpacklo_epi8(rows[i], rows[i + 8]);
    a[2 * i + 1] = _mm_unpackhi_epi8(rows[i], rows[i + 8]);
  }
  for (int i = 0; i < 8; ++i) {
    b[2 * i] = _mm_unpacklo_epi8(a[i], a[i + 8]);
    b[2 * i + 1] = _mm_unpackhi_epi8(a[i], a[i + 8]);
  }
  for (int i = 0; i < 8; ++i) {
    a[2 * i] = _mm_unpacklo_epi8(b[i], b[i + 8]);
    a[2 * i + 1] = _mm_unpackhi_epi8(b[i], b[i + 8]);
  }
  for (int i = 0; i < 8; ++i) {
    b[2 * i] = _mm_unpacklo_epi8(a[i], a[i + 8]);
    b[2 * i + 1] = _mm_unpackhi_epi8(a[i], a[i + 8]);
  }
  for (int i = 0; i < 16; ++i) _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16 * i), b[i]);
}

// The same field of 2 or 4 bytes from every row's block.
template <int kBytes>
uint8_t* put_field(const Rows& rows, int64_t offset, uint8_t* out) {
  for (int r = 0; r < kPanel; ++r, out += kBytes) std::memcpy(out, rows.block(r, offset), kBytes);
  return out;
}

// 16 bytes of every row: `at` is the offset of the first.
uint8_t* put_bytes(const Rows& rows, int64_t offset, uint8_t* out) {
  __m128i in[16];
  for (int r = 0; r < kPanel; ++r) in[r] = load16(rows.block(r, offset));
  transpose16x16(in, out);
  return out + 256;
}

// ---- one unit (Spec::unit_elems of k) of each format; `at` is its offset within a row ----

void pack_q4_0(const Rows& rows, int64_t at, uint8_t* out) {
  out = put_field<2>(rows, at, out);
  put_bytes(rows, at + 2, out);
}
void pack_q4_1(const Rows& rows, int64_t at, uint8_t* out) {
  out = put_field<2>(rows, at, out);
  out = put_field<2>(rows, at + 2, out);
  put_bytes(rows, at + 4, out);
}
void pack_q5_0(const Rows& rows, int64_t at, uint8_t* out) {
  out = put_field<2>(rows, at, out);
  out = put_field<4>(rows, at + 2, out);
  put_bytes(rows, at + 6, out);
}
void pack_q5_1(const Rows& rows, int64_t at, uint8_t* out) {
  out = put_field<2>(rows, at, out);
  out = put_field<2>(rows, at + 2, out);
  out = put_field<4>(rows, at + 4, out);
  put_bytes(rows, at + 8, out);
}
void pack_q8_0(const Rows& rows, int64_t at, uint8_t* out) {
  out = put_field<2>(rows, at, out);
  out = put_bytes(rows, at + 2, out);
  put_bytes(rows, at + 18, out);
}

// 6-bit scales and mins of q4_K and q5_K: 12 bytes hold 8 of each.
void unpack_scales(const uint8_t* s, uint8_t sc[8], uint8_t mins[8]) {
  for (int i = 0; i < 4; ++i) {
    sc[i] = s[i] & 63;
    mins[i] = s[i + 4] & 63;
    sc[i + 4] = (s[i + 8] & 15) | (s[i] >> 6 << 4);
    mins[i + 4] = (s[i + 8] >> 4) | (s[i + 4] >> 6 << 4);
  }
}

// Codes of 32 elements as two vectors of 16 bytes to bytes (code j, code j + 16).
__m128i join_nibbles(__m128i low, __m128i high) {
  const __m128i nibble = _mm_set1_epi8(15);
  return _mm_or_si128(_mm_and_si128(low, nibble), _mm_slli_epi16(_mm_and_si128(high, nibble), 4));
}

// q4_K: d, dmin, 12 bytes of scales, 128 bytes of nibbles; q5_K has 32 bytes of fifth bits between:
// bit s of byte e belongs to element e of block s.
template <bool kFive>
void pack_q45_k(const Rows& rows, int64_t at, uint8_t* out) {
  out = put_field<2>(rows, at, out);
  out = put_field<2>(rows, at + 2, out);
  for (int r = 0; r < kPanel; ++r) {
    uint8_t sc[8], mins[8];
    unpack_scales(rows.block(r, at) + 4 * rows.step[r], sc, mins);
    for (int s = 0; s < 8; ++s) {
      out[16 * s + r] = sc[s];
      out[128 + 16 * s + r] = mins[s];
    }
  }
  out += 256;
  const int64_t high = at + 16, low = at + (kFive ? 48 : 16);
  for (int s = 0; s < 8; ++s) {
    if (kFive) {
      for (int r = 0; r < kPanel; ++r, out += 4) {
        const __m256i bits =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows.block(r, high)));
        const int word = _mm256_movemask_epi8(_mm256_sll_epi16(bits, _mm_cvtsi32_si128(7 - s)));
        std::memcpy(out, &word, 4);
      }
    }
    __m128i in[16];
    const __m128i shift = _mm_cvtsi32_si128(4 * (s & 1));
    for (int r = 0; r < kPanel; ++r) {
      const uint8_t* q = rows.block(r, low + 32 * (s / 2));
      in[r] = join_nibbles(_mm_srl_epi16(load16(q), shift),
                           _mm_srl_epi16(load16(q + 16 * rows.step[r]), shift));
    }
    transpose16x16(in, out);
    out += 256;
  }
}

// q6_K: 128 bytes of low nibbles, 64 of upper bit pairs, 16 int8 scales, d. Block s of 32 is half
// s / 4; of its quarter t = s % 4 the nibbles are the (t / 2)th of bytes 32 (t % 2) .. of the half,
// the pairs the t-th of the half's 32 bytes.
void pack_q6_k(const Rows& rows, int64_t at, uint8_t* out) {
  out = put_field<2>(rows, at + 208, out);
  out = put_bytes(rows, at + 192, out);
  for (int s = 0; s < 8; ++s) {
    const int half = s / 4, t = s % 4;
    __m128i in[16];
    const __m128i shift = _mm_cvtsi32_si128(4 * (t / 2));
    for (int r = 0; r < kPanel; ++r) {
      const uint8_t* pairs = rows.block(r, at + 128 + 32 * half);
      for (int h = 0; h < 2; ++h) {
        uint64_t bytes[2];
        std::memcpy(bytes, pairs + 16 * h * rows.step[r], 16);
        constexpr uint64_t kPair = 0x0303030303030303u;
        const uint32_t word = uint32_t(_pext_u64(bytes[0] >> 2 * t, kPair)) |
                              uint32_t(_pext_u64(bytes[1] >> 2 * t, kPair)) << 16;
        std::memcpy(out + 64 * h + 4 * r, &word, 4);
      }
      const uint8_t* q = rows.block(r, at + 64 * half + 32 * (t % 2));
      in[r] = join_nibbles(_mm_srl_epi16(load16(q), shift),
                           _mm_srl_epi16(load16(q + 16 * rows.step[r]), shift));
    }
    transpose16x16(in, out + 128);
    out += 128 + 256;
  }
}

// ---- float formats, unit by unit (one k, or two for pairs) ----

float read_float(DType dtype, const uint8_t* p) {
  uint16_t half;
  switch (dtype) {
    case DType::kF32: {
      float f;
      std::memcpy(&f, p, 4);
      return f;
    }
    case DType::kF64: {
      double d;
      std::memcpy(&d, p, 8);
      return static_cast<float>(d);
    }
    case DType::kF16:
      std::memcpy(&half, p, 2);
      return tensor::f16_to_f32(half);
    case DType::kBF16:
      std::memcpy(&half, p, 2);
      return tensor::bf16_to_f32(half);
    case DType::kF8E4M3:
      return tensor::f8e4m3_to_f32(*p);
    case DType::kF8E5M2:
      return tensor::f8e5m2_to_f32(*p);
    default:
      return 0;
  }
}

// Elements that keep their bits: 2 or 4 bytes, out[k][16].
template <typename T>
void pack_same(const Rows& rows, int64_t k, uint8_t* out) {
  constexpr int64_t kTile = 64;  // of a row, so that 16 rows' lines stay in L1
  for (int64_t k0 = 0; k0 < k; k0 += kTile) {
    const int64_t k1 = k0 + kTile < k ? k0 + kTile : k;
    for (int r = 0; r < kPanel; ++r)
      for (int64_t i = k0; i < k1; ++i)
        std::memcpy(out + (i * kPanel + r) * sizeof(T), rows.block(r, i * sizeof(T)), sizeof(T));
  }
}

void pack_floats(DType dtype, Layout layout, const Rows& rows, int64_t k, uint8_t* out) {
  if (layout == Layout::kF32 && dtype == DType::kF32) return pack_same<float>(rows, k, out);
  if (layout == Layout::kF16 || (layout == Layout::kBF16 && dtype == DType::kBF16))
    return pack_same<uint16_t>(rows, k, out);
  const int64_t bytes = tensor::dtype_info(dtype).block_bytes;
  for (int r = 0; r < kPanel; ++r) {
    for (int64_t i = 0; i < k; ++i) {
      const float f = read_float(dtype, rows.block(r, i * bytes));
      if (layout == Layout::kF32) {
        std::memcpy(out + (i * kPanel + r) * 4, &f, 4);
        continue;
      }
      const uint16_t half = tensor::f32_to_bf16(f);  // exact for the 8-bit floats
      const int64_t slot =
          layout == Layout::kBF16 ? i * kPanel + r : (i / 2 * kPanel + r) * 2 + i % 2;
      std::memcpy(out + slot * 2, &half, 2);
    }
  }
}

using PackUnit = void (*)(const Rows&, int64_t at, uint8_t* out);

PackUnit unit_packer(Layout layout) {
  switch (layout) {
    case Layout::kQ4_0:
      return pack_q4_0;
    case Layout::kQ4_1:
      return pack_q4_1;
    case Layout::kQ5_0:
      return pack_q5_0;
    case Layout::kQ5_1:
      return pack_q5_1;
    case Layout::kQ8_0:
      return pack_q8_0;
    case Layout::kQ4_K:
      return pack_q45_k<false>;
    case Layout::kQ5_K:
      return pack_q45_k<true>;
    case Layout::kQ6_K:
      return pack_q6_k;
    default:
      return nullptr;
  }
}

// kCount: not a weight's type.
Layout choose_layout(DType dtype, DType act) {
  const bool pairs = act == DType::kBF16;
  switch (dtype) {
    case DType::kF32:
    case DType::kF64:
      return pairs ? Layout::kBF16Pairs : Layout::kF32;
    case DType::kF16:
      return pairs ? Layout::kBF16Pairs : Layout::kF16;
    case DType::kBF16:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return pairs ? Layout::kBF16Pairs : Layout::kBF16;
    case DType::kQ4_0:
      return Layout::kQ4_0;
    case DType::kQ4_1:
      return Layout::kQ4_1;
    case DType::kQ5_0:
      return Layout::kQ5_0;
    case DType::kQ5_1:
      return Layout::kQ5_1;
    case DType::kQ8_0:
      return Layout::kQ8_0;
    case DType::kQ4_K:
      return Layout::kQ4_K;
    case DType::kQ5_K:
      return Layout::kQ5_K;
    case DType::kQ6_K:
      return Layout::kQ6_K;
    default:
      return Layout::kCount;
  }
}

void pack_panel(const std::vector<tensor::TensorView>& parts, Layout layout, int64_t panel,
                int64_t k, uint8_t* out) {
  alignas(64) static constexpr uint8_t kZeros[256] = {};
  const DType dtype = parts[0].dtype;
  const int64_t row_bytes = tensor::dtype_bytes(dtype, k);
  Rows rows;
  size_t part = 0;
  int64_t first = 0;  // row of the part's first row
  for (int r = 0; r < kPanel; ++r) {
    const int64_t row = panel * kPanel + r;
    while (part < parts.size() && row >= first + parts[part].shape[0])
      first += parts[part++].shape[0];
    const bool padding = part == parts.size();
    rows.step[r] = padding ? 0 : 1;
    rows.at[r] = padding
                     ? kZeros
                     : static_cast<const uint8_t*>(parts[part].data) + (row - first) * row_bytes;
  }
  const Spec s = spec(layout);
  if (s.bits == 0) return pack_floats(dtype, layout, rows, k, out);
  const PackUnit pack = unit_packer(layout);
  const int64_t file_bytes = tensor::dtype_bytes(dtype, s.unit_elems());
  for (int64_t unit = 0; unit < k / s.unit_elems(); ++unit)
    pack(rows, unit * file_bytes, out + unit * s.unit_bytes());
}

// The rows of all parts, or why the kernels cannot hold them.
Result<int64_t> check_parts(const std::vector<tensor::TensorView>& parts, Layout layout,
                            DType act) {
  ATTUNE_ASSIGN_OR_RETURN(const int64_t n, rows_of_parts(parts, layout != Layout::kCount, act));
  const int64_t k = parts[0].shape[1];
  if (k > kMaxK || n > INT32_MAX - 2 * kPanel)
    return unsupported(base::cat("pack_weight: a weight [", n, ", ", k, "] is too large: at most ",
                                 kMaxK, " inputs"));
  return n;
}

}  // namespace
}  // namespace gemm

Result<PackedWeight> cpu::pack_weight(const std::vector<tensor::TensorView>& parts,
                                      tensor::DType act, device::Device& device,
                                      device::Stream& stream) {
  using namespace gemm;
  const Layout layout = parts.empty() ? Layout::kCount : choose_layout(parts[0].dtype, act);
  ATTUNE_ASSIGN_OR_RETURN(const int64_t n, check_parts(parts, layout, act));
  if (act == tensor::DType::kBF16 && device.info().isa < device::CpuIsa::kAvx512Bf16)
    return unsupported(
        base::cat("pack_weight: bfloat16 activations need the CPU level avx512_bf16, ",
                  "this device is at ", device::cpu_isa_name(device.info().isa), ": use float32"));
  const int64_t k = parts[0].shape[1];
  const int64_t panels = (n + kPanel - 1) / kPanel;
  const int64_t bytes = panel_bytes(layout, k);

  PackedWeight weight;
  weight.n = static_cast<int32_t>(n);
  weight.k = static_cast<int32_t>(k);
  weight.source = parts[0].dtype;
  weight.act = act;
  weight.layout = static_cast<int32_t>(layout);
  ATTUNE_ASSIGN_OR_RETURN(weight.data, device.allocate(panels * bytes, "packed weights"));
  uint8_t* out = weight.data.as<uint8_t>();
  stream.launch([&] {
    stream.pool().parallel_for(panels, 8, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) pack_panel(parts, layout, p, k, out + p * bytes);
    });
  });
  stream.synchronize();
  return weight;
}

}  // namespace attune::ops
