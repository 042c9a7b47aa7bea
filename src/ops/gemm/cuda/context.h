// What the products of one Device share: cuBLASLt, its workspace, and room for weights that are
// made bfloat16 to be multiplied. Every weight packed for the GPU holds it. One stream at a time.
#pragma once

#include <cublasLt.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "device/cuda/library.h"
#include "device/device.h"
#include "ops/gemm/cuda/batch.h"

namespace attune::ops::gemm {

// y[m, n] = x[m, k] * w[n, k]^T + beta * y, row-major; w is dense.
struct Product {
  int32_t n, k, m;
  bool f32;  // w, x and y; else w and x bfloat16
  bool y_bf16;
  const void* w;
  bool w_is_new;  // the launch before writes it
  const void* x;
  int64_t ldx;  // elements
  void* y;
  int64_t ldy;
  float beta;
  bool deterministic;  // the same algorithm for every m, without a split of k
};

class CudaContext {
 public:
  // That of the device, made anew where nobody holds it. Errors: the library is missing or of
  // another version; memory.
  static Result<std::shared_ptr<CudaContext>> of(device::Device& device);
  ~CudaContext();

  const device::DeviceInfo& info() const { return info_; }
  // Room for at least a part of [n, k] in bfloat16. Before the first launch that uses it.
  Status reserve_scratch(int64_t n, int64_t k, device::Device& device);
  const device::Buffer& scratch() const { return scratch_; }
  const BatchRoom& batch_room() const { return batch_room_; }
  // Times the library's algorithms, and ours for the rows of a decode batch (batch.h), for a
  // bfloat16 weight [n, k] where they differ most, at rows of decode batches and of whole prompt
  // chunks, and keeps the fastest for all weights of its shape. What is not timed goes by the
  // library's own estimate. Returns when done.
  void tune(const void* w, int32_t n, int32_t k, device::Device& device, device::Stream& stream);
  // False, and nothing launched: the library has no algorithm.
  bool multiply(const Product& p, device::Stream& stream);

 private:
  // What decides the algorithm.
  struct Key {
    int32_t n, k, m;
    int32_t w_align, x_align, y_align;
    bool f32, y_bf16, deterministic;
    auto operator<=>(const Key&) const = default;
  };
  // Names as the library's, without cublasLt.
  struct Api {
    decltype(cublasLtCreate)* create;
    decltype(cublasLtDestroy)* destroy;
    decltype(cublasLtMatmul)* matmul;
    decltype(cublasLtMatmulAlgoGetHeuristic)* heuristic;
    decltype(cublasLtMatmulAlgoCheck)* check;
    decltype(cublasLtMatmulAlgoConfigGetAttribute)* algo_get;
    decltype(cublasLtMatmulDescInit_internal)* desc_init;
    decltype(cublasLtMatmulDescSetAttribute)* desc_set;
    decltype(cublasLtMatrixLayoutInit_internal)* layout_init;
    decltype(cublasLtMatmulPreferenceInit_internal)* preference_init;
    decltype(cublasLtMatmulPreferenceSetAttribute)* preference_set;
  };
  struct Call;

  // The library's algorithm, or our kernel's tuning.
  using Way = std::variant<cublasLtMatmulAlgo_t, BatchTuning>;

  explicit CudaContext(const device::DeviceInfo& info) : info_(info) {}
  Status open(device::Device& device);
  static Key key_of(const Product& p);
  // Those that keep the conditions, the likeliest first.
  std::vector<cublasLtMatmulAlgo_t> candidates(const Product& p, const Key& key) const;
  // Null: there is none.
  const Way* way(const Product& p, const Key& key);
  bool launch(const Product& p, const Way& way, device::Stream& stream);
  void tune_rows(const Product& p, const device::Buffer& flush, device::Stream& stream);

  device::DeviceInfo info_;
  std::unique_ptr<device::Library> library_;  // closed after all that comes from it
  Api api_{};
  cublasLtHandle_t handle_ = nullptr;
  device::Buffer workspace_, scratch_;
  BatchRoom batch_room_;
  std::mutex mutex_;
  std::map<Key, Way> ways_;
  std::set<std::pair<int32_t, int32_t>> tuned_;
};

}  // namespace attune::ops::gemm
