// The server's life, its doors and its numbers.
#include "server/server.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <fstream>
#include <future>
#include <thread>

#include "server/testing/server_fixture.h"

extern "C" size_t __sanitizer_get_current_allocated_bytes();  // GCC ships no header that has it

namespace attune::server {
namespace {

using namespace testing;  // NOLINT: the fixture and its helpers
using Seconds = std::chrono::duration<double>;

constexpr const char* kStreamed =
    R"({"text":"q","stream":true,"sampling_params":{"max_new_tokens":4000}})";

// A number of /proc/self/status.
int self_status(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) return std::stoi(line.substr(key.size() + 1));
  }
  return -1;
}
int thread_count() {
  return self_status("Threads");
}
// Memory in use. Sanitizers keep freed memory resident on purpose, but count what is allocated.
int used_kilobytes() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return static_cast<int>(__sanitizer_get_current_allocated_bytes() / 1024);
#else
  return self_status("VmRSS");
#endif
}

class ServerLifeTest : public ServerTest {
 protected:
  Reply get(const std::string& path, const std::string& headers = "") {
    return Client(server->port()).get(path, headers);
  }
};

TEST_F(ServerLifeTest, HealthFollowsTheStages) {
  options.port = 0;
  auto listening = Server::listen(options);
  ASSERT_TRUE(listening.ok());
  server = std::move(*listening);
  EXPECT_EQ(get("/health").status, 503);
  EXPECT_EQ(at(parse(get("/health").body), "status"), Json("loading"));
  EXPECT_EQ(post("/generate", R"({"text":"q"})").status, 503);
  EXPECT_EQ(get("/v1/models").status, 503);
  EXPECT_EQ(get("/").status, 200);  // the page says that it is loading
  ASSERT_TRUE(server->set_ready(model()).ok());
  EXPECT_EQ(get("/health").status, 200);
  Client kept(server->port());
  EXPECT_EQ(kept.get("/health").status, 200);
  engine.lose_device("the GPU is gone");
  const Reply lost = kept.get("/health");
  EXPECT_EQ(lost.status, 503);
  EXPECT_EQ(at(parse(lost.body), "status"), Json("failed"));
  EXPECT_EQ(at(parse(lost.body), "error"), Json("the GPU is gone"));
  engine.lose_device("");
  engine.hold(true);
  say("x");
  Client busy(server->port());
  busy.send_post("/generate", kStreamed);
  ASSERT_TRUE(engine.wait_for_running(1));
  std::thread stopper([&] { server->stop(10); });
  Reply reply;
  do {
    reply = kept.get("/health");
  } while (reply.status == 200);
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(at(parse(reply.body), "status"), Json("draining"));
  EXPECT_EQ(post("/generate", R"({"text":"q"})").status, 503);
  engine.hold(false);
  EXPECT_EQ(busy.read_head().status, 200);
  std::string last;
  while (auto event = busy.next_event()) last = *event;
  EXPECT_EQ(last, "[DONE]");
  busy.close();
  kept.close();
  stopper.join();
}

TEST_F(ServerLifeTest, StopAbortsWhatDoesNotEndInTime) {
  start();
  engine.hold(true);
  Client streaming(server->port()), waiting(server->port());
  streaming.send_post("/generate", kStreamed);
  waiting.send_post("/generate", R"({"text":"q"})");
  ASSERT_TRUE(engine.wait_for_running(2));
  const auto begin = std::chrono::steady_clock::now();
  server->stop(0.1);
  EXPECT_LT(Seconds(std::chrono::steady_clock::now() - begin).count(), 2);
  EXPECT_EQ(waiting.read_reply().status, 503);
  EXPECT_EQ(streaming.read_head().status, 200);
  EXPECT_NE(streaming.next_event().value_or("").find("shutting down"), std::string::npos);
}

TEST_F(ServerLifeTest, SignalWakesTheWaiter) {
  start();
  std::thread waiter([&] { server->wait_for_signal(); });
  ::kill(::getpid(), SIGTERM);
  waiter.join();
  EXPECT_EQ(get("/health").status, 200);  // stopping is the caller's to do
}

TEST_F(ServerLifeTest, PathsAndMethods) {
  start();
  EXPECT_EQ(get("/nothing").status, 404);
  EXPECT_EQ(at(parse(get("/v1/chat").body), "error", "code"), Json("not_found"));
  const auto wrong = get("/v1/chat/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST, OPTIONS");
  EXPECT_EQ(post("/health", "").status, 405);
  EXPECT_EQ(post("/health", "").headers.at("allow"), "GET, HEAD, OPTIONS");
  Client client(server->port());
  client.send("HEAD /health HTTP/1.1\r\n\r\n");
  EXPECT_EQ(client.read_reply(true).status, 200);
  client.send("OPTIONS /generate HTTP/1.1\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 204);
  client.send("DELETE /generate HTTP/1.1\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 405);
  EXPECT_EQ(get("/health?verbose=1").status, 200);
  Client kept(server->port());  // refusals without a body leave the connection open
  EXPECT_EQ(kept.get("/nothing").status, 404);
  EXPECT_EQ(kept.get("/generate").status, 405);
  EXPECT_EQ(kept.get("/health").status, 200);
}

TEST_F(ServerLifeTest, ApiKey) {
  options.api_key = "secret";
  start();
  say("x");
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(get("/").status, 200);
  for (const char* header :
       {"", "Authorization: secret\r\n", "Authorization: Bearer wrong!\r\n",
        "Authorization: Bearer secret1\r\n", "Authorization: Bearer \r\n",
        "Authorization: Bearer secre\r\n", "Authorization: Basic secret\r\n"}) {
    const auto reply = get("/v1/models", header);
    EXPECT_EQ(reply.status, 401) << header;
    EXPECT_EQ(at(parse(reply.body), "error", "code"), Json("invalid_api_key"));
    EXPECT_EQ(get("/version", header).status, 401);
  }
  EXPECT_EQ(get("/metrics").status, 200);  // as in SGLang: scrapers send no keys
  for (const char* scheme : {"Bearer", "bearer", "BEARER"}) {
    const std::string header = "Authorization: " + std::string(scheme) + " secret\r\n";
    EXPECT_EQ(get("/v1/models", header).status, 200) << scheme;
  }
  EXPECT_EQ(get("/get_server_info", "Authorization: Bearer secret\r\n").body.find("secret"),
            std::string::npos);
}

TEST_F(ServerLifeTest, CorsIsOffUnlessAllowed) {
  start();
  const char* origin = "Origin: https://app.example\r\n";
  EXPECT_EQ(get("/health", origin).headers.count("access-control-allow-origin"), 0u);
  server->stop(0);
  options.allowed_origins = {"https://app.example"};
  start();
  EXPECT_EQ(get("/health", origin).headers.at("access-control-allow-origin"),
            "https://app.example");
  EXPECT_EQ(get("/health", "Origin: https://evil.example\r\n")
                .headers.count("access-control-allow-origin"),
            0u);
  EXPECT_EQ(get("/nothing", origin).headers.count("access-control-allow-origin"), 1u);
  Client client(server->port());
  client.send(std::string("OPTIONS /v1/chat/completions HTTP/1.1\r\n") + origin +
              "Access-Control-Request-Method: POST\r\n\r\n");
  const auto preflight = client.read_reply();
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.headers.at("access-control-allow-headers"), "Authorization, Content-Type");
}

TEST_F(ServerLifeTest, ModelsAndInfo) {
  start();
  const Json models = parse(get("/v1/models").body);
  EXPECT_EQ(at(models, "data", 0, "id"), Json("fake-model"));
  EXPECT_EQ(at(models, "data", 0, "max_model_len"), Json(4096));
  EXPECT_EQ(at(parse(get("/v1/models/fake-model").body), "id"), Json("fake-model"));
  EXPECT_EQ(at(parse(get("/v1/models/default").body), "id"), Json("fake-model"));
  EXPECT_EQ(at(parse(get("/v1/models/").body), "data", 0, "id"), Json("fake-model"));
  EXPECT_EQ(get("/v1/models/other").status, 404);
  EXPECT_EQ(at(parse(get("/get_model_info").body), "model_path"), Json("/models/fake.gguf"));
  EXPECT_EQ(at(parse(get("/get_model_info").body), "is_generation"), Json(true));
  const Json info = parse(get("/get_server_info").body);
  EXPECT_EQ(at(info, "settings", "port"), Json(1));
  EXPECT_EQ(at(info, "resolution", "decode", 0), Json("fake"));
  EXPECT_EQ(at(info, "stats", "page_size"), Json(16));
  EXPECT_EQ(at(info, "version"), Json("0.1.0"));
}

TEST_F(ServerLifeTest, OtherServersNamesOfRoutes) {
  start();
  EXPECT_EQ(at(parse(get("/version").body), "version"), Json("0.1.0"));
  EXPECT_EQ(get("/ping").status, 200);
  EXPECT_EQ(post("/ping", "").status, 200);
  EXPECT_EQ(get("/model_info").body, get("/get_model_info").body);
  EXPECT_EQ(at(parse(get("/server_info").body), "version"), Json("0.1.0"));
  EXPECT_EQ(post("/tokenize", R"({"prompt":"a"})").body,
            post("/v1/tokenize", R"({"prompt":"a"})").body);
  EXPECT_EQ(post("/detokenize", R"({"tokens":[97]})").body, R"({"text":"a"})");
}

TEST_F(ServerLifeTest, HostsAndNamesAreLookedAtBeforeAnythingElse) {
  options.host = "";
  EXPECT_NE(Server::listen(options).status().message().find("--host is empty"), std::string::npos);
  options.host = "0.0.0.0";
  options.port = 0;
  auto everywhere = Server::listen(options);
  ASSERT_TRUE(everywhere.ok()) << everywhere.status().to_string();
  EXPECT_FALSE((*everywhere)->is_loopback());
  EXPECT_TRUE((*everywhere)->url().starts_with("http://127.0.0.1:")) << (*everywhere)->url();
  options.host = "localhost";
  auto here = Server::listen(options);
  ASSERT_TRUE(here.ok()) << here.status().to_string();
  EXPECT_TRUE((*here)->is_loopback());
  EXPECT_TRUE((*here)->url().starts_with("http://localhost:")) << (*here)->url();
  options.served_model_name = "a\xff";
  EXPECT_EQ(Server::listen(options).status().message(), "--served-model-name is no valid UTF-8");
}

TEST_F(ServerLifeTest, FlushCache) {
  start();
  EXPECT_EQ(get("/flush_cache").status, 200);
  EXPECT_EQ(post("/flush_cache", "").status, 200);
  engine.flush_status = unavailable("requests are running");
  EXPECT_EQ(post("/flush_cache", "").status, 400);
}

// Prompts were encoded by the thread that waited for storage, so none was answered meanwhile.
TEST_F(ServerLifeTest, StorageThatHangsHoldsNoRequestUp) {
  std::promise<void> begun, over;
  engine.on_clear = [&, end = over.get_future().share()] {
    begun.set_value();
    end.wait();
  };
  start();
  Client clearing(server->port());
  clearing.send_post("/clear_hicache_storage_backend", "");
  begun.get_future().wait();
  say("x");
  EXPECT_EQ(post("/generate", R"({"text":"q"})").status, 200);
  over.set_value();
}

TEST_F(ServerLifeTest, ClearStorage) {
  start();
  EXPECT_EQ(get("/clear_hicache_storage_backend").status, 200);
  EXPECT_EQ(post("/clear_hicache_storage_backend", "").status, 200);
  engine.clear_status = invalid_argument("there is no storage tier");
  EXPECT_EQ(refused(400, "/clear_hicache_storage_backend", "").find("message")->as_string(),
            "there is no storage tier");
  engine.clear_status = unavailable("no Redis server answers");
  EXPECT_EQ(refused(503, "/clear_hicache_storage_backend", "").find("message")->as_string(),
            "no Redis server answers");
  options.api_key = "secret";
  server.reset();
  start();
  EXPECT_EQ(post("/clear_hicache_storage_backend", "").status, 401);
}

TEST_F(ServerLifeTest, HealthGenerate) {
  start();
  EXPECT_EQ(get("/health_generate").status, 200);
  EXPECT_EQ(engine.seen().at(0).sampling.max_new_tokens, 1);
  engine.fail_at_token = 0;
  EXPECT_EQ(get("/health_generate").status, 503);
}

TEST_F(ServerLifeTest, BugG01DisconnectEndsTheRequestInEveryState) {
  start();
  say("abc", false);
  for (const char* body :
       {kStreamed, R"({"text":"q","sampling_params":{"max_new_tokens":4000}})"}) {
    engine.hold(true);  // as in the queue, or in prefill
    Client client(server->port());
    client.send_post("/generate", body);
    ASSERT_TRUE(engine.wait_for_running(1));
    const auto begin = std::chrono::steady_clock::now();
    client.close();
    EXPECT_TRUE(engine.wait_until_idle());
    EXPECT_LT(Seconds(std::chrono::steady_clock::now() - begin).count(), 0.05);
  }
  engine.hold(false);
  engine.step_seconds = 0.001;
  for (int tokens : {1, 2, 5}) {  // while it streams
    Client client(server->port());
    client.send_post("/generate", kStreamed);
    EXPECT_EQ(client.read_head().status, 200);
    for (int i = 0; i < tokens; ++i) EXPECT_TRUE(client.next_event());
    client.reset();
    EXPECT_TRUE(engine.wait_until_idle());
  }
  EXPECT_EQ(engine.aborted(), 5u);
  EXPECT_EQ(metric(get("/metrics").body, "num_aborted_requests_total"), 5);
}

TEST_F(ServerLifeTest, IdleStreamsCostNoThreads) {
  constexpr int kStreams = 2000;
  start();
  engine.hold(true);
  say("x");
  const int before = thread_count();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<Client>(server->port(), 60));
    ASSERT_TRUE(clients.back()->send_post("/generate", R"({"text":"q","stream":true})")) << i;
  }
  ASSERT_TRUE(engine.wait_for_running(kStreams, 60));
  EXPECT_EQ(thread_count(), before);
  EXPECT_EQ(get("/health").status, 200);  // and nobody waits for them
  engine.hold(false);
  int complete = 0;
  for (auto& client : clients) {
    EXPECT_EQ(client->read_head().status, 200);
    std::string last;
    while (auto event = client->next_event()) last = *event;
    complete += last == "[DONE]";
  }
  EXPECT_EQ(complete, kStreams);
}

TEST_F(ServerLifeTest, BugG25MemoryStaysFlat) {
  engine.keep_seen = false;
  start();
  say("some text that is not very long");
  Client client(server->port());
  const auto round = [&] {
    for (const auto& [path, body] :
         {std::pair{"/generate", R"({"text":"q"})"},
          std::pair{"/v1/completions", R"({"prompt":"q","logprobs":2})"},
          std::pair{"/v1/chat/completions",
                    R"({"messages":[{"role":"user","content":"q"}],"stream":true})"},
          std::pair{"/v1/tokenize", R"({"prompt":"q"})"}}) {
      ASSERT_EQ(client.post(path, body).status, 200);
    }
    ASSERT_EQ(client.post("/generate", R"({"text":1})").status, 400);
    ASSERT_EQ(client.get("/metrics").status, 200);
    ASSERT_EQ(client.get("/nothing").status, 404);
    Client leaves(server->port());
    ASSERT_TRUE(leaves.send_post("/generate", kStreamed));
  };
  for (int i = 0; i < 100; ++i) round();
  const int before = used_kilobytes();
  for (int i = 0; i < 1000; ++i) round();
  EXPECT_LT(used_kilobytes() - before, 4096);
}

TEST_F(ServerLifeTest, RequestTimeout) {
  options.request_timeout = 0.1;
  start();
  engine.hold(true);
  EXPECT_EQ(post("/generate", R"({"text":"q"})").status, 408);
  Client client(server->port());
  client.send_post("/generate", kStreamed);
  EXPECT_EQ(client.read_head().status, 200);
  EXPECT_NE(client.next_event().value_or("").find("timeout"), std::string::npos);
  EXPECT_TRUE(engine.wait_until_idle());
  EXPECT_EQ(engine.aborted(), 2u);
  // Each in one of the counters only.
  const std::string metrics = Client(server->port()).get("/metrics").body;
  EXPECT_NE(metrics.find("num_aborted_requests_total{model_name=\"fake-model\"} 2\n"),
            std::string::npos);
  EXPECT_NE(metrics.find("num_refused_requests_total{model_name=\"fake-model\"} 0\n"),
            std::string::npos);
}

TEST_F(ServerLifeTest, ATokenizerOfALargerModelIsRefused) {
  options.port = 0;
  engine.info.vocab_size = 200;  // of the bytes' 256
  auto refused = Server::start(options, model());
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("261 tokens, the model only 200"), std::string::npos);
  engine.info.vocab_size = 258;  // only special tokens lie beyond
  EXPECT_TRUE(Server::start(options, model()).ok());
  engine.info.vocab_size = 300;  // padded
  start();
}

TEST_F(ServerLifeTest, BodyLimit) {
  options.max_request_bytes = 1000;
  start();
  const auto reply = post("/generate", std::string(1001, ' '));
  EXPECT_EQ(reply.status, 413);
  EXPECT_NE(at(parse(reply.body), "error", "message").as_string().find("1000"), std::string::npos);
}

TEST_F(ServerLifeTest, BugK01HistogramsAgreeWithTheClient) {
  engine.prefill_seconds = 0.05;
  engine.step_seconds = 0.01;
  start();
  say("abc", false);
  const auto begin = std::chrono::steady_clock::now();
  stream("/generate", R"({"text":"q","stream":true,"sampling_params":{"max_new_tokens":20}})");
  const double all = Seconds(std::chrono::steady_clock::now() - begin).count();
  const std::string text = get("/metrics").body;
  const double first = metric(text, "time_to_first_token_seconds_sum");
  EXPECT_GE(first, 0.05);
  EXPECT_EQ(metric(text, "time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(metric(text, "inter_token_latency_seconds_count"), 19);  // K-05: one fewer than tokens
  const double between = metric(text, "inter_token_latency_seconds_sum");
  EXPECT_GE(between, 0.19);
  EXPECT_NEAR(metric(text, "e2e_request_latency_seconds_sum"), first + between, 0.2 * all);
  EXPECT_LE(metric(text, "e2e_request_latency_seconds_sum"), all);
  EXPECT_EQ(metric(text, "time_to_first_token_seconds_bucket", "le=\"0.04\""), 0);
  EXPECT_EQ(metric(text, "generation_tokens_total"), 20);
  EXPECT_EQ(metric(text, "prompt_tokens_total"), 1);
  EXPECT_EQ(metric(text, "num_requests_total"), 1);
}

TEST_F(ServerLifeTest, BugK04FirstTokenTimeIncludesTheQueue) {
  engine.slots = 1;
  engine.prefill_seconds = engine.step_seconds = 0.01;
  start();
  say("abcd");
  std::vector<std::unique_ptr<Client>> clients;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 10; ++i) {
    clients.push_back(std::make_unique<Client>(server->port()));
    clients.back()->send_post("/generate", R"({"text":"q"})");
  }
  for (auto& client : clients) EXPECT_EQ(client->read_reply().status, 200);
  const double all = Seconds(std::chrono::steady_clock::now() - begin).count();
  const double mean = metric(get("/metrics").body, "time_to_first_token_seconds_sum") / 10;
  EXPECT_GT(mean, 0.3 * all);  // evenly spread over the queue, not all at its end
}

TEST_F(ServerLifeTest, BugK03MetricsAreWellFormed) {
  start();
  say("x");
  ask("/generate", R"({"text":"q"})");
  const auto reply = get("/metrics");
  EXPECT_EQ(reply.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_GE(metric(reply.body, "e2e_request_latency_seconds_bucket", "le=\"1800\""), 1);
  EXPECT_EQ(metric(reply.body, "e2e_request_latency_seconds_bucket", "le=\"+Inf\""), 1);
  for (const char* name :
       {"num_running_reqs", "num_queue_reqs", "num_used_tokens", "token_usage", "gen_throughput",
        "cache_hit_rate", "prompt_tokens_total", "generation_tokens_total", "num_requests_total",
        "num_aborted_requests_total"}) {
    EXPECT_FALSE(std::isnan(metric(reply.body, name, "model_name=\"fake-model\""))) << name;
    EXPECT_NE(reply.body.find("# HELP attune:" + std::string(name) + " "), std::string::npos);
  }
  const char* route = "phase=\"decode\",backend=\"fake\",path=\"paged\",fallback=";
  const double first = metric(reply.body, "attention_route_total", std::string(route) + "\"0\"");
  EXPECT_GE(first, 1);
  EXPECT_EQ(metric(reply.body, "attention_route_total", std::string(route) + "\"1\""), 7);
  const Json info = parse(get("/get_server_info").body);
  EXPECT_GE(at(info, "stats", "attention_routes", "decode/fake/paged").as_double(), first + 7);
  EXPECT_EQ(reply.body.find("hicache"), std::string::npos);  // of what is off
  for (const char* tier : {"device", "host", "storage"}) {   // K-07
    EXPECT_EQ(metric(reply.body, "cached_tokens_total", "tier=\"" + std::string(tier) + "\""), 0);
  }
  size_t samples = 0;
  for (size_t at = 0; at < reply.body.size(); ++samples) {
    const size_t end = reply.body.find('\n', at);
    const std::string line = reply.body.substr(at, end - at);
    at = end + 1;
    if (line.starts_with("# TYPE ")) {
      const bool counter = line.ends_with(" counter");
      const std::string name = line.substr(7, line.rfind(' ') - 7);
      EXPECT_EQ(counter, name.ends_with("_total")) << line;
    }
  }
  EXPECT_GT(samples, 50u);
}

TEST_F(ServerLifeTest, ThePageIsWhole) {
  start();
  const auto page = get("/");
  EXPECT_EQ(page.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_NE(page.body.find("</html>"), std::string::npos);
  EXPECT_EQ(page.body.find("http://"), std::string::npos);  // nothing from elsewhere
  EXPECT_EQ(page.body.find("https://"), std::string::npos);
}

}  // namespace
}  // namespace attune::server
