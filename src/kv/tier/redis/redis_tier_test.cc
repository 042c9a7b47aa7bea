// What is Redis's own: how it is reached, what it may refuse, and a budget that many servers share.
#include "kv/tier/redis/redis_tier.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <thread>

#include "kv/tier/digits.h"
#include "kv/tier/redis/url.h"
#include "kv/tier/testing/redis_server.h"
#include "kv/tier/testing/tier_world.h"

namespace attune::kv::testing {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

TierConfig at(const std::string& url, int64_t budget = 0) {
  return {.kind = TierKind::kRedis, .url = url, .budget_bytes = budget, .identity = "a model"};
}

std::unique_ptr<KvTier> open(const TierConfig& config) {
  auto tier = make_tier(config);
  EXPECT_TRUE(tier.ok()) << tier.status().to_string();
  return std::move(*tier);
}

double seconds_of(const std::function<void()>& what) {
  const auto start = std::chrono::steady_clock::now();
  what();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(RedisUrl, Forms) {
  const auto parsed = [](std::string_view text) {
    const auto url = parse_redis_url(text);
    if (!url.ok()) return url.status().to_string();
    return url->where() + " " + std::to_string(url->database) + " " + url->user + " " +
           url->password;
  };
  EXPECT_EQ(parsed("redis://cache"), "cache:6379 0  ");
  EXPECT_EQ(parsed("redis://cache/"), "cache:6379 0  ");
  EXPECT_EQ(parsed("redis://10.0.0.1:7000/3"), "10.0.0.1:7000 3  ");
  EXPECT_EQ(parsed("redis://:se%3Acr%40et@cache/2"), "cache:6379 2  se:cr@et");
  EXPECT_EQ(parsed("redis://me:a@b@cache:1"), "cache:1 0 me a@b");
  EXPECT_EQ(parsed("redis://[::1]:7000/1"), "[::1]:7000 1  ");
  EXPECT_EQ(parsed("redis://[fe80::2]"), "[fe80::2]:6379 0  ");
  EXPECT_EQ(parsed("unix:///run/redis.sock"), "/run/redis.sock 0  ");
  EXPECT_EQ(parsed("unix://me:pw@/run/a%20b.sock?db=4"), "/run/a b.sock 4 me pw");
}

TEST(RedisUrl, WhatIsWrongIsSaidAndNoPasswordIs) {
  for (auto [text, what] : {std::pair{"", "not set"},
                            {"http://cache", "start with redis://"},
                            {"cache:6379", "start with redis://"},
                            {"rediss://cache", "no TLS"},
                            {"redis://", "no host"},
                            {"redis://:6379", "no host"},
                            {"redis://cache:port", "no port"},
                            {"redis://cache:0", "no port"},
                            {"redis://cache:99999", "no port"},
                            {"redis://cache/one", "no database"},
                            {"redis://cache/-1", "no database"},
                            {"redis://[::1", "no ']'"},
                            {"redis://sesame@cache", "no ':'"},
                            {"redis://me:sesame%4@cache", "two hex digits"},
                            {"unix://run/redis.sock", "start with '/'"},
                            {"unix:///run/redis.sock?base=1", "db=DATABASE"}}) {
    const auto url = parse_redis_url(text);
    ASSERT_FALSE(url.ok()) << text;
    EXPECT_THAT(url.status().message(), HasSubstr(what)) << text;
    EXPECT_THAT(url.status().message(), Not(HasSubstr("sesame")));
    EXPECT_THAT(url.status().message(), HasSubstr("--hicache-storage-url"));
  }
}

TEST(RedisTier, WithoutAServerTheStartIsRefused) {
  const TestFolder folder;
  for (const std::string& url :
       {"unix://" + folder.path() + "/none.sock", std::string("redis://127.0.0.1:1"),
        std::string("redis://no-such-host.invalid")}) {
    const auto tier = make_tier(at(url));
    ASSERT_FALSE(tier.ok());
    EXPECT_EQ(tier.status().code(), Code::kUnavailable);
    EXPECT_THAT(tier.status().message(), HasSubstr("no Redis server answers at"));
    EXPECT_THAT(tier.status().message(), HasSubstr("--hicache-storage-url"));
  }
}

TEST(RedisTier, PasswordsAndDatabases) {
  const auto server = RedisServer::start({"--requirepass", "sesame"});
  ASSERT_NE(server, nullptr);
  const std::string path = server->url().substr(std::string("unix://").size());
  const auto refused = [&](const std::string& url) {
    const auto tier = make_tier(at(url));
    EXPECT_EQ(tier.status().code(), Code::kInvalidArgument);
    return tier.status().message();
  };
  EXPECT_THAT(refused(server->url()), HasSubstr("wants a password"));
  EXPECT_THAT(refused("unix://:guess@" + path), HasSubstr("refuses the login"));
  EXPECT_THAT(refused("unix://nobody:guess@" + path), HasSubstr("refuses the login"));
  EXPECT_THAT(refused("unix://:sesame@" + path + "?db=999"),
              HasSubstr("does not open database 999"));
  const auto three = open(at("unix://:sesame@" + path + "?db=3"));
  const auto four = open(at("unix://default:sesame@" + path + "?db=4"));
  EXPECT_NE(three->info().root_salt, four->info().root_salt);
  auto pages = make_pages(1, three->info().root_salt);
  EXPECT_EQ(write_one(*three, pages[0]), TierResult::kOk);
  EXPECT_EQ(match_now(*three, keys_of(pages)), 1);
  EXPECT_EQ(match_now(*four, keys_of(pages)), 0);
}

// A port that nobody has just now.
std::string free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ::close(fd);
  return std::to_string(ntohs(address.sin_port));
}

TEST(RedisTier, OverTheNetwork) {
  const std::string port = free_port();
  const auto server = RedisServer::start({"--port", port, "--bind", "127.0.0.1"});
  ASSERT_NE(server, nullptr);
  const auto tier = open(at("redis://127.0.0.1:" + port));
  auto pages = make_pages(20, tier->info().root_salt, 0, 1, 1 << 20);
  EXPECT_THAT(write_all(*tier, pages), Each(TierResult::kOk));
  EXPECT_THAT(read_all(*tier, pages), Each(TierResult::kOk));
}

TEST(RedisTier, AServerThatGoesAndComesBack) {
  const auto server = RedisServer::start();
  ASSERT_NE(server, nullptr);
  const auto tier = open(at(server->url()));
  const std::string root_salt = tier->info().root_salt;
  auto pages = make_pages(4, root_salt);
  EXPECT_THAT(write_all(*tier, pages), Each(TierResult::kOk));
  server->stop();
  EXPECT_THAT(read_all(*tier, pages), Each(TierResult::kFailed));
  EXPECT_THAT(write_all(*tier, pages), Each(TierResult::kFailed));
  EXPECT_EQ(match_now(*tier, keys_of(pages)), 0);
  EXPECT_EQ(tier->clear().code(), Code::kUnavailable);
  EXPECT_EQ(tier->stats().failed, 8u);
  ASSERT_TRUE(server->start_again());
  EXPECT_TRUE(eventually([&] { return write_one(*tier, pages[0]) == TierResult::kOk; }));
  EXPECT_THAT(write_all(*tier, pages), Each(TierResult::kOk));
  EXPECT_THAT(read_all(*tier, pages), Each(TierResult::kOk));
  // It came back empty and has the salt of those who use it.
  EXPECT_EQ(open(at(server->url()))->info().root_salt, root_salt);
}

TEST(RedisTier, AServerThatHangsUpOnIdleClientsIsNoFailure) {
  const auto server = RedisServer::start();
  ASSERT_NE(server, nullptr);
  const auto tier = open(at(server->url()));
  auto pages = make_pages(4, tier->info().root_salt);
  EXPECT_THAT(write_all(*tier, pages), Each(TierResult::kOk));
  server->ask({"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"});
  EXPECT_THAT(read_all(*tier, pages), Each(TierResult::kOk));
  EXPECT_EQ(tier->stats().failed, 0u);
}

TEST(RedisTier, AServerThatAnswersNothingHoldsNobodyForLong) {
  const auto server = RedisServer::start();
  ASSERT_NE(server, nullptr);
  const auto patient = open(at(server->url()));
  auto pages = make_pages(30, patient->info().root_salt);
  ASSERT_THAT(write_all(*patient, pages), Each(TierResult::kOk));
  TierConfig config = at(server->url());
  config.command_seconds = config.connect_seconds = 0.2;
  auto tier = open(config);
  server->freeze();
  EXPECT_LT(seconds_of([&] {
              EXPECT_THAT(read_all(*tier, pages), Each(TierResult::kFailed));
              EXPECT_FALSE(make_tier(config).ok());
            }),
            20);
  std::vector<TestPage> got;
  for (const TestPage& page : pages) got.push_back(page.blank());
  Outcomes outcomes;
  for (TestPage& page : got) tier->read(page.identity, page.runs(), outcomes.next());
  EXPECT_LT(seconds_of([&] { tier.reset(); }), 10);
  EXPECT_THAT(outcomes.wait(), Each(AnyOf(TierResult::kFailed, TierResult::kCancelled)));
  server->thaw();
  EXPECT_THAT(read_all(*open(at(server->url())), pages), Each(TierResult::kOk));
}

// Listens on a socket, and answers with a byte now and then, for ever.
class DrippingServer {
 public:
  DrippingServer() {
    sockaddr_un address{.sun_family = AF_UNIX};
    path().copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener_, 1), 0);
    thread_ = std::thread([this] { drip(); });
  }
  ~DrippingServer() {
    thread_.join();
    ::close(listener_);
  }
  std::string path() const { return folder_.path() + "/redis.sock"; }

 private:
  void drip() {  // to one client, until it hangs up
    const int client = ::accept(listener_, nullptr, nullptr);
    pollfd hung_up{.fd = client, .events = POLLRDHUP};
    for (char next = '+'; ::poll(&hung_up, 1, 20) == 0; next = 'x')
      if (::send(client, &next, 1, MSG_NOSIGNAL) != 1) break;
    ::close(client);
  }

  TestFolder folder_;
  const int listener_ = ::socket(AF_UNIX, SOCK_STREAM, 0);
  std::thread thread_;
};

// Each byte began the time-out anew.
TEST(RedisTier, AServerThatAnswersByteByByteHoldsNobodyForLong) {
  DrippingServer server;
  TierConfig config = at("unix://" + server.path());
  config.command_seconds = config.connect_seconds = 0.3;
  EXPECT_LT(seconds_of([&] {
              const auto tier = make_tier(config);
              ASSERT_FALSE(tier.ok());
              EXPECT_EQ(tier.status().code(), Code::kUnavailable);
              EXPECT_THAT(tier.status().message(), HasSubstr("no answer in time"));
            }),
            10);
}

TEST(RedisTier, AServerWithoutMemoryIsFull) {
  const auto server = RedisServer::start();
  ASSERT_NE(server, nullptr);
  const auto tier = open(at(server->url()));
  auto pages = make_pages(40, tier->info().root_salt, 0, 1, 100'000);
  EXPECT_EQ(write_one(*tier, pages[0]), TierResult::kOk);
  server->ask({"CONFIG", "SET", "maxmemory", "3mb"});
  const auto results = write_all(*tier, pages);
  EXPECT_EQ(results.back(), TierResult::kFull);
  EXPECT_THAT(results, Each(AnyOf(TierResult::kOk, TierResult::kFull)));
  EXPECT_EQ(tier->stats().full, count_of(TierResult::kFull, results));
  EXPECT_EQ(read_all(*tier, {pages.back()}).front(), TierResult::kMiss);
  EXPECT_EQ(read_all(*tier, {pages[0]}).front(), TierResult::kOk);
}

// What the server counts, against what is there.
void expect_sums_right(RedisServer& server) {
  const RedisReply sizes = server.ask({"HGETALL", "attune:kv:sizes"});
  int64_t sum = 0;
  for (size_t i = 1; i < sizes.list.size(); i += 2) {
    const int64_t bytes = std::stoll(std::string(sizes.list[i].text));
    sum += bytes;
    const std::string name = "attune:kv:p:" + std::string(sizes.list[i - 1].text);
    EXPECT_EQ(server.ask({"STRLEN", name}).integer, bytes);
  }
  EXPECT_EQ(std::string(server.ask({"GET", "attune:kv:bytes"}).text), std::to_string(sum));
  EXPECT_EQ(static_cast<size_t>(server.ask({"ZCARD", "attune:kv:used"}).integer),
            sizes.list.size() / 2);
  EXPECT_EQ(server.ask({"KEYS", "attune:kv:p:*"}).list.size(), sizes.list.size() / 2);
}

TEST(RedisTier, TwoServersKeepToOneBudget) {
  const auto server = RedisServer::start();
  ASSERT_NE(server, nullptr);
  constexpr int64_t kBudget = 500'000;
  const auto one = open(at(server->url(), kBudget)), two = open(at(server->url(), kBudget));
  const auto user = [&](KvTier& tier, int chain) {
    std::mt19937 random(static_cast<unsigned>(chain));
    for (int round = 0; round < 30; ++round) {
      auto pages = make_pages(1 + random() % 8, tier.info().root_salt, chain + round % 4, 1,
                              10'000 + random() % 20'000);
      write_all(tier, pages);
      read_all(tier, pages);
    }
  };
  std::thread a([&] { user(*one, 1); });
  std::thread b([&] { user(*two, 11); });
  int64_t most = 0;
  for (int i = 0; i < 50; ++i) {
    const RedisReply bytes = server->ask({"GET", "attune:kv:bytes"});
    if (!bytes.text.empty()) most = std::max<int64_t>(most, std::stoll(std::string(bytes.text)));
  }
  a.join();
  b.join();
  EXPECT_LE(most, kBudget);
  auto last = make_pages(1, one->info().root_salt, 99);
  EXPECT_EQ(write_one(*one, last[0]), TierResult::kOk);
  expect_sums_right(*server);
  EXPECT_LE(one->stats().bytes, kBudget);
  EXPECT_GT(one->stats().bytes, kBudget / 2);
  EXPECT_GT(one->stats().evicted + two->stats().evicted, 20u);
}

TEST(RedisTier, WhatWasAcknowledgedBeforeAKillIsThere) {
  const auto server = RedisServer::start();
  ASSERT_NE(server, nullptr);
  std::mt19937 random(11);
  int first = 0;
  for (int round = 0; round < 10; ++round) {
    const std::vector<int> acknowledged =
        write_until_killed(at(server->url()), first, 1 + random() % 120);
    ASSERT_FALSE(acknowledged.empty());
    const auto tier = open(at(server->url()));
    const int last = *std::max_element(acknowledged.begin(), acknowledged.end()) + 60;
    const auto results =
        read_all(*tier, numbered_pages(first, last - first, tier->info().root_salt));
    for (int i : acknowledged) ASSERT_EQ(results[static_cast<size_t>(i - first)], TierResult::kOk);
    EXPECT_EQ(tier->stats().corrupt, 0u);
    expect_sums_right(*server);
    first = last;
  }
}

TEST(RedisTier, SumsComeRightWhenOthersMeddle) {
  const auto server = RedisServer::start();
  ASSERT_NE(server, nullptr);
  const auto tier = open(at(server->url()));
  auto pages = make_pages(6, tier->info().root_salt);
  write_all(*tier, pages);
  const auto name = [&](int i) { return "attune:kv:p:" + hex_digits(pages[i].identity.key); };
  server->ask({"DEL", name(0)});
  server->ask({"HDEL", "attune:kv:sizes", hex_digits(pages[1].identity.key)});
  server->ask({"ZREM", "attune:kv:used", hex_digits(pages[1].identity.key)});
  server->ask({"SET", name(2), "no page"});
  EXPECT_THAT(read_all(*tier, pages),
              ::testing::ElementsAre(TierResult::kMiss, TierResult::kOk, TierResult::kCorrupt,
                                     TierResult::kOk, TierResult::kOk, TierResult::kOk));
  server->ask({"LPUSH", name(0), "another type"});
  EXPECT_EQ(read_all(*tier, {pages[0]}).front(), TierResult::kFailed);
  EXPECT_EQ(tier->stats().failed, 1u);
  EXPECT_EQ(write_one(*tier, pages[0]), TierResult::kOk);
}

TEST(RedisTier, ClearRemovesOurKeysOnly) {
  const auto server = RedisServer::start();
  ASSERT_NE(server, nullptr);
  const auto tier = open(at(server->url()));
  server->ask({"SET", "somebody", "else"});
  server->ask({"SET", "attune:kv:other", "stays"});
  auto pages = make_pages(700, tier->info().root_salt, 0, 1, 10);
  EXPECT_THAT(write_all(*tier, pages), Each(TierResult::kOk));
  // A page that nothing counts for goes too.
  server->ask({"SET", "attune:kv:p:" + std::string(64, 'a'), "lost"});
  EXPECT_TRUE(tier->clear().ok());
  EXPECT_EQ(server->ask({"KEYS", "attune:kv:p:*"}).list.size(), 0u);
  EXPECT_EQ(std::string(server->ask({"GET", "somebody"}).text), "else");
  EXPECT_EQ(std::string(server->ask({"GET", "attune:kv:other"}).text), "stays");
  EXPECT_EQ(std::string(server->ask({"GET", "attune:kv:salt"}).text), tier->info().root_salt);
  EXPECT_EQ(tier->stats().pages, 0);
  EXPECT_EQ(tier->stats().bytes, 0);
  EXPECT_EQ(tier->stats().evicted, 0u);
}

}  // namespace
}  // namespace attune::kv::testing
