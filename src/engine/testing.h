// What the engine's tests share: a sink that waits, and short ways to make engines and requests.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "attention/registry.h"
#include "attune/engine.h"
#include "base/test_data.h"
#include "formats/json.h"

namespace attune::engine::testing {

// Waits for a request and keeps all it said.
class Collector final : public TokenSink {
 public:
  void on_event(TokenEvent event) override {
    std::lock_guard lock(mutex_);
    for (TokenId t : event.tokens) tokens.push_back(t);
    for (LogprobEntry& e : event.logprobs) logprobs.push_back(std::move(e));
    if (!event.prompt_logprobs.empty() && prompt_logprobs.empty())
      prompt_first = event.prompt_logprobs_first;
    for (LogprobEntry& e : event.prompt_logprobs) prompt_logprobs.push_back(std::move(e));
    usage = event.usage;
    finish = event.finish;
    error = event.error;
    if (!event.tokens.empty() || finish != FinishReason::kNone) news_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(news_.wait_for(lock, std::chrono::minutes(5),
                               [&] { return finish != FinishReason::kNone; }));
  }
  void wait_for_tokens(size_t n) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(news_.wait_for(lock, std::chrono::minutes(5), [&] {
      return tokens.size() >= n || finish != FinishReason::kNone;
    }));
  }

  // To be read after wait().
  std::vector<TokenId> tokens;
  std::vector<LogprobEntry> logprobs, prompt_logprobs;
  int32_t prompt_first = 0;
  Usage usage;
  FinishReason finish = FinishReason::kNone;
  std::string error;

 private:
  std::mutex mutex_;
  std::condition_variable news_;
};

struct Started {
  RequestId id = 0;
  std::shared_ptr<Collector> sink;
  Collector* operator->() const { return sink.get(); }
};

inline Started start(Engine& engine, std::vector<TokenId> prompt, SamplingParams sampling) {
  Started started{0, std::make_shared<Collector>()};
  Request request;
  request.prompt = std::move(prompt);
  request.sampling = std::move(sampling);
  Result<RequestId> id = engine.submit(std::move(request), started.sink);
  EXPECT_TRUE(id.ok()) << id.status().to_string();
  if (id.ok()) started.id = *id;
  return started;
}

inline std::unique_ptr<Engine> make_engine(const Options& options) {
  Result<std::unique_ptr<Engine>> engine = Engine::create(options);
  EXPECT_TRUE(engine.ok()) << engine.status().to_string();
  return engine.ok() ? std::move(engine).value() : nullptr;
}

// Where cuBLASLt and cuDNN are, beside the usual places (Options::cuda_libraries).
inline std::string cuda_libraries() {
  const char* folders = std::getenv("ATTUNE_CUDA_LIBRARIES");
  return folders ? folders : "";
}

// Why an attention backend cannot run on this GPU; empty: it can.
inline std::string backend_missing(const std::string& name) {
  if (name.empty()) return "";
  const attention::BackendEntry* entry = attention::find_backend(name);
  if (!entry || !entry->create) return entry ? entry->unavailable : "unknown";
  auto device = ::attune::device::create_cuda_device(0, cuda_libraries());
  if (!device.ok()) return device.status().message();
  return attention::unavailable_on(*entry, **device);
}

// A small model with room for a few requests.
inline Options small_options() {
  Options options;
  options.model = base::test_data("families/llama");
  options.dtype = "float32";
  options.max_total_tokens = 512;
  options.threads = 2;
  return options;
}

// Greedy, and just n of them.
inline SamplingParams tokens(int32_t n) {
  return {.temperature = 0, .max_new_tokens = n, .ignore_eos = true};
}

// Once all requests have ended: no page, no place is held.
inline void expect_nothing_held(Engine& engine) {
  EXPECT_TRUE(engine.flush_cache().ok());  // also a turn of the loop: what was aborted is gone
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.running_requests, 0);
  EXPECT_EQ(stats.waiting_requests, 0);
  EXPECT_EQ(stats.used_pages, 0);
  EXPECT_EQ(stats.cached_pages, 0);
}

// `path` below tests/golden.
inline formats::Json read_golden(const std::string& path) {
  std::ifstream in(base::test_data(path));
  std::stringstream text;
  text << in.rdbuf();
  Result<formats::Json> json = formats::parse_json(text.str());
  EXPECT_TRUE(json.ok()) << path << ": " << json.status().to_string();
  return json.ok() ? std::move(json).value() : formats::Json();
}

inline std::vector<TokenId> ids_of(const formats::Json& json) {
  std::vector<TokenId> ids;
  for (const formats::Json& id : json.as_array()) ids.push_back(static_cast<TokenId>(id.as_int()));
  return ids;
}

inline std::vector<double> log_softmax(const formats::Json& logits) {
  double sum = 0;
  for (const formats::Json& l : logits.as_array()) sum += std::exp(l.as_double());
  std::vector<double> out;
  for (const formats::Json& l : logits.as_array()) out.push_back(l.as_double() - std::log(sum));
  return out;
}

}  // namespace attune::engine::testing
