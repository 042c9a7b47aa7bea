// How every kernel of ours is launched: its arguments noted for messages, and with programmatic
// dependent launch (PDL) where the stream has it on. The attribute and the instructions come from
// this one place, because either without the other reads what is not yet written
// (docs/cuda.md).
//
// A kernel launched so may start while the one before it still runs. Every thread of it calls
// pdl_wait() before it reads or writes anything but weights and its own arguments, and no thread
// returns before; pdl_trigger() lets the next kernel start, at the latest when this one ends. A
// short kernel triggers before it waits: the next one's weights are then on their way while the
// last one still runs, and nothing is read too early, since the next one waits for this one's end,
// which comes after its own wait.
#pragma once

#include <cuda_runtime.h>

#include <initializer_list>
#include <utility>

#include "device/device.h"

namespace attune::device {

// ATTUNE_FAULT_WITHOUT_PDL_WAIT: kernels that lost their waits, as a public release once did, for
// the tests that have to see it (tests/gpu). No other build defines it.
__device__ __forceinline__ void pdl_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && !defined(ATTUNE_FAULT_WITHOUT_PDL_WAIT)
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void pdl_trigger() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The most shared memory of a CTA from sm_90 on.
inline constexpr int kMostSharedBytes = 227 * 1024;

struct LaunchShape {
  dim3 grid, block;
  uint32_t shared_bytes = 0;  // above 48 KiB the caller has raised the kernel's limit
  uint32_t cluster = 1;       // CTAs, along x
};

// A failure is the stream's (Stream::status). Inside Stream::launch.
template <typename... Params, typename... Args>
void launch_kernel(Stream& stream, const char* name, const LaunchShape& shape,
                   std::initializer_list<LaunchArg> told, void (*kernel)(Params...),
                   Args&&... args) {
  stream.record_launch(name, {shape.grid.x, shape.grid.y, shape.grid.z},
                       {shape.block.x, shape.block.y, shape.block.z}, told);
  cudaLaunchAttribute attributes[2];
  uint32_t count = 0;
  if (stream.pdl()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {shape.cluster, 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream.native());
  config.attrs = attributes;
  config.numAttrs = count;
  cudaLaunchKernelEx(&config, kernel,
                     std::forward<Args>(args)...);  // the stream asks for the error
}

}  // namespace attune::device
