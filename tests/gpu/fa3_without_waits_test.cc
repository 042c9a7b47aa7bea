// H2 to H5 on a build whose fa3 has lost its waits: it declares no tolerance of copies beside it,
// so nothing copies beside it. Needs no GPU.
#include "fa3_without_waits.h"

#include "../resolve/explain.h"

namespace attune::resolve {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Copies by the kernel, unless a rule changes that: a piece has 64 KiB.
Resolution resolve_with(const attention::BackendEntry& fa3, const std::string& flags) {
  Inputs in =
      real_inputs("sm90", "llama3-8b", "--enable-hierarchical-cache --page-size 16 " + flags);
  in.preferences.measured.clear();  // fa3 heads, whatever was measured
  for (Descriptor& d : in.backends)
    if (d.capabilities.name == "fa3") d.capabilities = fa3.capabilities;
  return resolve(in);
}

Resolution without_waits(const std::string& flags) {
  return resolve_with(attention::fa3_without_waits_backend(), flags);
}

TEST(H2, ABuildWithoutWaitsLosesDecodeButNotPrefill) {
  const Resolution r = without_waits("");
  EXPECT_TRUE(r.conflicts.empty());
  EXPECT_TRUE(has_rule(r, "H2"));
  EXPECT_EQ(head(r, Phase::kDecode), "flashinfer");
  EXPECT_EQ(head(r, Phase::kPrefill), "fa3");
  ASSERT_TRUE(r.hicache);
  EXPECT_EQ(r.hicache->io_backend, "kernel");
  EXPECT_EQ(r.hicache->held_beside, Names{"fa3"});  // H5
}

TEST(H3, ABuildWithoutWaitsThatIsNamedHasTheCopyEngine) {
  const Resolution r = without_waits("--decode-attention-backend fa3");
  EXPECT_TRUE(r.conflicts.empty());
  EXPECT_TRUE(has_rule(r, "H3"));
  EXPECT_EQ(head(r, Phase::kDecode), "fa3");
  ASSERT_TRUE(r.hicache);
  EXPECT_EQ(r.hicache->io_backend, "direct");
}

TEST(H4, ABuildWithoutWaitsIsRefusedBesideTheKernel) {
  EXPECT_THAT(
      only_conflict(without_waits("--decode-attention-backend fa3 --hicache-io-backend kernel"),
                    "H4"),
      AllOf(HasSubstr("fa3"), HasSubstr("use --hicache-io-backend direct")));
}

// All of it for the want of waits alone.
TEST(H2, TheSameBackendWithItsWaitsKeepsDecode) {
  const Resolution r = resolve_with(*attention::find_backend("fa3"), "");
  EXPECT_FALSE(has_rule(r, "H2"));
  EXPECT_EQ(head(r, Phase::kDecode), "fa3");
  ASSERT_TRUE(r.hicache);
  EXPECT_EQ(r.hicache->io_backend, "kernel");
}

}  // namespace
}  // namespace attune::resolve
