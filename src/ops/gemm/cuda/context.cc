#include "ops/gemm/cuda/context.h"

#include <algorithm>

#include "base/log.h"
#include "device/per_device.h"
#include "ops/gemm/cuda/gemv.h"
#include "ops/gemm/cuda/grouped.h"
#include "ops/gemm/cuda/rows.h"

namespace attune::ops::gemm {
namespace {

constexpr int64_t kWorkspaceBytes = 32 << 20;     // what the library's Hopper kernels ask for
constexpr int64_t kMostScratchBytes = 256 << 20;  // larger weights pass in parts
constexpr int32_t kPinnedRows = 256;              // m at which the deterministic algorithm is found
constexpr int kCandidates = 16;
// Smaller weights cost less than the launch around them.
constexpr int64_t kWorthTuning = 4 << 20;
constexpr int64_t kMostTuningBytes = int64_t{1} << 30;
// Above, a product is bound by arithmetic and its time is long.
constexpr int32_t kDecodeRows = 512;
// Milliseconds that a step pays for a kernel of the library beyond its own time where others are
// launched with dependent launch, which is worth 2.6 us to each product of a step (docs/cuda.md).
constexpr float kLibraryWaits = 0.002f;
// Ends of ranges (range_end).
constexpr int32_t kTunedRows[] = {32, 48, 64, 128, 192, 256, 8192};

// The largest power of two up to 16 that divides both.
int32_t alignment(const void* p, int64_t stride_bytes) {
  const uint64_t bits = reinterpret_cast<uint64_t>(p) | static_cast<uint64_t>(stride_bytes) | 16;
  return static_cast<int32_t>(bits & (~bits + 1));
}

// One algorithm serves all m up to the end of its range; finer where a tile more or less counts.
int32_t range_end(int32_t m) {
  const int32_t step = m <= 64 ? 16 : m <= 512 ? 64 : m <= 4096 ? 256 : 1024;
  return (m + step - 1) / step * step;
}

}  // namespace

// The library's matrices are column-major: it computes y^T [n, m] = (w^T)^T x^T.
struct CudaContext::Call {
  cublasLtMatmulDescOpaque_t op{};
  cublasLtMatrixLayoutOpaque_t w{}, x{}, y{};

  bool set(const Api& api, const Product& p, int32_t m) {
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cudaDataType_t in = p.f32 ? CUDA_R_32F : CUDA_R_16BF;
    const cudaDataType_t out = p.y_bf16 ? CUDA_R_16BF : CUDA_R_32F;
    return ok(api.desc_init(&op, sizeof op, CUBLAS_COMPUTE_32F, CUDA_R_32F)) &&
           ok(api.desc_set(&op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed)) &&
           layout(api, w, in, p.k, p.n, p.k) && layout(api, x, in, p.k, m, p.ldx) &&
           layout(api, y, out, p.n, m, p.ldy);
  }
  static bool ok(cublasStatus_t status) { return status == CUBLAS_STATUS_SUCCESS; }
  static bool layout(const Api& api, cublasLtMatrixLayoutOpaque_t& to, cudaDataType_t type,
                     int64_t rows, int64_t columns, int64_t ld) {
    return ok(api.layout_init(&to, sizeof to, type, static_cast<uint64_t>(rows),
                              static_cast<uint64_t>(columns), ld));
  }
};

Result<std::shared_ptr<CudaContext>> CudaContext::of(device::Device& device) {
  static device::PerDevice<CudaContext> contexts;
  return contexts.get(device, [&]() -> Result<std::shared_ptr<CudaContext>> {
    std::shared_ptr<CudaContext> context(new CudaContext(device.info()));
    ATTUNE_RETURN_IF_ERROR(context->open(device));
    return context;
  });
}

Status CudaContext::open(device::Device& device) {
  const device::LibraryName name = device::cublaslt_name();
  ATTUNE_ASSIGN_OR_RETURN(
      auto library,
      device::Library::open(name, device::LibraryPlaces::of_process(info_.libraries)));
  library_ = std::make_unique<device::Library>(std::move(library));
  ATTUNE_RETURN_IF_ERROR(library_->bind(api_.create, "cublasLtCreate"));
  ATTUNE_RETURN_IF_ERROR(library_->bind(api_.destroy, "cublasLtDestroy"));
  ATTUNE_RETURN_IF_ERROR(library_->bind(api_.matmul, "cublasLtMatmul"));
  ATTUNE_RETURN_IF_ERROR(library_->bind(api_.heuristic, "cublasLtMatmulAlgoGetHeuristic"));
  ATTUNE_RETURN_IF_ERROR(library_->bind(api_.check, "cublasLtMatmulAlgoCheck"));
  ATTUNE_RETURN_IF_ERROR(library_->bind(api_.algo_get, "cublasLtMatmulAlgoConfigGetAttribute"));
  ATTUNE_RETURN_IF_ERROR(library_->bind(api_.desc_init, "cublasLtMatmulDescInit_internal"));
  ATTUNE_RETURN_IF_ERROR(library_->bind(api_.desc_set, "cublasLtMatmulDescSetAttribute"));
  ATTUNE_RETURN_IF_ERROR(library_->bind(api_.layout_init, "cublasLtMatrixLayoutInit_internal"));
  ATTUNE_RETURN_IF_ERROR(
      library_->bind(api_.preference_init, "cublasLtMatmulPreferenceInit_internal"));
  ATTUNE_RETURN_IF_ERROR(
      library_->bind(api_.preference_set, "cublasLtMatmulPreferenceSetAttribute"));
  // Also makes the device the thread's current one, which the library's handle is then for.
  ATTUNE_ASSIGN_OR_RETURN(workspace_, device.allocate(kWorkspaceBytes, "cuBLASLt's workspace"));
  if (!prepare_gemv(info_)) return unsupported("the NVIDIA driver has no tensor maps: update it");
  prepare_grouped();
  batch_room_ = prepare_batch(info_);
  if (const cublasStatus_t status = api_.create(&handle_); status != CUBLAS_STATUS_SUCCESS)
    return unavailable(base::cat("cublasLtCreate of ", library_->path(), " failed with status ",
                                 static_cast<int>(status)));
  return {};
}

CudaContext::~CudaContext() {
  if (handle_) api_.destroy(handle_);
}

Status CudaContext::reserve_scratch(int64_t n, int64_t k, device::Device& device) {
  const int64_t least = kTileRows * k * 2;
  const int64_t bytes = std::max(least, std::min(kMostScratchBytes, n * k * 2));
  if (bytes <= scratch_.bytes()) return {};
  scratch_.reset();
  ATTUNE_ASSIGN_OR_RETURN(scratch_, device.allocate(bytes, "weights as bfloat16"));
  return {};
}

CudaContext::Key CudaContext::key_of(const Product& p) {
  const int64_t in = p.f32 ? 4 : 2, out = p.y_bf16 ? 2 : 4;
  return {.n = p.n,
          .k = p.k,
          .m = p.deterministic ? kPinnedRows : range_end(p.m),
          .w_align = alignment(p.w, p.k * in),
          .x_align = alignment(p.x, p.ldx * in),
          .y_align = alignment(p.y, p.ldy * out),
          .f32 = p.f32,
          .y_bf16 = p.y_bf16,
          .deterministic = p.deterministic};
}

std::vector<cublasLtMatmulAlgo_t> CudaContext::candidates(const Product& p, const Key& key) const {
  cublasLtMatmulPreferenceOpaque_t preference{};
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
    return Call::ok(api_.preference_set(&preference, what, &value, sizeof value));
  };
  const uint32_t no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
  Call at;
  if (!at.set(api_, p, key.m) || !Call::ok(api_.preference_init(&preference, sizeof preference)) ||
      !prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes}) ||
      !prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t(key.w_align)) ||
      !prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t(key.x_align)) ||
      !prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, uint32_t(key.y_align)) ||
      !prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t(key.y_align)) ||
      (key.deterministic && !prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, no_reduction)))
    return {};
  cublasLtMatmulHeuristicResult_t found[kCandidates];
  int count = 0;
  if (!Call::ok(api_.heuristic(handle_, &at.op, &at.w, &at.x, &at.y, &at.y, &preference,
                               kCandidates, found, &count)))
    return {};
  const auto serves = [&](const cublasLtMatmulHeuristicResult_t& result) {
    if (result.state != CUBLAS_STATUS_SUCCESS) return false;
    if (!key.deterministic) return true;
    int32_t split = 0;
    size_t written = 0;
    if (!Call::ok(api_.algo_get(&result.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof split,
                                &written)) ||
        split > 1)
      return false;
    for (const int32_t m : {1, 16384}) {
      Call other;
      cublasLtMatmulHeuristicResult_t checked{};
      if (!other.set(api_, p, m) ||
          !Call::ok(api_.check(handle_, &other.op, &other.w, &other.x, &other.y, &other.y,
                               &result.algo, &checked)) ||
          checked.workspaceSize > kWorkspaceBytes)
        return false;
    }
    return true;
  };
  std::vector<cublasLtMatmulAlgo_t> all;
  for (int i = 0; i < count; ++i)
    if (serves(found[i])) all.push_back(found[i].algo);
  return all;
}

// What was timed, else the likeliest.
const CudaContext::Way* CudaContext::way(const Product& p, const Key& key) {
  std::lock_guard lock(mutex_);
  if (const auto known = ways_.find(key); known != ways_.end()) return &known->second;
  const std::vector<cublasLtMatmulAlgo_t> all = candidates(p, key);
  return all.empty() ? nullptr : &ways_.emplace(key, all[0]).first->second;
}

bool CudaContext::launch(const Product& p, const Way& way, device::Stream& stream) {
  if (const auto* tuning = std::get_if<BatchTuning>(&way))
    return batch_linear({.w = p.w,
                         .n = p.n,
                         .k = p.k,
                         .m = p.m,
                         .x = p.x,
                         .ldx = p.ldx,
                         .y = p.y,
                         .ldy = p.ldy,
                         .y_bf16 = p.y_bf16,
                         .accumulate = p.beta != 0,
                         .w_is_new = p.w_is_new},
                        *tuning, batch_room_, stream);
  Call call;
  if (!call.set(api_, p, p.m)) return false;
  const float alpha = 1;
  stream.record_launch("cublasLtMatmul", {0, 0, 0}, {0, 0, 0},
                       {{"n", p.n}, {"k", p.k}, {"m", p.m}});
  return Call::ok(api_.matmul(handle_, &call.op, &alpha, p.w, &call.w, p.x, &call.x, &p.beta, p.y,
                              &call.y, p.y, &call.y, &std::get<cublasLtMatmulAlgo_t>(way),
                              workspace_.data(), kWorkspaceBytes,
                              static_cast<cudaStream_t>(stream.native())));
}

bool CudaContext::multiply(const Product& p, device::Stream& stream) {
  const Way* chosen = way(p, key_of(p));
  return chosen != nullptr && launch(p, *chosen, stream);
}

// Cold each time, as a step's weights are: `flush` is written in between.
void CudaContext::tune_rows(const Product& p, const device::Buffer& flush, device::Stream& stream) {
  const auto native = static_cast<cudaStream_t>(stream.native());
  const Key key = key_of(p);
  const std::vector<cublasLtMatmulAlgo_t> found = candidates(p, key);
  const bool large = p.m > kDecodeRows;
  std::vector<Way> all(
      found.begin(), found.begin() + std::min<int64_t>(std::ssize(found), large ? 4 : kCandidates));
  if (batch_room_ && p.m <= kBatchRows)
    for (const int cluster : {1, 2, 4, 8})
      for (const bool spread : {false, true}) all.push_back(BatchTuning{cluster, spread});
  cudaEvent_t begin = nullptr, end = nullptr;
  if (cudaEventCreate(&begin) != cudaSuccess) return;
  if (cudaEventCreate(&end) == cudaSuccess) {
    float best = 0;
    for (const Way& way : all) {
      float mine = 0;
      for (int i = 0; i < (large ? 3 : 5); ++i) {  // the first is not counted
        stream.fill(flush.data(), static_cast<uint8_t>(i), flush.bytes());
        cudaEventRecord(begin, native);
        const bool launched = launch(p, way, stream);
        cudaEventRecord(end, native);
        float took = 0;
        if (!launched || cudaEventSynchronize(end) != cudaSuccess ||
            cudaEventElapsedTime(&took, begin, end) != cudaSuccess) {
          mine = 0;
          break;
        }
        if (i > 0) mine = mine == 0 ? took : std::min(mine, took);
      }
      if (mine > 0 && stream.pdl() && std::holds_alternative<cublasLtMatmulAlgo_t>(way))
        mine += kLibraryWaits;
      if (mine == 0 || (best > 0 && mine >= best)) continue;
      best = mine;
      std::lock_guard lock(mutex_);
      ways_.insert_or_assign(key, way);
    }
    cudaEventDestroy(end);
  }
  cudaEventDestroy(begin);
}

void CudaContext::tune(const void* w, int32_t n, int32_t k, device::Device& device,
                       device::Stream& stream) {
  if (int64_t{n} * k < kWorthTuning || !tuned_.emplace(n, k).second) return;
  const auto y_bytes = [&](int64_t m) { return m * n * 4; };
  int32_t most = 0;
  for (const int32_t m : kTunedRows)
    if (y_bytes(m) <= kMostTuningBytes) most = std::max(most, m);
  auto x = device.allocate(int64_t{most} * k * 2, "products to be timed");
  auto y = device.allocate(y_bytes(most), "products to be timed");
  auto flush = device.allocate(2 * info_.l2_bytes, "products to be timed");
  if (!x.ok() || !y.ok() || !flush.ok()) return;  // the library's estimates remain
  stream.fill(x->data(), 0x3c, x->bytes());       // 0.0115 as bfloat16: no zeros, which are faster
  for (const int32_t m : kTunedRows) {
    if (m > most) continue;
    for (const bool y_bf16 : {false, true})
      tune_rows({.n = n,
                 .k = k,
                 .m = m,
                 .f32 = false,
                 .y_bf16 = y_bf16,
                 .w = w,
                 .w_is_new = false,
                 .x = x->data(),
                 .ldx = k,
                 .y = y->data(),
                 .ldy = n,
                 .beta = y_bf16 ? 0.0f : 1.0f,
                 .deterministic = false},
                *flush, stream);
  }
  stream.synchronize();
}

}  // namespace attune::ops::gemm
