// A whole server over a FakeEngine on a free port of the loopback.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "formats/json.h"
#include "server/server.h"
#include "server/testing/client.h"
#include "server/testing/fake_engine.h"
#include "text/chat_template.h"

namespace attune::formats {
inline void PrintTo(const Json& json, std::ostream* out) {  // GoogleTest's name for it
  *out << json.dump();
}
}  // namespace attune::formats

namespace attune::server::testing {

using formats::Json;

inline Json parse(const std::string& text) {
  auto json = formats::parse_json(text);
  EXPECT_TRUE(json.ok()) << json.status().to_string() << "\n" << text;
  return json.ok() ? std::move(*json) : Json();
}

// Member by member, array items by number: at(json, "choices", 0, "text"). Null where there is
// none.
inline Json at(const Json& json) {
  return json;
}
template <typename... Rest>
Json at(const Json& json, int index, Rest... rest);
template <typename... Rest>
Json at(const Json& json, const char* key, Rest... rest) {
  const Json* found = json.find(key);
  return found ? at(*found, rest...) : Json();
}
template <typename... Rest>
Json at(const Json& json, int index, Rest... rest) {
  if (!json.is_array() || static_cast<size_t>(index) >= json.as_array().size()) return {};
  return at(json.as_array()[static_cast<size_t>(index)], rest...);
}

inline std::vector<TokenId> bytes_of(const std::string& text) {
  std::vector<TokenId> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

// Each message as "<turn>ROLE\nCONTENT<turn>"; refuses a system message that is not the first.
inline constexpr const char* kTemplate =
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('the system message must come first') }}{% endif %}"
    "{{ '<turn>' + m.role + '\\n' }}{{ m.content }}{{ '<turn>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<turn>assistant\\n' }}{% endif %}";

// The value of one sample of /metrics; NaN without it.
inline double metric(const std::string& text, const std::string& name,
                     const std::string& label = "") {
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    if (line.starts_with("attune:" + name + "{") && line.find(label) != std::string::npos) {
      return std::stod(line.substr(line.rfind(' ')));
    }
  }
  return std::nan("");
}

class ServerTest : public ::testing::Test {
 protected:
  // Answers with `text`, then ends; without end it goes on from the start.
  void say(const std::string& text, bool end = true) {
    engine.reply = [text, end](const Request&) {
      auto ids = bytes_of(text);
      if (end) ids.push_back(kEos);
      return ids;
    };
  }

  Model model() {
    return {&engine, tokenizer, chat_template ? &*chat_template : nullptr, "", R"({"port":1})"};
  }

  void start() {
    options.port = 0;
    auto started = Server::start(options, model());
    ASSERT_TRUE(started.ok()) << started.status().to_string();
    server = std::move(*started);
  }

  void SetUp() override {
    auto compiled = text::ChatTemplate::compile(kTemplate, {});
    ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
    chat_template.emplace(std::move(*compiled));
  }
  void TearDown() override {
    engine.hold(false);
    if (server) server->stop(1);
    EXPECT_TRUE(engine.wait_until_idle());
  }

  Reply post(const std::string& path, const std::string& body) {
    return Client(server->port()).post(path, body);
  }
  // The JSON of an answer that must be 200.
  Json ask(const std::string& path, const std::string& body) {
    const auto reply = post(path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return parse(reply.body);
  }
  // The error of an answer that must have this status.
  Json refused(int status, const std::string& path, const std::string& body) {
    const auto reply = post(path, body);
    EXPECT_EQ(reply.status, status) << body << "\n" << reply.body;
    return at(parse(reply.body), "error");
  }
  // The events of a stream, without the closing [DONE], which must be there.
  std::vector<Json> stream(const std::string& path, const std::string& body) {
    Client client(server->port());
    client.send_post(path, body);
    const auto head = client.read_head();
    EXPECT_EQ(head.status, 200);
    EXPECT_EQ(head.headers.at("content-type"), "text/event-stream; charset=utf-8");
    std::vector<Json> events;
    bool done = false;
    while (auto event = client.next_event()) {
      EXPECT_FALSE(done) << *event;
      done = *event == "[DONE]";
      if (!done) events.push_back(parse(*event));
    }
    EXPECT_TRUE(done);
    return events;
  }

  Options options;
  FakeEngine engine;
  std::shared_ptr<const text::Tokenizer> tokenizer = byte_tokenizer();
  std::optional<text::ChatTemplate> chat_template;
  std::unique_ptr<Server> server;
};

}  // namespace attune::server::testing
