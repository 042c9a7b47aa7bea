#include <cuda_runtime.h>

#include "device/cuda/testing/test_kernels.h"

namespace attune::device::testing {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint64_t kPatience = 10'000'000'000;  // nanoseconds

__global__ void iota(uint32_t* to, uint32_t value, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) to[i] = value + static_cast<uint32_t>(i);
}

__global__ void add(uint32_t* to, const uint32_t* from, const uint32_t* add, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) to[i] = from[i] + *add;
}

__device__ uint64_t nanoseconds() {
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

__global__ void until(const volatile uint32_t* flag) {
  const uint64_t end = nanoseconds() + kPatience;
  while (*flag == 0 && nanoseconds() < end) __nanosleep(1000);
}

__global__ void wild_write(uint32_t* address, uint32_t value) {
  *address = value;
}

__global__ void nothing() {}

uint32_t blocks(int64_t n) {
  return static_cast<uint32_t>((n + kThreads - 1) / kThreads);
}

cudaStream_t native(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.native());
}

}  // namespace

void launch_iota(Stream& stream, uint32_t* to, uint32_t value, int64_t n) {
  stream.record_launch("iota", {blocks(n), 1, 1}, {kThreads, 1, 1}, {{"value", value}, {"n", n}});
  iota<<<blocks(n), kThreads, 0, native(stream)>>>(to, value, n);
}

void launch_add(Stream& stream, uint32_t* to, const uint32_t* from, const uint32_t* what,
                int64_t n) {
  stream.record_launch("add", {blocks(n), 1, 1}, {kThreads, 1, 1}, {{"n", n}});
  add<<<blocks(n), kThreads, 0, native(stream)>>>(to, from, what, n);
}

void launch_until(Stream& stream, const uint32_t* flag) {
  stream.record_launch("until", {1, 1, 1}, {1, 1, 1}, {});
  until<<<1, 1, 0, native(stream)>>>(flag);
}

void launch_wild_write(Stream& stream, uint32_t* address, uint32_t value) {
  stream.record_launch("wild_write", {1, 1, 1}, {1, 1, 1},
                       {{"address", reinterpret_cast<int64_t>(address)}, {"value", value}});
  wild_write<<<1, 1, 0, native(stream)>>>(address, value);
}

void launch_impossible(Stream& stream) {
  stream.record_launch("impossible", {1, 1, 1}, {4096, 1, 1}, {});
  nothing<<<1, 4096, 0, native(stream)>>>();
}

}  // namespace attune::device::testing
