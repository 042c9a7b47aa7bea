#include "attention/backends/cudnn/cuda/cudnn_api.h"

#include <cudnn.h>

#include <optional>

#include "base/check.h"
#include "base/log.h"
#include "device/cuda/library.h"

namespace attune::attention::cudnn {
namespace {

using device::Library;

// Paged caches with ragged queries, and the 9.10.0/1 bugs that the frontend refuses.
constexpr size_t kOldest = 91002;

// The functions by the names that they have in the library.
struct Api {
  std::optional<Library> library;
#define ATTUNE_CUDNN_API(F)        \
  F(cudnnCreate)                   \
  F(cudnnDestroy)                  \
  F(cudnnSetStream)                \
  F(cudnnGetStream)                \
  F(cudnnGetVersion)               \
  F(cudnnGetErrorString)           \
  F(cudnnGetLastErrorString)       \
  F(cudnnBackendCreateDescriptor)  \
  F(cudnnBackendDestroyDescriptor) \
  F(cudnnBackendSetAttribute)      \
  F(cudnnBackendGetAttribute)      \
  F(cudnnBackendFinalize)          \
  F(cudnnBackendExecute)
#define ATTUNE_CUDNN_FIELD(name) decltype(&::name) name = nullptr;
  ATTUNE_CUDNN_API(ATTUNE_CUDNN_FIELD)
#undef ATTUNE_CUDNN_FIELD
  // From 9.23 on; null: older.
  decltype(&::cudnnGetExecutionPlanWorkspaceSize) cudnnGetExecutionPlanWorkspaceSize = nullptr;

  Status open(const std::string& libraries) {
    auto opened = Library::open(device::cudnn_name(), device::LibraryPlaces::of_process(libraries));
    if (!opened.ok()) return opened.status();
    library = std::move(*opened);
#define ATTUNE_CUDNN_BIND(name) ATTUNE_RETURN_IF_ERROR(library->bind(name, #name));
    ATTUNE_CUDNN_API(ATTUNE_CUDNN_BIND)
#undef ATTUNE_CUDNN_BIND
    static_cast<void>(
        library->bind(cudnnGetExecutionPlanWorkspaceSize, "cudnnGetExecutionPlanWorkspaceSize"));
    if (cudnnGetVersion() >= kOldest) return {};
    return unsupported(base::cat("cuDNN: ", library->path(), " is version ", cudnnGetVersion(),
                                 ", older than ", kOldest,
                                 ": update it (nvidia-cudnn-cu13 on "
                                 "PyPI), or choose another attention backend"));
  }
};

Api& api() {
  static Api* one = new Api;  // outlives whoever still calls it at the end
  return *one;
}

}  // namespace

const Status& open_cudnn(const std::string& libraries) {
  static const Status* status = new Status(api().open(libraries));
  return *status;
}

}  // namespace attune::attention::cudnn

using attune::attention::cudnn::api;

extern "C" {

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  return api().cudnnCreate(handle);
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  return api().cudnnDestroy(handle);
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return api().cudnnSetStream(handle, stream);
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  return api().cudnnGetStream(handle, stream);
}
size_t cudnnGetVersion(void) {
  return api().cudnnGetVersion();
}
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return api().cudnnGetErrorString(status);
}
void cudnnGetLastErrorString(char* message, size_t max_size) {
  api().cudnnGetLastErrorString(message, max_size);
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  return api().cudnnBackendCreateDescriptor(type, descriptor);
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  return api().cudnnBackendDestroyDescriptor(descriptor);
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* elements) {
  return api().cudnnBackendSetAttribute(descriptor, name, type, count, elements);
}
cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t wanted,
                                       int64_t* count, void* elements) {
  return api().cudnnBackendGetAttribute(descriptor, name, type, wanted, count, elements);
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  return api().cudnnBackendFinalize(descriptor);
}
cudnnStatus_t cudnnGetExecutionPlanWorkspaceSize(cudnnHandle_t handle,
                                                 cudnnBackendDescriptor_t plan,
                                                 cudnnBackendDescriptor_t pack, size_t* bytes) {
  const auto function = api().cudnnGetExecutionPlanWorkspaceSize;
  return function ? function(handle, plan, pack, bytes) : CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  return api().cudnnBackendExecute(handle, plan, pack);
}

}  // extern "C"
