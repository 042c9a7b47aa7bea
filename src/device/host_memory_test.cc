#include "device/host_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace attune::device {
namespace {

TEST(HostMemory, IsWhatTheSystemSaysOrLess) {
  const HostMemory memory = host_memory();
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  EXPECT_GT(memory.total, 64 << 20);
  EXPECT_LE(memory.total, ::sysconf(_SC_PHYS_PAGES) * page);
  EXPECT_GT(memory.available, 0);
  EXPECT_LE(memory.available, memory.total);
}

}  // namespace
}  // namespace attune::device
