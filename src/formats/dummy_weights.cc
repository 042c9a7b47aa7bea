// Weights made up for tests and benchmarks: right in shape and scale, without a checkpoint.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/thread_pool.h"
#include "formats/weight_source.h"
#include "tensor/half.h"

namespace attune::formats {
namespace {

using tensor::DType;
using tensor::TensorView;

constexpr size_t kAlign = 64;
constexpr int64_t kPairs = 64 << 10;  // elements / 2 of a piece of a thread's work

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
void fill_as(void* data, int64_t count, uint64_t seed, float scale, base::ThreadPool& pool,
             Narrow narrow) {
  T* out = static_cast<T*>(data);
  // Two draws of 24 bits, uniform in [-1, 1).
  const auto bits_at = [=](int64_t i) { return mix(seed + uint64_t(i) * 0x9e3779b97f4a7c15u); };
  const auto value = [=](uint64_t draw) {
    return narrow(float(int32_t(draw) - (1 << 23)) * 0x1p-23f * scale);
  };
  pool.parallel_for(count / 2, kPairs, [=](int64_t begin, int64_t end) {
    for (int64_t i = 2 * begin; i < 2 * end; i += 2) {  // no branch: it becomes vectors
      const uint64_t bits = bits_at(i);
      out[i] = value(bits >> 40);
      out[i + 1] = value(bits & 0xffffff);
    }
  });
  if (count % 2 == 1) out[count - 1] = value(bits_at(count - 1) >> 40);
}

void fill(const TensorView& view, uint64_t seed, float scale, base::ThreadPool& pool) {
  void* data = const_cast<void*>(view.data);
  const int64_t count = view.shape.elems();
  if (view.dtype == DType::kF32)
    fill_as<float>(data, count, seed, scale, pool, [](float f) { return f; });
  else if (view.dtype == DType::kF16)
    fill_as<uint16_t>(data, count, seed, scale, pool,
                      [](float f) { return tensor::f32_to_f16(f); });
  else
    fill_as<uint16_t>(data, count, seed, scale, pool,
                      [](float f) { return tensor::f32_to_bf16(f); });
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

// A tensor is made when it is asked for, and gone when it was dropped: a model larger than this
// machine's memory can be loaded into a GPU's.
class DummyWeights final : public WeightSource {
 public:
  DummyWeights(std::span<const TensorSpec> specs, const ModelConfig& config, uint64_t seed)
      : pool_(static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))),
        seed_(seed),
        deviation_(config.initializer_range) {
    for (const TensorSpec& spec : specs) {
      if (spec.optional) continue;
      const TensorView view{nullptr, config.dtype, spec.shape};
      bytes_ += view.bytes();
      tensors_.emplace(spec.name, Tensor{view, nullptr});
    }
  }

  std::optional<TensorView> find(std::string_view name) const override {
    std::lock_guard lock(mutex_);
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) return std::nullopt;
    Tensor& tensor = it->second;
    if (tensor.memory) return tensor.view;
    const auto size = static_cast<size_t>(tensor.view.bytes());
    tensor.memory.reset(static_cast<std::byte*>(
        std::aligned_alloc(kAlign, std::max(kAlign, (size + kAlign - 1) / kAlign * kAlign))));
    if (!tensor.memory) throw std::bad_alloc();
    tensor.view.data = tensor.memory.get();
    made_.emplace(tensor.view.data, &tensor);
    // A uniform distribution over [-a, a) has the deviation a / sqrt(3).
    if (name.ends_with("norm.weight"))
      fill_ones(tensor.view);
    else
      fill(tensor.view, mix(seed_ ^ fnv1a(name)), float(deviation_ * std::sqrt(3.0)), pool_);
    return tensor.view;
  }
  std::optional<TensorView> describe(std::string_view name) const override {
    std::lock_guard lock(mutex_);
    const auto it = tensors_.find(name);
    return it == tensors_.end() ? std::nullopt : std::optional(it->second.view);
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> out;
    for (const auto& [name, tensor] : tensors_) out.push_back(name);
    return out;
  }
  int64_t bytes() const override { return bytes_; }
  void drop(const TensorView& view) const override {
    std::lock_guard lock(mutex_);
    const auto it = made_.find(view.data);
    if (it == made_.end()) return;
    it->second->memory.reset();
    made_.erase(it);
  }
  Status check_intact() const override { return {}; }
  std::optional<uint64_t> seed() const override { return seed_; }

 private:
  struct Tensor {
    TensorView view;
    std::unique_ptr<std::byte[], Free> memory;
  };

  mutable std::mutex mutex_;
  mutable base::ThreadPool pool_;
  const uint64_t seed_;
  const double deviation_;
  mutable std::map<std::string, Tensor, std::less<>> tensors_;
  mutable std::unordered_map<const void*, Tensor*> made_;  // by where its values lie
  int64_t bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<WeightSource>> dummy_weights(std::span<const TensorSpec> specs,
                                                    const ModelConfig& config, uint64_t seed) {
  const DType dtype = config.dtype;
  if (dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16)
    return unsupported(std::string("dummy weights of ") + tensor::dtype_name(dtype) +
                       "; supported: float32, float16, bfloat16");
  int64_t bytes = 0;  // of the largest tensor; a config's bounds keep each below 2^63
  for (const TensorSpec& spec : specs)
    if (!spec.optional) bytes = std::max(bytes, tensor::dtype_bytes(dtype, spec.shape.elems()));
  const int64_t machine = int64_t(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  if (bytes > machine)
    return resource_exhausted("the largest dummy weight needs " + std::to_string(bytes) +
                              " bytes, this machine has " + std::to_string(machine));
  return std::unique_ptr<WeightSource>(std::make_unique<DummyWeights>(specs, config, seed));
}

}  // namespace attune::formats
