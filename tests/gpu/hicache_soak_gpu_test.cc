// The soak behind Capabilities::tolerates_host_copies: decode attention under graphs, between the
// kernels that stand around it in a step, while kernels copy pages from and to the host at the full
// rate. Lengths and pages change with every step; between layers the queries, the newest rows and
// the scratch are overwritten, as a busy engine would, and pages that are freed come back full of
// NaN. Every output has to be, bit for bit, that of the same step without copies.
//
// ATTUNE_SOAK_SECONDS says how long each backend is watched (docs/hicache.md).
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "attention/registry.h"
#include "base/log.h"
#include "soak.h"

namespace attune {
namespace {

using soak::Outcome;
using soak::Shape;

long long count(auto n) {
  return static_cast<long long>(n);
}

double soak_seconds() {
  const char* text = std::getenv("ATTUNE_SOAK_SECONDS");
  return text ? std::atof(text) : 2;
}

class HicacheSoak : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = device::create_cuda_device(0);
    if (!made.ok()) GTEST_SKIP() << made.status().message();
    device_ = std::move(*made);
    if (device_->info().sm < 90) GTEST_SKIP() << "programmatic dependent launch begins with sm_90";
  }
  Outcome watch(const std::string& name, const Shape& shape, double seconds, bool pdl = true) {
    const attention::BackendEntry* entry = attention::find_backend(name);
    EXPECT_NE(entry, nullptr) << name;
    if (!entry) return {};
    if (!entry->create) {
      [&] { GTEST_SKIP() << name << ": " << entry->unavailable; }();
      return {};
    }
    const std::unique_ptr<attention::Backend> backend = entry->create(*device_);
    const Outcome o = outcome(name, shape, backend.get(), seconds, pdl);
    EXPECT_EQ(o.verdict(), "") << name;
    return o;
  }
  Outcome outcome(const std::string& name, const Shape& shape, const attention::Backend* backend,
                  double seconds, bool pdl = true) {
    const auto o = soak::run(shape, *device_, backend, pdl, seconds);
    EXPECT_TRUE(o.ok()) << name << ": " << o.status().to_string();
    if (!o.ok()) return {};
    std::printf(
        "soak of %s%s: %lld steps of %d layers, %.0f us each, beside copies of %.1f GB/s to host "
        "and "
        "%.1f GB/s from host: %lld words differ, %lld by more than rounding; alone %lld steps, "
        "%.0f "
        "us each: %lld, %lld\n",
        name.c_str(), pdl ? "" : " without dependent launch", count(o->steps), shape.layers,
        o->step_beside * 1e6, o->saved / 1e9, o->loaded / 1e9, count(o->beside.words),
        count(o->beside.far), count(o->steps_alone), o->step_alone * 1e6, count(o->alone.words),
        count(o->alone.far));
    std::fflush(stdout);
    return *o;
  }

  std::unique_ptr<device::Device> device_;
};

constexpr Shape kMla{.heads = {16, 1, 576, 512, true}, .full_pages = 63};

TEST_F(HicacheSoak, BugD35FlashInfer) {
  watch("flashinfer", {}, soak_seconds());
}
TEST_F(HicacheSoak, BugD35Cudnn) {
  watch("cudnn", {}, soak_seconds());
}
TEST_F(HicacheSoak, BugD35Reference) {
  watch("reference", {}, soak_seconds());
}
TEST_F(HicacheSoak, BugD35FlashInferMla) {
  watch("flashinfer_mla", kMla, soak_seconds());
}
// With dependent launch and, a third as long, without: each beside copies, and both with the same
// bits.
TEST_F(HicacheSoak, BugD35Fa3) {
  const Outcome with = watch("fa3", {}, soak_seconds());
  const Outcome without = watch("fa3", {}, soak_seconds() / 3, false);
  EXPECT_EQ(with.outputs, without.outputs) << "dependent launch changes outputs";
}

// The other ways in which keys are loaded ahead of the wait: gathered by rows of small pages, of
// 8 bits, of a window, and for several queries.
TEST_F(HicacheSoak, BugD35Fa3OtherLoads) {
  constexpr auto kFp8 = tensor::DType::kF8E4M3;
  const Shape rows{.full_pages = 1984, .page_size = 1, .sets = 24},
      fours{.full_pages = 496, .page_size = 4, .sets = 24, .dtype = kFp8},
      window{.sets = 24, .window = 300}, verify{.sets = 24, .q_len = 5},
      fp8{.page_size = 64, .sets = 24, .dtype = kFp8, .q_len = 2};
  for (const Shape& shape : {rows, fours, window, verify, fp8}) {
    SCOPED_TRACE(base::cat("pages of ", shape.page_size, ", ", tensor::dtype_name(shape.dtype),
                           ", window ", shape.window, ", queries ", shape.q_len));
    watch("fa3", shape, soak_seconds() / 3);
  }
}

// The soak can fail: a kernel that lacks its wait is seen.
TEST_F(HicacheSoak, SeesAMissingWait) {
  const Outcome o = outcome("a kernel without its wait", {}, nullptr, 1);
  EXPECT_GT(o.beside.words, 0u) << "the soak sees nothing: its word on backends is worth nothing";
}

TEST_F(HicacheSoak, SanitizedBackends) {
  const Shape small{
      .seqs = 3, .full_pages = 2, .layers = 2, .sets = 3, .copied_slots = 4, .host_slots = 12};
  for (const char* name : {"flashinfer", "cudnn", "reference", "fa3"}) watch(name, small, 0);
}

}  // namespace
}  // namespace attune
