// Weights made up for tests and benchmarks: right in shape and scale, without a checkpoint.
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <map>

#include "formats/weight_source.h"
#include "tensor/half.h"

namespace attune::formats {
namespace {

using tensor::DType;
using tensor::TensorView;

constexpr size_t kAlign = 64;

// SplitMix64's output function (Steele, Lea, Flood 2014).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t fnv1a(std::string_view s) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : s) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

template <typename T, typename Narrow>
void fill_as(void* data, int64_t count, uint64_t seed, float scale, Narrow narrow) {
  T* out = static_cast<T*>(data);
  for (int64_t i = 0; i < count; i += 2) {
    // Two draws of 24 bits, uniform in [-1, 1).
    const uint64_t bits = mix(seed + uint64_t(i) * 0x9e3779b97f4a7c15u);
    out[i] = narrow(float(int32_t(bits >> 40) - (1 << 23)) * 0x1p-23f * scale);
    if (i + 1 < count)
      out[i + 1] = narrow(float(int32_t(bits & 0xffffff) - (1 << 23)) * 0x1p-23f * scale);
  }
}

void fill(const TensorView& view, uint64_t seed, float scale) {
  void* data = const_cast<void*>(view.data);
  const int64_t count = view.shape.elems();
  if (view.dtype == DType::kF32)
    fill_as<float>(data, count, seed, scale, [](float f) { return f; });
  else if (view.dtype == DType::kF16)
    fill_as<uint16_t>(data, count, seed, scale, tensor::f32_to_f16);
  else
    fill_as<uint16_t>(data, count, seed, scale, tensor::f32_to_bf16);
}

void fill_ones(const TensorView& view) {
  for (int64_t i = 0; i < view.shape.elems(); ++i) {
    void* data = const_cast<void*>(view.data);
    if (view.dtype == DType::kF32)
      static_cast<float*>(data)[i] = 1.0f;
    else
      static_cast<uint16_t*>(data)[i] =
          view.dtype == DType::kF16 ? tensor::f32_to_f16(1.0f) : tensor::f32_to_bf16(1.0f);
  }
}

struct Free {
  void operator()(std::byte* p) const { std::free(p); }
};

class DummyWeights final : public WeightSource {
 public:
  // REQUIRES: `bytes` is the sum of all tensors, each rounded up to kAlign.
  Status allocate(std::span<const TensorSpec> specs, DType dtype, int64_t bytes) {
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlign, size_t(bytes))));
    if (memory_ == nullptr)
      return resource_exhausted("cannot allocate " + std::to_string(bytes) +
                                " bytes for dummy weights");
    std::byte* next = memory_.get();
    for (const TensorSpec& spec : specs) {
      if (spec.optional) continue;
      const TensorView view{next, dtype, spec.shape};
      index_.emplace(spec.name, view);
      bytes_ += view.bytes();
      next += (view.bytes() + int64_t(kAlign) - 1) / int64_t(kAlign) * int64_t(kAlign);
    }
    return {};
  }

  void fill_all(uint64_t seed, double deviation) const {
    // A uniform distribution over [-a, a) has the deviation a / sqrt(3).
    const float scale = float(deviation * std::sqrt(3.0));
    for (const auto& [name, view] : index_) {
      if (name.ends_with("norm.weight"))
        fill_ones(view);
      else
        fill(view, mix(seed ^ fnv1a(name)), scale);
    }
  }

  std::optional<TensorView> find(std::string_view name) const override {
    const auto it = index_.find(name);
    return it == index_.end() ? std::nullopt : std::optional(it->second);
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> out;
    for (const auto& [name, view] : index_) out.push_back(name);
    return out;
  }
  int64_t bytes() const override { return bytes_; }
  void drop(const TensorView&) const override {}  // nothing could bring it back
  Status check_intact() const override { return {}; }

 private:
  std::unique_ptr<std::byte[], Free> memory_;
  std::map<std::string, TensorView, std::less<>> index_;
  int64_t bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<WeightSource>> dummy_weights(std::span<const TensorSpec> specs,
                                                    const ModelConfig& config, uint64_t seed) {
  const DType dtype = config.dtype;
  if (dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16)
    return unsupported(std::string("dummy weights of ") + tensor::dtype_name(dtype) +
                       "; supported: float32, float16, bfloat16");
  // A config's bounds keep each tensor and their sum below 2^63.
  int64_t bytes = 0;
  for (const TensorSpec& spec : specs)
    if (!spec.optional)
      bytes += (tensor::dtype_bytes(dtype, spec.shape.elems()) + int64_t(kAlign) - 1) /
               int64_t(kAlign) * int64_t(kAlign);
  const int64_t machine = int64_t(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  if (bytes > machine)
    return resource_exhausted("dummy weights need " + std::to_string(bytes) +
                              " bytes, this machine has " + std::to_string(machine));
  auto weights = std::make_unique<DummyWeights>();
  ATTUNE_RETURN_IF_ERROR(weights->allocate(specs, dtype, bytes));
  weights->fill_all(seed, config.initializer_range);
  return std::unique_ptr<WeightSource>(std::move(weights));
}

}  // namespace attune::formats
