#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#include "base/log.h"
#include "device/cuda/error.h"
#include "device/cuda/probe.h"
#include "device/cuda/stream.h"
#include "device/device.h"

namespace attune::device {
namespace {

using base::cat;

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(DeviceInfo info) : info_(std::move(info)) {}
  const DeviceInfo& info() const override { return info_; }

  Result<Buffer> allocate(int64_t bytes, const std::string& what) override {
    if (bytes <= 0) return Buffer();
    ATTUNE_RETURN_IF_ERROR(to_status(cudaSetDevice(info_.index), "cudaSetDevice"));
    void* p = nullptr;
    if (const cudaError_t error = cudaMalloc(&p, bytes); error != cudaSuccess)
      return refuse(error, "cudaMalloc", bytes, "device", what);
    Buffer buffer(p, bytes, [](void* q) { log_failure(cudaFree(q), "cudaFree"); });
    // The fill is done when this returns: streams of this device do not wait for the default one.
    ATTUNE_RETURN_IF_ERROR(to_status(cudaMemset(p, 0, bytes), "cudaMemset"));
    ATTUNE_RETURN_IF_ERROR(to_status(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize"));
    return buffer;
  }

  Result<Buffer> allocate_pinned(int64_t bytes, const std::string& what) override {
    if (bytes <= 0) return Buffer();
    ATTUNE_RETURN_IF_ERROR(to_status(cudaSetDevice(info_.index), "cudaSetDevice"));
    void* p = nullptr;
    if (const cudaError_t error = cudaHostAlloc(&p, bytes, cudaHostAllocPortable);
        error != cudaSuccess)
      return refuse(error, "cudaHostAlloc", bytes, "pinned host", what);
    std::memset(p, 0, bytes);
    return Buffer(p, bytes, [](void* q) { log_failure(cudaFreeHost(q), "cudaFreeHost"); });
  }

  int64_t free_memory() const override {
    size_t free = 0, total = 0;
    if (cudaSetDevice(info_.index) != cudaSuccess || cudaMemGetInfo(&free, &total) != cudaSuccess)
      return 0;
    return static_cast<int64_t>(free);
  }

  std::unique_ptr<Stream> create_stream() override {
    return std::make_unique<CudaStream>(info_.index, info_.sm >= 90);
  }
  std::unique_ptr<Stream> create_copy_stream() override {
    return std::make_unique<CudaStream>(info_.index, /*pdl=*/false, /*first=*/true);
  }

  Status pin(void* data, int64_t bytes) override {
    ATTUNE_RETURN_IF_ERROR(to_status(cudaSetDevice(info_.index), "cudaSetDevice"));
    const cudaError_t error =
        cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (error == cudaSuccess) return {};
    if (!is_sticky(error)) cudaGetLastError();
    return to_status(error, cat("cannot pin ", bytes, " bytes of host memory: cudaHostRegister"));
  }
  void unpin(void* data) override { log_failure(cudaHostUnregister(data), "cudaHostUnregister"); }

 private:
  static Status refuse(cudaError_t error, const char* call, int64_t bytes, const char* kind,
                       const std::string& what) {
    if (!is_sticky(error)) cudaGetLastError();
    size_t free = 0, total = 0;
    const bool known = cudaMemGetInfo(&free, &total) == cudaSuccess;
    const Status status = to_status(error, cat("cannot allocate ", bytes, " bytes of ", kind,
                                               " memory for ", what, ": ", call));
    if (!known || error != cudaErrorMemoryAllocation) return status;
    return {status.code(),
            cat(status.message(), "; ", free, " of the GPU's ", total, " bytes are free")};
  }

  DeviceInfo info_;
};

std::string version(int v) {
  return cat(v / 1000, ".", v % 1000 / 10);
}

// The host memory that is near the GPU at this place of the PCI bus, as sysfs tells.
int32_t numa_node(const cudaDeviceProp& prop) {
  char path[96];
  std::snprintf(path, sizeof path, "/sys/bus/pci/devices/%04x:%02x:%02x.0/numa_node",
                static_cast<unsigned>(prop.pciDomainID), static_cast<unsigned>(prop.pciBusID),
                static_cast<unsigned>(prop.pciDeviceID));
  int32_t node = -1;
  std::ifstream(path) >> node;
  return node;
}

// The runtime's own word on whether it can work with the driver, in ours.
Status check_devices(int index) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    int driver = 0;
    log_failure(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    return unsupported(cat("the NVIDIA driver serves CUDA ", version(driver),
                           ", this build is for ", version(CUDART_VERSION),
                           ": update the driver, or use --device cpu"));
  }
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0))
    return unsupported(
        "no NVIDIA GPU: the driver is there and shows none (is CUDA_VISIBLE_DEVICES set?): use "
        "--device cpu");
  if (error != cudaSuccess) {
    const Status status = to_status(error, "cudaGetDeviceCount");
    return unsupported("the NVIDIA driver does not start: " + status.message());
  }
  if (index < 0 || index >= count)
    return not_found(cat("GPU ", index, ": there are ", count, ", counted from 0"));
  return {};
}

Result<DeviceInfo> describe(int index) {
  cudaDeviceProp prop{};
  ATTUNE_RETURN_IF_ERROR(
      to_status(cudaGetDeviceProperties(&prop, index), "cudaGetDeviceProperties"));
  DeviceInfo info;
  info.kind = Kind::kCuda;
  info.index = index;
  info.sm = prop.major * 10 + prop.minor;
  info.multiprocessors = prop.multiProcessorCount;
  info.l2_bytes = prop.l2CacheSize;
  info.numa_node = numa_node(prop);
  ATTUNE_RETURN_IF_ERROR(check_arch(info.sm, prop.name, ATTUNE_CUDA_ARCHS));
  ATTUNE_RETURN_IF_ERROR(to_status(cudaSetDevice(index), "cudaSetDevice"));
  size_t free = 0, total = 0;
  ATTUNE_RETURN_IF_ERROR(to_status(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"));
  info.free_memory = static_cast<int64_t>(free);
  info.total_memory = static_cast<int64_t>(total);
  info.name = cat(prop.name, " (sm_", info.sm, ", ", info.multiprocessors, " multiprocessors, ",
                  info.total_memory >> 20, " MiB)");
  return info;
}

}  // namespace

Result<std::unique_ptr<Device>> create_cuda_device(int index, const std::string& libraries) {
  ATTUNE_RETURN_IF_ERROR(check_driver(kDriverLibrary));
  ATTUNE_RETURN_IF_ERROR(check_devices(index));
  ATTUNE_ASSIGN_OR_RETURN(DeviceInfo info, describe(index));
  info.libraries = libraries;
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(std::move(info)));
}

}  // namespace attune::device
