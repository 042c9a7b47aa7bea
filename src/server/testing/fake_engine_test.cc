#include "server/testing/fake_engine.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "text/vocab_data.h"

namespace attune::server::testing {

namespace {

// GPT-2's visible character for a byte.
std::string visible(int byte) {
  static const auto table = [] {
    std::vector<int> code(256, -1);
    int next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool shown = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      code[static_cast<size_t>(b)] = shown ? b : next++;
    }
    return code;
  }();
  const int c = table[static_cast<size_t>(byte)];
  if (c < 0x80) return {static_cast<char>(c)};
  return {static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 0x3F))};
}

LogprobEntry logprob_of(TokenId token, int32_t top) {
  LogprobEntry entry;
  entry.chosen = {token, -0.25f * static_cast<float>(token % 8)};
  for (int32_t i = 0; i < top; ++i) {
    entry.top.push_back({(token + i) % kVocabulary, -0.5f * static_cast<float>(i + 1)});
  }
  return entry;
}

void sleep_for(double seconds) {
  if (seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

}  // namespace

std::shared_ptr<const text::Tokenizer> byte_tokenizer(bool add_bos) {
  text::VocabData data;
  data.source = "byte_tokenizer";
  data.byte_level = true;
  data.pre_tokenizer_name = "bytes";
  for (int b = 0; b < 256; ++b) data.owned.push_back(visible(b));
  for (const char* token : {"th", "he", "<bos>", "<eos>", "<turn>"}) data.owned.emplace_back(token);
  for (const std::string& token : data.owned) {
    data.tokens.push_back(token);
    const bool special = data.tokens.size() > kBos;
    data.types.push_back(special ? text::TokenType::kControl : text::TokenType::kNormal);
    if (special) {
      text::AddedToken added;
      added.text = token;
      added.id = static_cast<TokenId>(data.tokens.size()) - 1;
      added.special = true;
      data.added.push_back(added);
    }
  }
  data.merges = {{"t", "h"}, {"h", "e"}};
  data.bos = kBos;
  data.eos = kEos;
  if (add_bos) data.prefix = {kBos};
  auto tokenizer = text::Tokenizer::create(std::move(data));
  if (!tokenizer.ok()) base::check_failed(tokenizer.status().message().c_str(), __FILE__, __LINE__);
  return std::move(*tokenizer);
}

FakeEngine::FakeEngine() {
  info.path = "/models/fake.gguf";
  info.name = "fake-model";
  info.architecture = "llama";
  info.vocab_size = kVocabulary;
  info.max_model_len = 4096;
  info.eos_token_ids = {kEos};
  thread_ = std::thread([this] { loop(); });
}

FakeEngine::~FakeEngine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void FakeEngine::hold(bool on) {
  const std::lock_guard lock(mutex_);
  held_ = on;
  changed_.notify_all();
}

void FakeEngine::lose_device(const std::string& why) {
  const std::lock_guard lock(mutex_);
  device_failure_ = why;
}

int32_t FakeEngine::running() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int32_t>(requests_.size());
}

uint64_t FakeEngine::aborted() const {
  const std::lock_guard lock(mutex_);
  return aborted_;
}

std::vector<Request> FakeEngine::seen() const {
  const std::lock_guard lock(mutex_);
  return seen_;
}

bool FakeEngine::wait_until_idle(double seconds) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                           [this] { return requests_.empty(); });
}

bool FakeEngine::wait_for_running(int32_t count, double seconds) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                           [&] { return static_cast<int32_t>(requests_.size()) >= count; });
}

Result<RequestId> FakeEngine::submit(Request request, std::shared_ptr<TokenSink> sink) {
  const std::lock_guard lock(mutex_);
  if (!refuse_submit.ok()) return refuse_submit;
  if (draining_) return unavailable("draining");
  if (request.prompt.empty()) return invalid_argument("empty prompt");
  if (keep_seen) seen_.push_back(request);
  Running running;
  running.answer = reply ? reply(request) : request.prompt;
  running.request = std::move(request);
  running.sink = std::move(sink);
  const RequestId id = next_id_++;
  requests_.emplace(id, std::move(running));
  changed_.notify_all();
  return id;
}

void FakeEngine::abort(RequestId id) {
  const std::lock_guard lock(mutex_);
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  found->second.aborted = true;
  changed_.notify_all();
}

void FakeEngine::drain(double seconds) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                    [this] { return requests_.empty(); });
  for (auto& [id, r] : requests_) r.aborted = true;
  changed_.notify_all();
  changed_.wait(lock, [this] { return requests_.empty(); });
}

EngineStats FakeEngine::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats;
  stats.running_requests = std::min(static_cast<int32_t>(requests_.size()), slots);
  stats.waiting_requests = static_cast<int32_t>(requests_.size()) - stats.running_requests;
  stats.total_pages = 1024;
  stats.page_size = 16;
  stats.used_pages = stats.running_requests;
  stats.prompt_tokens = prompt_tokens_;
  stats.generated_tokens = generated_;
  stats.requests_finished = finished_;
  stats.requests_aborted = aborted_;
  stats.steps = steps_;
  stats.attention_routes = {{"decode", "fake", "paged", 7, true},
                            {"decode", "fake", "paged", steps_, false}};
  stats.device_failure = device_failure_;
  stats.hicache = hicache;
  stats.cache_tiers = cache_tiers;
  return stats;
}

TokenEvent FakeEngine::prefill_event(RequestId id, const Running& r) const {
  TokenEvent event;
  event.request = id;
  event.usage = {static_cast<int32_t>(r.request.prompt.size()), 0, 0};
  const int32_t start = r.request.sampling.prompt_logprob_start;
  if (start < 0) return event;
  event.prompt_logprobs_first = std::max(start, 1);
  for (size_t i = static_cast<size_t>(event.prompt_logprobs_first); i < r.request.prompt.size();
       ++i) {
    event.prompt_logprobs.push_back(
        logprob_of(r.request.prompt[i], r.request.sampling.top_logprobs));
  }
  return event;
}

bool FakeEngine::step(RequestId id, Running& r) {
  TokenEvent event;
  event.request = id;
  event.usage = {static_cast<int32_t>(r.request.prompt.size()), 0, r.produced};
  if (r.aborted) {
    ++aborted_;
    event.finish = FinishReason::kAbort;
    r.sink->on_event(std::move(event));
    return true;
  }
  if (!r.prefilled) {
    r.prefilled = true;
    prompt_tokens_ += r.request.prompt.size();
    auto first = prefill_event(id, r);
    if (!first.prompt_logprobs.empty()) r.sink->on_event(std::move(first));
  }
  const SamplingParams& sampling = r.request.sampling;
  for (int32_t i = 0; i < tokens_per_event && event.finish == FinishReason::kNone; ++i) {
    if (r.produced == fail_at_token) {
      event.finish = FinishReason::kError;
      event.error = "the fake engine was told to fail";
      break;
    }
    const TokenId token = r.answer[r.next++ % r.answer.size()];
    event.tokens.push_back(token);
    if (sampling.top_logprobs >= 0)
      event.logprobs.push_back(logprob_of(token, sampling.top_logprobs));
    event.usage.completion_tokens = ++r.produced;
    ++generated_;
    const auto& stops = sampling.stop_token_ids;
    const bool stop = (token == kEos && !sampling.ignore_eos) ||
                      std::find(stops.begin(), stops.end(), token) != stops.end();
    if (stop && r.produced > sampling.min_new_tokens) {
      event.finish = FinishReason::kStop;
      event.matched = token;
    } else if (r.produced >= sampling.max_new_tokens) {
      event.finish = FinishReason::kLength;
    }
  }
  const bool ended = event.finish != FinishReason::kNone;
  if (ended) ++finished_;
  r.sink->on_event(std::move(event));
  return ended;
}

void FakeEngine::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] {
      const bool any_aborted = std::any_of(requests_.begin(), requests_.end(),
                                           [](const auto& r) { return r.second.aborted; });
      return stopping_ || any_aborted || (!held_ && !requests_.empty());
    });
    if (stopping_) return;
    const bool prefill = std::any_of(requests_.begin(), requests_.end(),
                                     [](const auto& r) { return !r.second.prefilled; });
    const double duration = held_ ? 0 : prefill ? prefill_seconds : step_seconds;
    lock.unlock();
    sleep_for(duration);
    lock.lock();
    ++steps_;
    int32_t stepped = 0;
    for (auto it = requests_.begin(); it != requests_.end();) {
      const bool turn = it->second.aborted || (!held_ && stepped++ < slots);
      if (turn && step(it->first, it->second)) {
        it = requests_.erase(it);
      } else {
        ++it;
      }
    }
    changed_.notify_all();
  }
}

}  // namespace attune::server::testing
