// The client against servers that answer well, slowly, wrongly or not at all.
#include "bench/serving.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "bench/testing/fake_server.h"
#include "formats/json.h"

namespace attune::bench {
namespace {

using namespace std::chrono_literals;
using testing::event;
using testing::FakeConnection;
using testing::FakeRequest;
using testing::FakeServer;
using ::testing::HasSubstr;
using testing::kStreamHead;
using testing::sized_reply;

std::string native(int tokens, bool last) {
  return event(
      R"({"text":"abc","meta_info":{"prompt_tokens":4,"cached_tokens":0,"completion_tokens":)" +
      std::to_string(tokens) + R"(,"finish_reason":)" +
      (last ? R"({"type":"length"}}})" : "null}}"));
}

std::string chunk(const std::string& bytes) {
  char size[20];
  std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  return size + bytes + "\r\n";
}

// A whole stream of three tokens.
std::string good_stream() {
  return kStreamHead + chunk(native(1, false)) + chunk(native(2, false)) + chunk(native(3, true)) +
         chunk(event("[DONE]")) + "0\r\n\r\n";
}

std::vector<PromptWork> prompts(size_t count) {
  return std::vector<PromptWork>(count, {.ids = {1, 2, 3, 4}, .text = "x", .output_len = 3});
}

LoadResult load(const FakeServer& server, size_t count, LoadOptions options = {},
                AskOptions ask = {}) {
  auto target = find_target(server.url(), "");
  EXPECT_TRUE(target.ok());
  auto result = run_load(*target, ask, prompts(count), options);
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  return std::move(*result);
}

TEST(Load, ReadsStreamsHoweverTheyAreCut) {
  for (size_t size : {1, 2, 3, 7, 100, 100000}) {
    FakeServer server(
        [&](const FakeRequest&, FakeConnection& c) { c.send_split(good_stream(), size); });
    const LoadResult result = load(server, 2);
    for (const CallRecord& record : result.records) {
      EXPECT_TRUE(record.ok) << record.error;
      EXPECT_EQ(record.output_len, 3);
      EXPECT_EQ(record.itl.size(), 2u);
      EXPECT_GT(record.ttft.value(), 0);
      EXPECT_LE(record.latency, result.duration_s);
    }
  }
}

TEST(Load, OneThreadHoldsAThousandStreams) {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);  // both ends are in this process
  const size_t count = std::min<size_t>(1000, (limit.rlim_max - 100) / 2);
  std::mutex mutex;
  std::condition_variable all_here;
  size_t here = 0;
  FakeServer server([&](const FakeRequest&, FakeConnection& c) {
    c.send(kStreamHead + chunk(native(1, false)));
    {
      std::unique_lock lock(mutex);
      ++here;
      all_here.notify_all();
      all_here.wait(lock, [&] { return here == count; });
    }
    c.send(chunk(native(3, true)) + "0\r\n\r\n");
  });
  const LoadResult result = load(server, count);
  for (const CallRecord& record : result.records) ASSERT_TRUE(record.ok) << record.error;
}

TEST(Load, KeepsToTheConcurrencyAsked) {
  std::mutex mutex;
  int running = 0, most = 0;
  FakeServer server([&](const FakeRequest&, FakeConnection& c) {
    {
      std::lock_guard lock(mutex);
      most = std::max(most, ++running);
    }
    std::this_thread::sleep_for(2ms);  // a server that takes its time
    {
      std::lock_guard lock(mutex);
      --running;
    }
    c.send(good_stream());
  });
  const LoadResult result = load(server, 12, {.max_concurrency = 3});
  for (const CallRecord& record : result.records) EXPECT_TRUE(record.ok) << record.error;
  EXPECT_LE(most, 3);
}

TEST(BugK01, TimesAreThoseOfTheServer) {
  FakeServer server([&](const FakeRequest&, FakeConnection& c) {
    std::this_thread::sleep_for(50ms);  // prefill
    c.send(kStreamHead + chunk(native(1, false)));
    for (int i = 2; i <= 4; ++i) {
      std::this_thread::sleep_for(10ms);
      c.send(chunk(native(i, i == 4)));
    }
    c.send("0\r\n\r\n");
  });
  const CallRecord record = load(server, 1).records[0];
  ASSERT_TRUE(record.ok) << record.error;
  EXPECT_GE(record.ttft.value(), 0.050);
  EXPECT_GE(record.latency, 0.080);
  ASSERT_EQ(record.itl.size(), 3u);
  double sum = record.ttft.value();
  for (double gap : record.itl) sum += gap;
  EXPECT_NEAR(sum, record.latency, 1e-9);
}

TEST(BugK04, TtftCountsTheTimeInTheQueue) {
  std::mutex slot;  // one request at a time, 10 ms each
  FakeServer server([&](const FakeRequest&, FakeConnection& c) {
    std::lock_guard lock(slot);
    std::this_thread::sleep_for(10ms);
    c.send(good_stream());
  });
  const LoadResult result = load(server, 8);
  double longest = 0;
  for (const CallRecord& record : result.records) longest = std::max(longest, record.ttft.value());
  EXPECT_GE(longest, 0.080);
}

TEST(Load, TellsOfEachRequestWhatItMet) {
  const auto why = [](FakeServer::Handler handler, LoadOptions options = {}) {
    FakeServer server(std::move(handler));
    const CallRecord record = load(server, 1, options).records[0];
    EXPECT_FALSE(record.ok);
    return record.error;
  };
  const std::string begun = kStreamHead + chunk(native(1, false));
  using R = const FakeRequest&;
  using C = FakeConnection&;
  EXPECT_EQ(why([](R, C c) { c.send(sized_reply(429, R"({"error":{"message":"queue full"}})")); }),
            "HTTP status 429: queue full");
  EXPECT_THAT(why([](R, C) {}), HasSubstr("without a reply"));
  EXPECT_THAT(why([&](R, C c) { c.send(begun); }), HasSubstr("inside its reply's body"));
  EXPECT_THAT(why([&](R, C c) { c.send(begun + "0\r\n\r\n"); }),
              HasSubstr("ended before the answer"));
  EXPECT_THAT(why([&](R, C c) { c.send(begun + "zz\r\n"); }), HasSubstr("bad chunk size"));
  EXPECT_THAT(why([&](R, C c) { c.send(kStreamHead + chunk(event("{broken"))); }),
              HasSubstr("no known form"));
  EXPECT_THAT(why([&](R, C c) { c.send(begun), c.reset(); }),
              ::testing::AnyOf(HasSubstr("reset"), HasSubstr("closed")));
  EXPECT_THAT(why([](R, C c) { c.send(sized_reply(200, native(3, true))); }),
              HasSubstr("no stream"));
  EXPECT_THAT(why([](R, C c) { c.send("220 mail.example ESMTP\r\n"); }),
              HasSubstr("no HTTP/1.1 status line"));
  EXPECT_THAT(why(
                  [&](R, C c) {
                    char byte;  // silent until the client gives up
                    c.send(begun);
                    (void)::recv(c.fd(), &byte, 1, 0);
                  },
                  {.idle_timeout_s = 0.05}),
              HasSubstr("no byte came for 0.05 s"));
}

TEST(Load, ErrorsOfSomeSpoilNoOthers) {
  std::atomic<int> count = 0;
  FakeServer server([&](const FakeRequest&, FakeConnection& c) {
    c.send(count++ % 2 ? sized_reply(500, "oops") : good_stream());
  });
  const LoadResult result = load(server, 10);
  const ServingMetrics metrics = measure(result.records, result.duration_s);
  EXPECT_EQ(metrics.completed, 5);
  EXPECT_EQ(metrics.failed, 5);
  EXPECT_EQ(metrics.first_error, "HTTP status 500: oops");
}

TEST(Load, RefusedConnectionsAreTold) {
  int port;
  {
    FakeServer gone([](const FakeRequest&, FakeConnection&) {});
    port = gone.port();
  }
  auto target = find_target("http://127.0.0.1:" + std::to_string(port), "");
  auto result = run_load(*target, {}, prompts(2), {});
  ASSERT_TRUE(result.ok());
  EXPECT_THAT(result->records[1].error, HasSubstr("cannot connect: Connection refused"));
}

// A whole stream that answers with one id: the sum of the prompt's ids.
std::string sum_stream(const FakeRequest& request) {
  int64_t sum = 0;
  const auto json = formats::parse_json(request.body);
  for (const formats::Json& id : json->find("input_ids")->as_array()) sum += id.as_int();
  return kStreamHead +
         chunk(
             event(R"({"text":"a","output_ids":[)" + std::to_string(sum) +
                   R"(],"meta_info":{"completion_tokens":1,"finish_reason":{"type":"length"}}})")) +
         "0\r\n\r\n";
}

std::string input_ids(const FakeRequest& request) {
  return formats::parse_json(request.body)->find("input_ids")->dump();
}

// Two chats of two turns.
const std::vector<PromptWork> kChats = {{.ids = {1, 2}, .output_len = 1, .turn = 0, .next = 2},
                                        {.ids = {10}, .output_len = 1, .turn = 0, .next = 3},
                                        {.ids = {4}, .output_len = 1, .turn = 1},
                                        {.ids = {20}, .output_len = 1, .turn = 1}};

LoadResult load_chats(FakeServer::Handler handler, std::vector<std::string>& asked) {
  FakeServer server(std::move(handler));
  auto result = run_load(*find_target(server.url(), ""), {}, kChats, {.max_concurrency = 1});
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  for (const FakeRequest& request : server.requests()) asked.push_back(input_ids(request));
  return std::move(*result);
}

TEST(Load, TurnsFollowTheAnswerWithTheWholeChat) {
  std::vector<std::string> asked;
  const LoadResult result =
      load_chats([](const FakeRequest& r, FakeConnection& c) { c.send(sum_stream(r)); }, asked);
  EXPECT_THAT(asked, ::testing::ElementsAre("[1,2]", "[10]", "[1,2,3,4]", "[10,10,20]"));
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(result.records[i].ok) << result.records[i].error;
    EXPECT_EQ(result.records[i].turn, i / 2);
  }
  EXPECT_EQ(result.records[3].prompt_len, 3);
}

TEST(Load, ATurnIsNotSentAfterAFailedOne) {
  std::vector<std::string> asked;
  const LoadResult result = load_chats(
      [](const FakeRequest& r, FakeConnection& c) {
        c.send(input_ids(r) == "[1,2]" ? sized_reply(500, "oops") : sum_stream(r));
      },
      asked);
  EXPECT_THAT(asked, ::testing::ElementsAre("[1,2]", "[10]", "[10,10,20]"));
  EXPECT_EQ(result.records[2].error, "not sent: a turn before it failed");
  EXPECT_TRUE(result.records[3].ok);
}

TEST(Load, AnswersWithoutIdsEndAChat) {
  std::vector<std::string> asked;
  const LoadResult result =
      load_chats([](const FakeRequest&, FakeConnection& c) { c.send(good_stream()); }, asked);
  EXPECT_EQ(asked.size(), 2u);
  EXPECT_THAT(result.records[3].error, HasSubstr("without output_ids"));
}

TEST(DueTimes, ArePoisson) {
  EXPECT_EQ(due_times(3, 0, 1), (std::vector<double>{0, 0, 0}));
  const std::vector<double> due = due_times(20000, 50, 1);
  EXPECT_EQ(due.front(), 0);
  EXPECT_TRUE(std::is_sorted(due.begin(), due.end()));
  const double mean = due.back() / 19999;
  EXPECT_NEAR(mean, 0.02, 0.001);
  double squares = 0;
  for (size_t i = 1; i < due.size(); ++i) squares += std::pow(due[i] - due[i - 1] - mean, 2);
  EXPECT_NEAR(std::sqrt(squares / 19999), 0.02, 0.001);  // exponential: deviation = mean
  EXPECT_NE(due, due_times(20000, 50, 2));
}

TEST(FindTarget, ReadsUrls) {
  const auto v6 = find_target("http://[::1]:81/some/where/", "key");
  ASSERT_TRUE(v6.ok()) << v6.status().to_string();
  EXPECT_EQ(v6->authority, "[::1]:81");
  EXPECT_THAT(
      http_request(*v6, "POST", "/generate", "{}"),
      ::testing::AllOf(HasSubstr("POST /some/where/generate HTTP/1.1\r\nHost: [::1]:81\r\n"),
                       HasSubstr("Authorization: Bearer key\r\n"),
                       HasSubstr("Content-Length: 2\r\n\r\n{}")));
  EXPECT_EQ(find_target("http://127.0.0.1", "")->authority, "127.0.0.1:80");
  for (const char* bad :
       {"127.0.0.1:80", "http://", "http://:80", "http://[::1", "ftp://x", "http://x:99999",
        "http://x:-1", "http://x:80x", "http://x:", "http://x/ y", "http://x/\r\nA: b"})
    EXPECT_EQ(find_target(bad, "").status().code(), Code::kInvalidArgument) << bad;
  EXPECT_EQ(find_target("https://x", "").status().code(), Code::kUnsupported);
}

ServingConfig serving_config(const FakeServer& server) {
  ServingConfig config{.base_url = server.url()};
  config.workload = {.num_prompts = 5, .input_len = 4, .output_len = 3, .range_ratio = 1};
  return config;
}

TEST(Serving, WarmsUpFlushesAndMeasures) {
  FakeServer server([&](const FakeRequest& request, FakeConnection& c) {
    c.send(request.path == "/flush_cache" ? sized_reply(200, "done") : good_stream());
  });
  ServingConfig config = serving_config(server);
  config.flush_cache = true;
  config.warmup_requests = 2;
  const auto result = run_serving(config, nullptr);
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_EQ(result->metrics.completed, 5);
  EXPECT_EQ(result->metrics.output_tokens, 15);
  const auto requests = server.requests();
  ASSERT_EQ(requests.size(), 8u);
  EXPECT_EQ(requests[2].path, "/flush_cache");
  for (size_t i = 3; i < 8; ++i) EXPECT_NE(requests[i].body, requests[0].body);
}

TEST(Serving, AsksTheServerForItsModel) {
  FakeServer server([&](const FakeRequest& request, FakeConnection& c) {
    if (request.path == "/v1/models")
      c.send(sized_reply(200, R"({"object":"list","data":[{"id":"tiny"}]})"));
    else
      c.send(sized_reply(
          200, R"({"choices":[{"text":"x"}],"usage":{"prompt_tokens":4,"completion_tokens":3}})"));
  });
  ServingConfig config = serving_config(server);
  config.backend = "openai";
  config.disable_stream = true;
  const auto result = run_serving(config, nullptr);
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_EQ(result->metrics.output_tokens, 15);
  EXPECT_THAT(server.requests().back().body, HasSubstr(R"("model":"tiny")"));
}

TEST(Serving, MeasuresChatsByTurn) {
  FakeServer server([](const FakeRequest& r, FakeConnection& c) { c.send(sum_stream(r)); });
  ServingConfig config{.base_url = server.url()};
  config.workload = {.dataset = "multi-turn",
                     .num_users = 3,
                     .num_turns = 2,
                     .turn_input_len = 5,
                     .turn_output_len = 1,
                     .shared_system_len = 4};
  const auto result = run_serving(config, nullptr);
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  ASSERT_EQ(result->metrics.turns.size(), 2u);
  EXPECT_EQ(result->metrics.turns[0].input_tokens, 3 * 9);
  EXPECT_EQ(result->metrics.turns[1].input_tokens, 3 * (9 + 1 + 5));
  config.backend = "openai";
  EXPECT_THAT(run_serving(config, nullptr).status().message(), HasSubstr("use --backend attune"));
}

TEST(Serving, FailsWhenNothingWorks) {
  FakeServer server(
      [](const FakeRequest&, FakeConnection& c) { c.send(sized_reply(503, "loading")); });
  ServingConfig config = serving_config(server);
  EXPECT_THAT(run_serving(config, nullptr).status().message(), HasSubstr("a warm-up request to"));
  config.warmup_requests = 0;
  const Status status = run_serving(config, nullptr).status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(),
              ::testing::AllOf(HasSubstr("none of 5"), HasSubstr("HTTP status 503: loading")));
  config.flush_cache = true;
  EXPECT_THAT(run_serving(config, nullptr).status().message(),
              HasSubstr("--flush-cache: HTTP status 503"));
}

}  // namespace
}  // namespace attune::bench
