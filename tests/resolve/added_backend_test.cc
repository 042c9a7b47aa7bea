// A backend is added by a folder (backends/test_only), its registration (the function of its
// entry.cc, which the generated table calls) and one line of preference. Nothing else knows it.
#include "attention/route.h"
#include "backends/test_only/test_only.h"
#include "engine/inputs.h"
#include "explain.h"

namespace attune::resolve {
namespace {

using attention::Arch;
using attention::AttentionKind;

Preferences with_one_line() {
  Preferences p = default_preferences();
  p.orders.insert(p.orders.begin(), {"S7",
                                     {Arch::kCpu},
                                     AttentionKind::kMha,
                                     {Phase::kPrefill, Phase::kDecode},
                                     {"test_only", "cpu", "reference"}});
  return p;
}

TEST(AddedBackend, TheRegistryHasItBesideTheOthers) {
  const attention::BackendEntry* entry = attention::find_backend("test_only");
  ASSERT_NE(entry, nullptr);
  EXPECT_TRUE(entry->unavailable.empty());
  for (const char* other : {"cpu", "reference", "fa3"}) EXPECT_TRUE(attention::find_backend(other));
}

TEST(AddedBackend, OneLineOfPreferencePutsItFirst) {
  Inputs in = inputs("cpu", "smollm2", "");
  in.preferences = with_one_line();
  const Resolution r = resolve(in);
  for (Phase phase : kAllPhases)
    EXPECT_EQ(names(r, phase), (Names{"test_only", "cpu", "reference"}));
}

TEST(AddedBackend, WithoutItTheBackendIsThereToBeNamed) {
  const Resolution r = explain("cpu", "smollm2");
  EXPECT_EQ(names(r, Phase::kDecode), (Names{"cpu", "reference"}));
  EXPECT_THAT(why_refused(r, "test_only", Phase::kDecode), testing::HasSubstr("name it"));
  EXPECT_EQ(head(explain("cpu", "smollm2", "--attention-backend test_only"), Phase::kDecode),
            "test_only");
  EXPECT_THAT(explain("sm90", "smollm2", "--attention-backend test_onyl").conflicts.at(0).text,
              testing::HasSubstr("did you mean test_only?"));
}

// What it opens is not on this machine: told at the start, not batch by batch (S8, F9).
TEST(AddedBackend, WithoutItsLibraryItIsRefusedAtTheStart) {
  auto device = device::create_cpu_device(1, "auto");
  ASSERT_TRUE(device.ok());
  Inputs in = real_inputs("cpu", "smollm2", "--attention-backend test_only");
  in.backends = engine::backend_descriptors(in.model.kind, device->get());
  EXPECT_TRUE(resolve(in).conflicts.empty());

  attention::test_only_lacks() = "libtest.so.1 is in no folder";
  in.backends = engine::backend_descriptors(in.model.kind, device->get());
  EXPECT_THAT(
      only_conflict(resolve(in), "S8"),
      testing::AllOf(testing::HasSubstr("cannot run on this machine: libtest.so.1 is in no folder"),
                     testing::HasSubstr("use --attention-backend with one of: cpu, reference")));
  in.settings.attention_backend.clear();  // unnamed it is left out, with the reason
  EXPECT_THAT(why_refused(resolve(in), "test_only", Phase::kDecode),
              testing::HasSubstr("libtest.so.1 is in no folder"));
  // A device that is not there is not asked.
  in.settings.attention_backend = "test_only";
  in.backends = engine::backend_descriptors(in.model.kind, nullptr);
  EXPECT_TRUE(resolve(in).conflicts.empty());
  attention::test_only_lacks().clear();
}

TEST(AddedBackend, TheRouterMakesItAndTakesIt) {
  auto device = device::create_cpu_device(1, "auto");
  ASSERT_TRUE(device.ok());
  Inputs in = inputs("cpu", "smollm2", "");
  in.preferences = with_one_line();
  auto router = attention::Router::create(resolve(in).order(), **device);
  ASSERT_TRUE(router.ok()) << router.status().message();
  attention::Batch batch;
  batch.phase = Phase::kDecode;
  auto choice = (*router)->route(batch);
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->backend->capabilities().name, "test_only");
}

}  // namespace
}  // namespace attune::resolve
