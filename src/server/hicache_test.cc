// The cache's tiers as /metrics and /get_server_info tell them.
#include "server/testing/server_fixture.h"

namespace attune::server {
namespace {

using namespace testing;

class HiCacheTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    engine.hicache = {.enabled = true,
                      .io_backend = "kernel",
                      .mem_layout = "page_first",
                      .write_policy = "write_through",
                      .storage_prefetch_policy = "timeout",
                      .host_ready = 0.25,
                      .loads = 11,
                      .loaded_pages = 110,
                      .recomputes = 12,
                      .recomputed_pages = 24,
                      .failed_loads = 1,
                      .prefetches = 13,
                      .prefetched_pages = 130,
                      .prefetches_cut = 2,
                      .prefetches_in_flight = 3,
                      .held_steps = 14};
    engine.cache_tiers = {{.name = "device", .pages = 5, .hit_tokens = 1000},
                          {.name = "host",
                           .pages = 50,
                           .bytes = 5000,
                           .budget_bytes = 9000,
                           .hit_tokens = 2000,
                           .misses = 7,
                           .read_bytes = 3000,
                           .read_seconds = 1.5},
                          {.name = "redis",
                           .pages = 500,
                           .bytes = 50000,
                           .hit_tokens = 3000,
                           .misses = 8,
                           .evicted_pages = 9,
                           .read_bytes = 10,
                           .written_bytes = 600,
                           .read_seconds = 20,
                           .write_seconds = 2,
                           .corrupt_pages = 21,
                           .failed_operations = 22,
                           .queued_pages = 23}};
  }
  Json stats() { return at(parse(Client(server->port()).get("/get_server_info").body), "stats"); }
  std::string metrics() { return Client(server->port()).get("/metrics").body; }
};

TEST_F(HiCacheTest, MetricsTellEachTierAndDecision) {
  start();
  const std::string text = metrics();
  const auto tier = [&](const char* name, const char* of) {
    return metric(text, name, std::string("tier=\"") + of + "\"");
  };
  EXPECT_EQ(tier("cached_tokens_total", "device"), 1000);
  EXPECT_EQ(tier("cached_tokens_total", "host"), 2000);
  EXPECT_EQ(tier("cached_tokens_total", "storage"), 3000);
  EXPECT_EQ(tier("cache_tier_pages", "device"), 5);
  EXPECT_EQ(tier("cache_tier_bytes", "host"), 5000);
  EXPECT_EQ(tier("cache_tier_budget_bytes", "host"), 9000);
  EXPECT_EQ(tier("cache_tier_misses_total", "host"), 7);
  EXPECT_EQ(tier("cache_tier_read_bytes_per_second", "host"), 2000);
  EXPECT_EQ(tier("cache_tier_write_bytes_per_second", "host"), 0);  // nothing written, not NaN
  EXPECT_EQ(tier("cache_tier_evicted_pages_total", "storage"), 9);
  EXPECT_EQ(tier("cache_tier_written_bytes_total", "storage"), 600);
  EXPECT_EQ(tier("cache_tier_write_bytes_per_second", "storage"), 300);
  EXPECT_EQ(tier("cache_tier_corrupt_pages_total", "storage"), 21);
  EXPECT_EQ(tier("cache_tier_failed_operations_total", "storage"), 22);
  EXPECT_EQ(tier("cache_tier_queued_pages", "storage"), 23);
  EXPECT_EQ(metric(text, "hicache_load_decisions_total", "decision=\"load\""), 11);
  EXPECT_EQ(metric(text, "hicache_load_decisions_total", "decision=\"recompute\""), 12);
  EXPECT_EQ(metric(text, "hicache_load_pages_total", "decision=\"load\""), 110);
  EXPECT_EQ(metric(text, "hicache_load_pages_total", "decision=\"recompute\""), 24);
  EXPECT_EQ(metric(text, "hicache_prefetches_in_flight"), 3);
  EXPECT_EQ(metric(text, "hicache_held_steps_total"), 14);
  EXPECT_EQ(metric(text, "hicache_host_ready"), 0.25);
}

TEST_F(HiCacheTest, ServerInfoTellsEachTier) {
  start();
  const Json json = stats();
  EXPECT_EQ(at(json, "hicache", "enabled"), Json(true));
  EXPECT_EQ(at(json, "hicache", "mem_layout"), Json("page_first"));
  EXPECT_EQ(at(json, "hicache", "recomputed_pages"), Json(24));
  EXPECT_EQ(at(json, "cache_tiers", 0, "name"), Json("device"));
  EXPECT_EQ(at(json, "cache_tiers", 1, "budget_bytes"), Json(9000));
  EXPECT_EQ(at(json, "cache_tiers", 2, "name"), Json("redis"));
  EXPECT_EQ(at(json, "cache_tiers", 2, "corrupt_pages"), Json(21));
  EXPECT_EQ(at(json, "cache_tiers", 2, "write_seconds"), Json(2.0));
}

TEST_F(HiCacheTest, OffTellsThatItIsOff) {
  engine.hicache = {};
  engine.cache_tiers.clear();
  start();
  EXPECT_EQ(at(stats(), "hicache").dump(), R"({"enabled":false})");
  EXPECT_EQ(metrics().find("hicache"), std::string::npos);
}

}  // namespace
}  // namespace attune::server
