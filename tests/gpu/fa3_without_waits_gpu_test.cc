// What the soak says of fa3's decode in a build that lost its waits (CMakeLists.txt): its word on
// the backends counts, since it sees that.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/log.h"
#include "fa3_without_waits.h"
#include "soak.h"

namespace attune {
namespace {

// One disabled test of this program in a process of its own, and what it said.
std::string in_a_process(const std::string& test) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command = base::cat(
      "timeout 120 '", program, "' --gtest_also_run_disabled_tests --gtest_filter=", test, " 2>&1");
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return "no process could be started";
  std::string said;
  char part[4096];
  for (size_t n = 0; (n = fread(part, 1, sizeof part, pipe)) > 0;) said.append(part, n);
  pclose(pipe);
  return said;
}

class Fa3WithoutWaits : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = device::create_cuda_device(0);
    if (!made.ok()) GTEST_SKIP() << made.status().message();
    device_ = std::move(*made);
    if (device_->info().sm != 90) GTEST_SKIP() << "fa3 needs sm90";
    backend_ = attention::fa3_without_waits_backend().create(*device_);
  }
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<attention::Backend> backend_;
};

// It may fault, which takes the device from its whole process: it has one of its own.
TEST_F(Fa3WithoutWaits, IsSeenByTheSoak) {
  const std::string said = in_a_process("Fa3WithoutWaits.DISABLED_Soak");
  EXPECT_NE(said.find("the soak sees it: "), std::string::npos) << said;
  std::printf("%s", said.c_str());
}
TEST_F(Fa3WithoutWaits, DISABLED_Soak) {
  const auto o = soak::run({}, *device_, backend_.get(), true, 1);
  const bool faulted = !o.ok() && o.status().code() == Code::kUnavailable;
  ASSERT_TRUE(o.ok() || faulted) << o.status().to_string();
  const std::string wrong = faulted ? o.status().message() : o->verdict();
  std::printf("the soak sees %s%s\n", wrong.empty() ? "nothing" : "it: ", wrong.c_str());
}

// It is the waits: without dependent launch nothing needs them.
TEST_F(Fa3WithoutWaits, IsRightWithoutDependentLaunch) {
  const auto o = soak::run({}, *device_, backend_.get(), false, 1);
  ASSERT_TRUE(o.ok()) << o.status().to_string();
  EXPECT_EQ(o->verdict(), "");
}

}  // namespace
}  // namespace attune
