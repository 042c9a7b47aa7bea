// An Engine without a model: what it says, how fast and how it fails is the test's to choose.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "attune/engine.h"
#include "text/tokenizer.h"

namespace attune::server::testing {

// One token per byte value (id = byte), "th" and "he" merged (256, 257), then special tokens.
constexpr TokenId kBos = 258, kEos = 259, kTurn = 260, kVocabulary = 261;
std::shared_ptr<const text::Tokenizer> byte_tokenizer(bool add_bos = false);

class FakeEngine : public Engine {
 public:
  FakeEngine();
  ~FakeEngine() override;

  // --- what a test sets before it sends requests ---
  // The tokens of an answer; an end-of-sequence token in it ends it. Without: the prompt, again and
  // again.
  std::function<std::vector<TokenId>(const Request&)> reply;
  double prefill_seconds = 0, step_seconds = 0;
  int32_t tokens_per_event = 1;
  int32_t slots = 1 << 20;     // requests that run at once
  int32_t fail_at_token = -1;  // kError there
  Status refuse_submit;        // what submit() returns, when not ok
  Status flush_status, clear_status;
  std::function<void()> on_clear;
  HiCacheStats hicache;
  std::vector<CacheTierStats> cache_tiers;
  bool keep_seen = true;
  ModelInfo info;

  // While held, requests stay where they are.
  void hold(bool on);
  // What stats() says of the device from now on.
  void lose_device(const std::string& why);

  // --- what a test looks at ---
  int32_t running() const;   // inside, in whatever state
  uint64_t aborted() const;  // ended by abort()
  std::vector<Request> seen() const;
  bool wait_until_idle(double seconds = 10);
  bool wait_for_running(int32_t count, double seconds = 10);

  Result<RequestId> submit(Request request, std::shared_ptr<TokenSink> sink) override;
  void abort(RequestId id) override;
  Status flush_cache() override { return flush_status; }
  Status clear_storage() override {
    if (on_clear) on_clear();
    return clear_status;
  }
  void drain(double seconds) override;
  const ModelInfo& model() const override { return info; }
  EngineStats stats() const override;
  std::string resolution_json() const override { return R"({"decode":["fake"]})"; }
  std::string resolution_table() const override { return "decode  fake"; }

 private:
  struct Running {
    Request request;
    std::shared_ptr<TokenSink> sink;
    std::vector<TokenId> answer;
    size_t next = 0;
    int32_t produced = 0;
    bool prefilled = false;
    bool aborted = false;
  };
  void loop();
  bool step(RequestId id, Running& r);  // true: it has ended
  TokenEvent prefill_event(RequestId id, const Running& r) const;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, Running> requests_;
  std::vector<Request> seen_;
  RequestId next_id_ = 1;
  uint64_t aborted_ = 0, generated_ = 0, prompt_tokens_ = 0, steps_ = 0, finished_ = 0;
  bool held_ = false, draining_ = false, stopping_ = false;
  std::string device_failure_;
  std::thread thread_;
};

}  // namespace attune::server::testing
