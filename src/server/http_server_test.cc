// The HTTP core alone, with a handler that answers by path, over sockets on the loopback.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>

#include "server/http.h"
#include "server/testing/client.h"

namespace attune::server {
namespace {

using testing::Client;

class Handler : public HttpHandler {
 public:
  std::optional<HttpResponse> check(const HttpRequest& head) override {
    if (head.path == "/refused") return HttpResponse{401, "text/plain", "no"};
    return std::nullopt;
  }
  Headers extra_headers(const HttpRequest&) override { return {{"X-Extra", "yes"}}; }
  void handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override {
    if (request.path == "/echo") {
      return exchange->respond({200, "text/plain", request.method_name + " " + request.body});
    }
    if (request.path == "/dropped") return;
    if (request.path == "/throw") throw std::bad_alloc();
    if (request.path == "/held") {
      const std::lock_guard lock(mutex);
      held.push_back(exchange);
      exchange->on_close([this] { ++closed; });
      changed.notify_all();
      return;
    }
    if (request.path == "/stream") {
      exchange->begin({200, "text/event-stream"});
      for (int i = 0; i < 3; ++i) exchange->write("data: " + std::to_string(i) + "\n\n");
      return exchange->end();
    }
    if (request.path == "/flood") return flood(exchange);
    exchange->respond(refusal(404, "no such path"));
  }
  HttpResponse refusal(int status, const std::string& message) override {
    return {status, "text/plain", message};
  }

  // Writes 32 MiB as fast as the client reads, and notes the most that was written ahead.
  void flood(const std::shared_ptr<Exchange>& exchange) {
    exchange->begin({200, "application/octet-stream"});
    auto pump = std::make_shared<std::function<void()>>();
    auto left = std::make_shared<int>(512);
    *pump = [this, exchange, left] {
      while (*left > 0 && exchange->writable()) {
        exchange->write(std::string(64 << 10, 'x'));
        --*left;
      }
      flood_left = *left;
      if (*left == 0) exchange->end();
    };
    exchange->on_drain([pump] { (*pump)(); });
    exchange->on_close([this] { ++closed; });
    (*pump)();
  }

  void wait_for_held(size_t count) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return held.size() >= count; });
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::shared_ptr<Exchange>> held;  // changed on the loop only
  std::atomic<int> closed{0};
  std::atomic<int> flood_left{-1};
};

// Waits until `condition` holds, at most ten seconds.
template <typename Condition>
bool eventually(Condition condition) {
  const auto end = Clock::now() + std::chrono::seconds(10);
  while (!condition()) {
    if (Clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

class HttpServerTest : public ::testing::Test {
 protected:
  void start(HttpOptions options = {}) {
    auto server = HttpServer::listen(loop, options, handler);
    ASSERT_TRUE(server.ok()) << server.status().to_string();
    server_ = std::move(*server);
  }
  void TearDown() override {
    loop.run([&] { handler.held.clear(); });
    server_.reset();
  }
  int port() const { return server_->port(); }

  Handler handler;
  Loop loop;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersSeveralRequestsOnOneConnection) {
  start();
  Client client(port());
  for (int i = 0; i < 3; ++i) {
    const auto reply = client.post("/echo", "body " + std::to_string(i));
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, "POST body " + std::to_string(i));
    EXPECT_EQ(reply.headers.at("x-extra"), "yes");
  }
  EXPECT_EQ(client.get("/nothing").status, 404);
  EXPECT_EQ(server_->connections(), 1u);
}

TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  start();
  Client client(port());
  std::string all;
  for (int i = 0; i < 50; ++i) {
    all += "POST /echo HTTP/1.1\r\nContent-Length: 2\r\n\r\n" + std::to_string(10 + i);
  }
  client.send(all);
  for (int i = 0; i < 50; ++i)
    EXPECT_EQ(client.read_reply().body, "POST " + std::to_string(10 + i));
}

TEST_F(HttpServerTest, ByteByByteAndChunkedRequests) {
  start();
  Client client(port());
  for (const char c : std::string("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
                                  "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")) {
    client.send(std::string_view(&c, 1));
  }
  EXPECT_EQ(client.read_reply().body, "POST abcde");
}

TEST_F(HttpServerTest, StreamsInChunksAndKeepsTheConnection) {
  start();
  Client client(port());
  client.send("GET /stream HTTP/1.1\r\n\r\n");
  EXPECT_EQ(client.read_head().headers["transfer-encoding"], "chunked");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.next_event(), std::to_string(i));
  EXPECT_EQ(client.next_event(), std::nullopt);
  EXPECT_EQ(client.post("/echo", "x").body, "POST x");
}

TEST_F(HttpServerTest, Http10ClientGetsAPlainStreamThatEndsWithTheConnection) {
  start();
  Client client(port());
  client.send("GET /stream HTTP/1.0\r\n\r\n");
  const auto reply = client.read_reply();
  EXPECT_EQ(reply.headers.count("transfer-encoding"), 0u);
  EXPECT_EQ(reply.body, "data: 0\n\ndata: 1\n\ndata: 2\n\n");
}

TEST_F(HttpServerTest, HeadHasTheLengthButNoBody) {
  start();
  Client client(port());
  client.send("HEAD /echo HTTP/1.1\r\n\r\n");
  const auto reply = client.read_reply(true);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("content-length"), "5");
  EXPECT_EQ(client.post("/echo", "x").body, "POST x");
}

TEST_F(HttpServerTest, HeadIsRefusedBeforeTheBodyArrives) {
  start();
  Client client(port());
  client.send("POST /refused HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 401);
  EXPECT_TRUE(client.at_end());
}

TEST_F(HttpServerTest, ContinueIsSentWhenAskedFor) {
  start();
  Client client(port());
  client.send("POST /echo HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 100);
  client.send("abc");
  EXPECT_EQ(client.read_reply().body, "POST abc");
}

TEST_F(HttpServerTest, TheBodyAfterContinueIsReadAlsoWhenTheConnectionThenCloses) {
  start();
  Client client(port());
  client.send(
      "POST /echo HTTP/1.1\r\nConnection: close\r\nContent-Length: 3\r\nExpect: "
      "100-continue\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 100);
  client.send("abc");
  EXPECT_EQ(client.read_reply().body, "POST abc");
  EXPECT_TRUE(client.at_end());
}

TEST_F(HttpServerTest, ATargetMayBeAWholeUrl) {
  start();
  for (const char* target : {"http://x:1/echo", "HTTP://x/echo?a=b"}) {
    Client client(port());
    client.send("GET " + std::string(target) + " HTTP/1.1\r\nConnection: close\r\n\r\n");
    EXPECT_EQ(client.read_reply().status, 200) << target;
  }
}

TEST_F(HttpServerTest, LimitsOfHeadAndBody) {
  HttpOptions options;
  options.max_body_bytes = 1000;
  start(options);
  const std::string fill(20000, 'a');
  EXPECT_EQ(Client(port()).get("/echo", "X-Fill: " + fill + "\r\n").status, 431);
  EXPECT_EQ(Client(port()).post("/echo", std::string(1000, 'b')).status, 200);
  const auto reply = Client(port()).post("/echo", std::string(1001, 'b'));
  EXPECT_EQ(reply.status, 413);
  EXPECT_NE(reply.body.find("1000 bytes"), std::string::npos);
  Client chunked(port());
  chunked.send("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" +
               std::string(2000, 'c') + "\r\n0\r\n\r\n");
  EXPECT_EQ(chunked.read_reply().status, 413);
}

TEST_F(HttpServerTest, MalformedRequestsAreRefused) {
  start();
  for (const char* bad : {"rubbish\r\n\r\n", "GET / HTTP/3.0\r\n\r\n", "GET /\r\n\r\n",
                          "POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
                          "POST /echo HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
                          "POST /echo HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: "
                          "chunked\r\n\r\n0\r\n\r\n",
                          "GET /echo HTTP/1.1\r\nBad Name: x\r\n\r\n",
                          "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    Client client(port());
    client.send(bad);
    EXPECT_EQ(client.read_reply().status, 400) << bad;
    EXPECT_TRUE(client.at_end());
  }
  Client coded(port());
  coded.send("POST /echo HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n");
  EXPECT_EQ(coded.read_reply().status, 501);
}

TEST_F(HttpServerTest, SlowRequestGets408AndRestingConnectionCloses) {
  HttpOptions options;
  options.read_timeout = 0.1;
  options.idle_timeout = 0.1;
  start(options);
  Client slow(port());
  slow.send("POST /echo HTTP/1.1\r\nContent-Length: 5\r\n\r\nab");
  EXPECT_EQ(slow.read_reply().status, 408);
  Client resting(port());
  EXPECT_EQ(resting.get("/echo").status, 200);
  EXPECT_TRUE(resting.at_end());
  Client silent(port());
  EXPECT_TRUE(silent.at_end());
}

TEST_F(HttpServerTest, ConnectionsBeyondTheLimitGet503) {
  HttpOptions options;
  options.max_connections = 2;
  start(options);
  Client first(port()), second(port());
  EXPECT_EQ(first.get("/echo").status, 200);
  EXPECT_EQ(second.get("/echo").status, 200);
  {
    Client third(port());
    EXPECT_EQ(third.read_reply().status, 503);
  }
  first.close();
  EXPECT_TRUE(eventually([&] { return Client(port()).get("/echo").status == 200; }));
}

TEST_F(HttpServerTest, ClientThatLeavesIsSeenWhileNothingIsWritten) {
  start();
  Client polite(port()), rude(port());
  polite.send("GET /held HTTP/1.1\r\n\r\n");
  rude.send("GET /held HTTP/1.1\r\n\r\n");
  handler.wait_for_held(2);
  const auto begin = Clock::now();
  polite.close();
  rude.reset();
  EXPECT_TRUE(eventually([&] { return handler.closed == 2; }));
  EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(50));
}

TEST_F(HttpServerTest, DroppedExchangeGets500) {
  start();
  Client client(port());
  EXPECT_EQ(client.get("/dropped").status, 500);
  EXPECT_EQ(client.get("/echo").status, 200);
}

TEST_F(HttpServerTest, BackPressureStopsTheWriter) {
  start();
  Client client(port());
  client.send("GET /flood HTTP/1.1\r\n\r\n");
  EXPECT_EQ(client.read_head().status, 200);
  // Unread, the stream stops at what the kernel and the mark hold, far from its 32 MiB.
  EXPECT_TRUE(eventually([&] { return handler.flood_left >= 0; }));
  EXPECT_GT(handler.flood_left, 256);
  size_t chunks = 0;
  client.send("GET /echo HTTP/1.1\r\n\r\n");
  Client other(port());
  EXPECT_EQ(other.get("/echo").status, 200);  // nobody else waits
  while (handler.flood_left > 0 && ++chunks < 100000) client.drain();
  EXPECT_TRUE(eventually([&] { return handler.flood_left == 0; }));
}

TEST_F(HttpServerTest, ClientThatDoesNotReadIsGivenUp) {
  HttpOptions options;
  options.write_timeout = 0.1;
  start(options);
  Client client(port());
  client.send("GET /flood HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(eventually([&] { return handler.closed == 1; }));
}

TEST_F(HttpServerTest, StopLetsRunningExchangesEnd) {
  start();
  Client busy(port()), resting(port());
  EXPECT_EQ(resting.get("/echo").status, 200);
  busy.send("GET /held HTTP/1.1\r\n\r\n");
  handler.wait_for_held(1);
  std::thread stopper([&] { server_->stop(10); });
  EXPECT_TRUE(resting.at_end());
  loop.run([&] {
    handler.held[0]->respond({200, "text/plain", "late"});
    handler.held.clear();
  });
  const auto reply = busy.read_reply();
  EXPECT_EQ(reply.body, "late");
  EXPECT_EQ(reply.headers.at("connection"), "close");
  busy.close();
  stopper.join();
  EXPECT_EQ(server_->connections(), 0u);
  EXPECT_FALSE(Client(port()).connected());
}

TEST_F(HttpServerTest, StopClosesWhatDoesNotEndInTime) {
  start();
  Client busy(port());
  busy.send("GET /held HTTP/1.1\r\n\r\n");
  handler.wait_for_held(1);
  server_->stop(0.05);
  EXPECT_TRUE(busy.at_end());
  EXPECT_EQ(handler.closed, 1);
}

TEST_F(HttpServerTest, StopRefusesWhatIsStillArriving) {
  start();
  Client half(port()), sent(port());
  half.send("POST /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_EQ(sent.get("/echo").status, 200);  // what came before it has been read
  const auto begin = std::chrono::steady_clock::now();
  std::thread stopper([&] { server_->stop(30); });
  EXPECT_EQ(half.read_reply().status, 503);
  half.close();
  stopper.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
}

TEST_F(HttpServerTest, AddressesThatCannotBeBoundAreRefused) {
  start();
  HttpOptions taken;
  taken.port = port();
  auto again = HttpServer::listen(loop, taken, handler);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.status().code(), Code::kIoError);
  EXPECT_NE(again.status().message().find(std::to_string(port())), std::string::npos);
  HttpOptions nowhere;
  nowhere.host = "no such host";
  EXPECT_EQ(HttpServer::listen(loop, nowhere, handler).status().code(), Code::kInvalidArgument);
}

// Who only ends its own side wants the answer. Whoever has gone altogether sends the same, and is
// told apart by what a byte to it comes back with.
TEST_F(HttpServerTest, HalfClosedClientsGetTheirAnswers) {
  start();
  Client held(port()), pipelined(port()), streamed(port());
  held.send("GET /held HTTP/1.1\r\n\r\n");
  held.shut_down();
  pipelined.send("GET /echo HTTP/1.1\r\n\r\nGET /held HTTP/1.1\r\n\r\nGET /echo HTTP/1.1\r\n\r\n");
  pipelined.shut_down();
  handler.wait_for_held(2);
  EXPECT_EQ(held.read_reply().status, 100);
  loop.run([&] {
    for (auto& exchange : handler.held) exchange->respond({200, "text/plain", "late"});
    handler.held.clear();
  });
  EXPECT_EQ(held.read_reply().body, "late");
  EXPECT_TRUE(held.at_end());
  // A 100 comes before the held answer only if the end of the client's side was seen before that.
  std::vector<int> statuses;
  while (statuses.size() < 3) {
    const int status = pipelined.read_reply().status;
    if (status != 100) statuses.push_back(status);
  }
  EXPECT_EQ(statuses, (std::vector<int>{200, 200, 200}));
  EXPECT_TRUE(pipelined.at_end());
  EXPECT_EQ(handler.closed, 0);
  streamed.send("GET /stream HTTP/1.1\r\n\r\n");
  streamed.shut_down();
  EXPECT_EQ(streamed.read_reply().status, 200);
  EXPECT_TRUE(streamed.at_end());
  EXPECT_TRUE(eventually([&] { return server_->connections() == 0; }));
}

// Bodies count until they are answered, whichever connection they came on.
TEST_F(HttpServerTest, BodiesTogetherHaveALimit) {
  HttpOptions options;
  options.max_held_bytes = 100'000;
  start(options);
  const std::string body(60'000, 'x');
  Client first(port());
  first.send_post("/held", body);
  handler.wait_for_held(1);
  Client second(port());
  EXPECT_EQ(second.post("/echo", body).status, 503);
  EXPECT_TRUE(second.at_end());
  EXPECT_EQ(Client(port()).post("/echo", "small").status, 200);
  loop.run([&] {
    handler.held[0]->respond({200, "text/plain", "done"});
    handler.held.clear();
  });
  EXPECT_EQ(first.read_reply().body, "done");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Client(port()).post("/echo", body).status, 200);
  // Also what a client that leaves has sent, whole or not.
  first.close();
  for (int i = 0; i < 5; ++i) {
    Client leaves(port());
    leaves.send("POST /echo HTTP/1.1\r\nContent-Length: 90000\r\n\r\n" + body);
    leaves.close();
  }
  EXPECT_TRUE(eventually([&] { return Client(port()).post("/echo", body).status == 200; }));
}

TEST_F(HttpServerTest, WhatAHandlerThrowsEndsItsRequestOnly) {
  start();
  EXPECT_EQ(Client(port()).get("/throw").status, 500);
  EXPECT_EQ(Client(port()).get("/echo").status, 200);
}

}  // namespace
}  // namespace attune::server
