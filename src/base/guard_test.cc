#include "base/guard.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

namespace attune::base {
namespace {

TEST(Guard, ExceptionsBecomeStatus) {
  EXPECT_TRUE(guarded([] {}).ok());
  const Status memory = guarded([] { throw std::bad_alloc(); });
  EXPECT_EQ(memory.code(), Code::kInternal);
  EXPECT_EQ(memory.message(), "out of memory");
  EXPECT_EQ(guarded([] { throw std::runtime_error("broken"); }).message(), "broken");
  EXPECT_EQ(guarded([] { throw 7; }).code(), Code::kInternal);
}

}  // namespace
}  // namespace attune::base
