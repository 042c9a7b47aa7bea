// Packing for a GPU: layout.h tells the result.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/log.h"
#include "device/uploader.h"
#include "ops/gemm/cuda/context.h"
#include "ops/gemm/cuda/layout.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/parts.h"
#include "tensor/half.h"

namespace attune::ops {
namespace gemm {
namespace {

using tensor::DType;
using tensor::TensorView;

CudaLayout choose(DType source, DType act) {
  switch (source) {
    case DType::kF32:
    case DType::kF64:
    case DType::kF16:
    case DType::kBF16:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return act == DType::kF32 ? CudaLayout::kF32 : CudaLayout::kBF16;
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ4_K:
      return CudaLayout::kCode4;
    case DType::kQ8_0:
    case DType::kQ5_0:
      return CudaLayout::kCode8;
    case DType::kQ5_1:
    case DType::kQ5_K:
      return CudaLayout::kCode8Min;
    case DType::kQ6_K:
      return CudaLayout::kCode8Fine;
    default:
      return CudaLayout::kCount;
  }
}

template <typename T>
T load(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

template <typename T>
void store(uint8_t* p, T value) {
  std::memcpy(p, &value, sizeof value);
}

// ---- floats ----

// Elements [begin, end) of `from`, each made float32 by to_float, in the layout at `out`.
template <typename In, typename ToFloat>
void convert(CudaLayout layout, const void* from, int64_t begin, int64_t end, uint8_t* out,
             ToFloat to_float) {
  const auto* in = static_cast<const uint8_t*>(from) + begin * int64_t{sizeof(In)};
  const int64_t count = end - begin;
  if (layout == CudaLayout::kF32) {
    for (int64_t i = 0; i < count; ++i)
      store(out + i * 4, static_cast<float>(to_float(load<In>(in + i * int64_t{sizeof(In)}))));
  } else {
    for (int64_t i = 0; i < count; ++i)
      store(out + i * 2, tensor::f32_to_bf16(
                             static_cast<float>(to_float(load<In>(in + i * int64_t{sizeof(In)})))));
  }
}

void convert(DType dtype, CudaLayout layout, const void* from, int64_t begin, int64_t end,
             uint8_t* out) {
  switch (dtype) {
    case DType::kF32:
      return convert<float>(layout, from, begin, end, out, [](float v) { return v; });
    case DType::kF64:
      return convert<double>(layout, from, begin, end, out, [](double v) { return v; });
    case DType::kF16:
      return convert<uint16_t>(layout, from, begin, end, out,
                               [](uint16_t v) { return tensor::f16_to_f32(v); });
    case DType::kBF16:
      return convert<uint16_t>(layout, from, begin, end, out,
                               [](uint16_t v) { return tensor::bf16_to_f32(v); });
    case DType::kF8E4M3:
      return convert<uint8_t>(layout, from, begin, end, out,
                              [](uint8_t v) { return tensor::f8e4m3_to_f32(v); });
    default:
      return convert<uint8_t>(layout, from, begin, end, out,
                              [](uint8_t v) { return tensor::f8e5m2_to_f32(v); });
  }
}

// ---- quantised rows: codes as the layout has them, and scales ----

struct Row {
  std::vector<uint8_t> codes;  // [k]; those of 8 bits with 128 added
  std::vector<uint16_t> d, m;  // binary16, one per group
};

uint16_t half(float f) {
  return tensor::f32_to_f16(f);
}
float half_at(const uint8_t* p) {
  return tensor::f16_to_f32(load<uint16_t>(p));
}
// Of bytes whose low nibbles are elements 0..15 and high nibbles 16..31.
int nibble(const uint8_t* qs, int i) {
  return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
}

// The types of blocks of 32: {half d[, m]; [uint32 fifth bits;] codes}.
void read_block32(DType dtype, const uint8_t* b, int64_t group, Row& row) {
  uint8_t* codes = row.codes.data() + group * 32;
  row.d[group] = load<uint16_t>(b);
  const bool min = dtype == DType::kQ4_1 || dtype == DType::kQ5_1;
  if (min) row.m[group] = load<uint16_t>(b + 2);
  const uint8_t* rest = b + (min ? 4 : 2);
  for (int i = 0; i < 32; ++i) {
    switch (dtype) {
      case DType::kQ8_0:
        codes[i] = static_cast<uint8_t>(rest[i] + 128);
        break;
      case DType::kQ5_0:
      case DType::kQ5_1: {
        const int code = nibble(rest + 4, i) | int(load<uint32_t>(rest) >> i & 1) << 4;
        codes[i] = static_cast<uint8_t>(code + 128 - (min ? 0 : 16));
        break;
      }
      default:
        codes[i] = static_cast<uint8_t>(nibble(rest, i));
    }
  }
  if (dtype == DType::kQ4_0) row.m[group] = half(-8 * half_at(b));
}

// q4_K, q5_K: {half d, dmin; uint8 scales[12][, fifth bits[32]], codes[128]}, 8 groups of 32.
void read_k45(bool five, const uint8_t* b, int64_t group0, Row& row) {
  const float d = half_at(b), dmin = half_at(b + 2);
  const uint8_t* s = b + 4;
  for (int g = 0; g < 8; ++g) {
    const int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
    const int min = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | s[g] >> 6 << 4;
    row.d[group0 + g] = half(d * static_cast<float>(scale));
    row.m[group0 + g] = half(-dmin * static_cast<float>(min));
    const uint8_t* qs = b + (five ? 48 : 16) + g / 2 * 32;
    uint8_t* codes = row.codes.data() + (group0 + g) * 32;
    for (int i = 0; i < 32; ++i) {
      const int low = qs[i] >> (g % 2 * 4) & 15;
      codes[i] = static_cast<uint8_t>(five ? (low | (b[16 + i] >> g & 1) << 4) + 128 : low);
    }
  }
}

// q6_K: {uint8 low[128], high[64]; int8 scales[16]; half d}, 16 groups of 16.
void read_k6(const uint8_t* b, int64_t group0, Row& row) {
  const float d = half_at(b + 208);
  for (int g = 0; g < 16; ++g)
    row.d[group0 + g] = half(d * static_cast<float>(static_cast<int8_t>(b[192 + g])));
  for (int e = 0; e < 256; ++e) {
    const int part = e / 128, run = e % 128 / 32, i = e % 32;
    const int low = b[part * 64 + run % 2 * 32 + i] >> (run / 2 * 4) & 15;
    const int high = b[128 + part * 32 + i] >> (run * 2) & 3;
    row.codes[group0 * 16 + e] = static_cast<uint8_t>((low | high << 4) - 32 + 128);
  }
}

void read_row(DType dtype, const uint8_t* from, int64_t k, Row& row) {
  const tensor::DTypeInfo& info = tensor::dtype_info(dtype);
  for (int64_t i = 0; i < k / info.block_elems; ++i, from += info.block_bytes) {
    switch (dtype) {
      case DType::kQ4_K:
      case DType::kQ5_K:
        read_k45(dtype == DType::kQ5_K, from, i * 8, row);
        break;
      case DType::kQ6_K:
        read_k6(from, i * 16, row);
        break;
      default:
        read_block32(dtype, from, i, row);
    }
  }
}

// Puts row `r` of a tile into the tile's zeroed blocks.
void put_row(const CodeBlock& block, const Row& row, int r, int64_t k, uint8_t* tile) {
  const int g = r % 8, h = r / 8;
  for (int64_t i = 0; i < k; ++i) {
    const int s = static_cast<int>(i % kBlockK / 16), in = static_cast<int>(i % 16);
    const int t = in % 8 / 2, at = in / 8 * 2 + h + 4 * (in % 2);
    uint8_t* byte = tile + i / kBlockK * block.bytes() + (g * 4 + t) * 16 + s * 4 + at / 2;
    const int shift = at % 2 * 4, code = row.codes[i];
    if (block.planes == 1) {
      *byte = static_cast<uint8_t>(*byte | code << shift);
    } else {
      *byte = static_cast<uint8_t>(*byte | (code >> 4) << shift);
      byte[kPlaneBytes] = static_cast<uint8_t>(byte[kPlaneBytes] | (code & 15) << shift);
    }
  }
  const int groups = kBlockK / block.group, size = block.min ? 4 : 2;
  for (int64_t i = 0; i < k / block.group; ++i) {
    uint8_t* to = tile + i / groups * block.bytes() + block.planes * kPlaneBytes +
                  (r * groups + i % groups) * size;
    std::memcpy(to, &row.d[i], 2);
    if (block.min) std::memcpy(to + 2, &row.m[i], 2);
  }
}

// ---- all rows ----

// The parts' rows, one below the other.
class Source {
 public:
  explicit Source(const std::vector<TensorView>& parts) : parts_(parts) {}
  const uint8_t* row(int64_t r) const {
    size_t part = 0;
    for (; r >= parts_[part].shape[0]; ++part) r -= parts_[part].shape[0];
    return static_cast<const uint8_t*>(parts_[part].data) +
           r * tensor::dtype_bytes(parts_[part].dtype, parts_[part].shape[1]);
  }

 private:
  const std::vector<TensorView>& parts_;
};

// Tiles [begin, end) of the source's n rows, as codes.
void pack_tiles(const Source& source, DType dtype, const CodeBlock& block, int64_t n, int64_t k,
                int64_t begin, int64_t end, uint8_t* out) {
  const int64_t tile_bytes = blocks_of(k) * block.bytes();
  const auto groups = static_cast<size_t>(k / block.group);
  Row row{std::vector<uint8_t>(static_cast<size_t>(k)), std::vector<uint16_t>(groups),
          std::vector<uint16_t>(groups)};
  std::memset(out, 0, static_cast<size_t>((end - begin) * tile_bytes));
  for (int64_t tile = begin; tile < end; ++tile, out += tile_bytes) {
    for (int64_t r = tile * kTileRows; r < std::min(n, (tile + 1) * kTileRows); ++r) {
      read_row(dtype, source.row(r), k, row);
      put_row(block, row, static_cast<int>(r % kTileRows), k, out);
    }
  }
}

// Brings the parts to `to` on the device.
Status upload(const std::vector<TensorView>& parts, CudaLayout layout, int64_t n, int64_t k,
              uint8_t* to, device::Device& device, device::Stream& stream) {
  const auto uploader = device::Uploader::of(device);
  const DType dtype = parts[0].dtype;
  if (const CodeBlock block = code_block(layout); block.planes > 0) {
    const Source source(parts);
    return uploader->write(
        to, tiles_of(n), blocks_of(k) * block.bytes(),
        [&](int64_t begin, int64_t end, uint8_t* out) {
          pack_tiles(source, dtype, block, n, k, begin, end, out);
        },
        stream);
  }
  const int64_t element = layout == CudaLayout::kF32 ? 4 : 2;
  const bool same = dtype == (element == 4 ? DType::kF32 : DType::kBF16);
  for (const TensorView& part : parts) {
    const int64_t count = part.shape.elems();
    const auto make = [&](int64_t begin, int64_t end, uint8_t* out) {
      convert(dtype, layout, part.data, begin, end, out);
    };
    ATTUNE_RETURN_IF_ERROR(same ? uploader->copy(to, part.data, part.bytes(), stream)
                                : uploader->write(to, count, element, make, stream));
    to += count * element;
  }
  return {};
}

constexpr int64_t kRun = 8;  // k that the kernels load at once

// The rows of all parts, or why a GPU cannot hold them.
Result<int64_t> check(const std::vector<TensorView>& parts, CudaLayout layout, DType act) {
  ATTUNE_ASSIGN_OR_RETURN(const int64_t n, rows_of_parts(parts, layout != CudaLayout::kCount, act));
  const int64_t k = parts[0].shape[1];
  if (layout != CudaLayout::kF32 && k % kRun != 0)
    return unsupported(base::cat("pack_weight: ", k,
                                 " inputs: on a GPU they must be a multiple of ", kRun,
                                 " with bfloat16 "
                                 "activations; use --device cpu"));
  const DType dtype = parts[0].dtype;
  if (tensor::dtype_info(dtype).block_elems > 1 && act == DType::kF32)
    return unsupported(base::cat("pack_weight: ", tensor::dtype_name(dtype),
                                 " with float32 activations: on a GPU they are bfloat16"));
  if (k > INT32_MAX / 4 || n > INT32_MAX - 2 * kTileRows)
    return unsupported(base::cat("pack_weight: a weight [", n, ", ", k, "] is too large"));
  return n;
}

}  // namespace
}  // namespace gemm

Result<PackedWeight> cuda::pack_weight(const std::vector<tensor::TensorView>& parts,
                                       tensor::DType act, device::Device& device,
                                       device::Stream& stream) {
  using namespace gemm;
  const CudaLayout layout = parts.empty() ? CudaLayout::kCount : choose(parts[0].dtype, act);
  ATTUNE_ASSIGN_OR_RETURN(const int64_t n, check(parts, layout, act));
  const DType dtype = parts[0].dtype;
  const int64_t k = parts[0].shape[1];

  PackedWeight weight;
  weight.n = static_cast<int32_t>(n);
  weight.k = static_cast<int32_t>(k);
  weight.source = dtype;
  weight.act = act;
  weight.layout = static_cast<int32_t>(layout);
  ATTUNE_ASSIGN_OR_RETURN(weight.cuda, CudaContext::of(device));
  if (code_block(layout).planes > 0)
    ATTUNE_RETURN_IF_ERROR(weight.cuda->reserve_scratch(n, k, device));
  ATTUNE_ASSIGN_OR_RETURN(weight.data,
                          device.allocate(weight_bytes(layout, n, k), "packed weights"));

  ATTUNE_RETURN_IF_ERROR(upload(parts, layout, n, k, weight.data.as<uint8_t>(), device, stream));
  ATTUNE_RETURN_IF_ERROR(stream.status());
  if (layout == CudaLayout::kBF16)
    weight.cuda->tune(weight.data.data(), weight.n, weight.k, device, stream);
  return weight;
}

}  // namespace attune::ops
