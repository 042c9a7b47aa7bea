#include "device/cuda/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/cuda/error.h"
#include "device/device.h"

namespace attune::device {
namespace {

using testing::HasSubstr;

TEST(CudaProbe, SaysThatTheDriverIsMissing) {
  const Status status = check_driver("libcuda-of-nobody.so.1");
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("no NVIDIA driver: libcuda-of-nobody.so.1 not found"));
  EXPECT_THAT(status.message(), HasSubstr("--device cpu"));
  EXPECT_TRUE(check_driver("libc.so.6").ok());
}

// On a machine without a driver: the program runs, and the device says what is missing.
TEST(CudaProbe, NoDriverIsARefusal) {
  if (check_driver(kDriverLibrary).ok()) GTEST_SKIP() << "there is a driver here";
  const auto device = create_cuda_device(0);
  EXPECT_EQ(device.status().code(), Code::kUnsupported);
  EXPECT_THAT(device.status().message(), HasSubstr("no NVIDIA driver: libcuda.so.1 not found"));
}

TEST(CudaProbe, KnowsWhichCodeRunsWhere) {
  EXPECT_TRUE(check_arch(90, "NVIDIA H200", "90a").ok());
  EXPECT_TRUE(check_arch(89, "L4", "80").ok());
  EXPECT_TRUE(check_arch(80, "A100", "80,89,90a").ok());
  EXPECT_FALSE(check_arch(100, "B200", "90a").ok()) << "90a is for 9.0 alone";
  EXPECT_FALSE(check_arch(75, "T4", "80").ok());
  EXPECT_FALSE(check_arch(120, "RTX 5090", "90").ok()) << "too little shared memory";
  const Status status = check_arch(89, "NVIDIA L4", "90a");
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("NVIDIA L4 is sm_89, this build has kernels for 90a: "
                                          "build with -DATTUNE_CUDA_ARCHS=89"));
}

TEST(CudaError, TellsALostDeviceApart) {
  EXPECT_TRUE(to_status(cudaSuccess, "f").ok());
  const Status lost = to_status(cudaErrorIllegalAddress, "cudaStreamSynchronize");
  EXPECT_EQ(lost.code(), Code::kUnavailable);
  EXPECT_THAT(lost.message(), HasSubstr("cudaStreamSynchronize: "));
  EXPECT_THAT(lost.message(), HasSubstr("cudaErrorIllegalAddress"));
  EXPECT_THAT(lost.message(), HasSubstr("restart it"));
  EXPECT_EQ(to_status(cudaErrorMemoryAllocation, "f").code(), Code::kResourceExhausted);
  EXPECT_EQ(to_status(cudaErrorInvalidConfiguration, "f").code(), Code::kInternal);
  EXPECT_FALSE(is_sticky(cudaErrorInvalidConfiguration));
  EXPECT_TRUE(is_sticky(cudaErrorECCUncorrectable));
}

TEST(CudaError, TheFirstFailureStaysWithTheLaunchesBeforeIt) {
  Health health;
  health.launches().record("norm", {4, 1, 1}, {256, 1, 1}, {{"rows", 4}});
  EXPECT_TRUE(health.check(cudaSuccess, "f"));
  EXPECT_TRUE(health.ok() && health.status().ok());
  EXPECT_FALSE(health.check(cudaErrorIllegalAddress, "g"));
  health.launches().record("later", {1, 1, 1}, {1, 1, 1}, {});
  EXPECT_FALSE(health.check(cudaErrorInvalidValue, "h"));
  EXPECT_FALSE(health.ok());
  EXPECT_EQ(health.status().code(), Code::kUnavailable);
  EXPECT_THAT(health.status().message(), HasSubstr("g: "));
  EXPECT_THAT(health.status().message(),
              HasSubstr("last launches, newest first: norm<<<4, 256>>>(rows=4)"));
}

}  // namespace
}  // namespace attune::device
