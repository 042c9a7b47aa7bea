#include "bench/load_loop.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <random>

#include "base/log.h"

namespace attune::bench {
namespace {

constexpr size_t kStartsAtOnce = 32;  // then what came is read before more is sent
constexpr double kTick = 1.0;         // seconds between looks for idle requests
constexpr double kReportEvery = 5.0;  // seconds between lines of progress

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// One request under way.
struct Stream {
  size_t index = 0;
  std::string request;
  std::unique_ptr<HttpCall> call;
  AnswerReader answer;
  SseReader events;
  std::string body;  // what is not an event stream
  double last_byte = 0;
  bool watches_send = true;
};

class LoadLoop {
 public:
  LoadLoop(const HttpTarget& target, const AskOptions& ask, std::vector<PromptWork> work,
           const LoadOptions& options)
      : target_(target), ask_(ask), work_(std::move(work)), options_(options) {
    streams_.resize(work_.size());
    result_.records.resize(work_.size());
    std::vector<bool> waits(work_.size());
    for (const PromptWork& item : work_)
      if (item.next >= 0) waits[static_cast<size_t>(item.next)] = true;
    for (size_t i = 0; i < work_.size(); ++i)
      if (!waits[i]) ready_.push_back(i);
  }
  ~LoadLoop() {
    if (epoll_ >= 0) ::close(epoll_);
  }

  Result<LoadResult> run() {
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    if (epoll_ < 0) return io_error(base::cat("epoll_create1: ", std::strerror(errno)));
    due_ = due_times(work_.size(), options_.request_rate, options_.seed);
    begin_ = last_tick_ = last_report_ = seconds_now();
    while (ended_ < work_.size()) {
      start_due();
      ATTUNE_RETURN_IF_ERROR(wait_and_read());
      tick();
    }
    result_.duration_s = seconds_now() - begin_;
    return std::move(result_);
  }

 private:
  size_t running() const { return started_ - ended_; }
  bool may_start() const {
    return !ready_.empty() && (options_.max_concurrency <= 0 ||
                               running() < static_cast<size_t>(options_.max_concurrency));
  }

  void start_due() {
    for (size_t n = 0; n < kStartsAtOnce && may_start(); ++n) {
      if (begin_ + due_[started_] > seconds_now()) return;
      const size_t index = ready_.front();
      ready_.pop_front();
      ++started_;
      start(index);
    }
  }

  void start(size_t index) {
    std::string request =
        http_request(target_, "POST", request_path(ask_.dialect), request_body(ask_, work_[index]));
    const double now = seconds_now();  // before connecting: the server may be slow to accept
    streams_[index].reset(new Stream{.index = index,
                                     .request = std::move(request),
                                     .answer = AnswerReader(ask_, work_[index], now),
                                     .last_byte = now});
    Stream& stream = *streams_[index];
    auto call = HttpCall::start(target_, stream.request);
    if (!call.ok()) return fail(stream, call.status().message());
    stream.call = std::move(*call);
    epoll_event event = {.events = EPOLLOUT, .data = {.u64 = index}};
    if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, stream.call->fd(), &event) != 0)
      fail(stream, base::cat("epoll_ctl: ", std::strerror(errno)));
  }

  // Milliseconds until something of our own is due.
  int patience() const {
    double wait = last_tick_ + kTick - seconds_now();
    if (may_start()) wait = std::min(wait, begin_ + due_[started_] - seconds_now());
    return std::max(0, static_cast<int>(std::ceil(wait * 1e3)));
  }

  Status wait_and_read() {
    std::array<epoll_event, 256> events;
    const int n = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), patience());
    if (n < 0 && errno != EINTR) return io_error(base::cat("epoll_wait: ", std::strerror(errno)));
    for (int i = 0; i < n; ++i) {
      if (Stream* stream = streams_[events[static_cast<size_t>(i)].data.u64].get()) serve(*stream);
    }
    return {};
  }

  void serve(Stream& stream) {
    std::string bytes;
    const Status status = stream.call->advance(bytes);
    const double now = seconds_now();
    stream.last_byte = now;
    if (!bytes.empty()) {
      if (Status read = take(stream, bytes, now); !read.ok()) return fail(stream, read.message());
    }
    if (!status.ok()) return fail(stream, status.message());
    if (stream.call->done()) return finish(stream, now);
    if (stream.watches_send && !stream.call->is_sending()) {
      stream.watches_send = false;
      epoll_event event = {.events = EPOLLIN, .data = {.u64 = stream.index}};
      ::epoll_ctl(epoll_, EPOLL_CTL_MOD, stream.call->fd(), &event);
    }
  }

  Status take(Stream& stream, const std::string& bytes, double now) {
    if (!is_stream(stream)) {
      stream.body += bytes;
      return {};
    }
    std::vector<std::string> events;
    stream.events.feed(bytes, events);
    for (const std::string& event : events)
      ATTUNE_RETURN_IF_ERROR(stream.answer.on_event(event, now));
    return {};
  }

  bool is_stream(const Stream& stream) const {
    return ask_.stream && stream.call->reply().status() == 200 &&
           stream.call->reply().is_event_stream();
  }

  void finish(Stream& stream, double now) {
    const int status = stream.call->reply().status();
    if (status != 200) return fail(stream, error_message(status, stream.body));
    if (!is_stream(stream)) {
      if (ask_.stream) return fail(stream, "the server answered a stream request with no stream");
      if (Status read = stream.answer.on_body(stream.body, now); !read.ok())
        return fail(stream, read.message());
    }
    auto record = stream.answer.finish();
    if (!record.ok()) return fail(stream, record.status().message());
    end(stream, std::move(*record));
  }

  void fail(Stream& stream, std::string why) {
    CallRecord record;
    record.prompt_len = static_cast<int32_t>(work_[stream.index].ids.size());
    record.turn = work_[stream.index].turn;
    record.error = std::move(why);
    end(stream, std::move(record));
  }

  void end(Stream& stream, CallRecord record) {
    const size_t index = stream.index;
    streams_[index].reset();  // closes the socket, which takes it off epoll's list
    ++ended_;
    if (!record.ok) {
      give_up_after(index, "not sent: a turn before it failed");
    } else if (work_[index].next >= 0 && record.ids.empty()) {
      give_up_after(index, "not sent: the answer before it came without output_ids");
    } else if (work_[index].next >= 0) {
      go_on_after(index, record.ids);
    }
    result_.records[index] = std::move(record);
  }

  void go_on_after(size_t index, const std::vector<TokenId>& answer) {
    const auto next = static_cast<size_t>(work_[index].next);
    std::vector<TokenId> ids = std::move(work_[index].ids);
    ids.insert(ids.end(), answer.begin(), answer.end());
    ids.insert(ids.end(), work_[next].ids.begin(), work_[next].ids.end());
    work_[next].ids = std::move(ids);
    ready_.push_back(next);
  }

  void give_up_after(size_t index, const char* why) {
    for (int32_t i = work_[index].next; i >= 0; i = work_[static_cast<size_t>(i)].next) {
      CallRecord& record = result_.records[static_cast<size_t>(i)];
      record.turn = work_[static_cast<size_t>(i)].turn;
      record.error = why;
      ++started_;
      ++ended_;
    }
  }

  void tick() {
    const double now = seconds_now();
    if (now < last_tick_ + kTick) return;
    last_tick_ = now;
    for (const auto& stream : streams_) {
      if (stream && now > stream->last_byte + options_.idle_timeout_s)
        fail(*stream, base::cat("no byte came for ", options_.idle_timeout_s, " s"));
    }
    if (now < last_report_ + kReportEvery) return;
    last_report_ = now;
    base::log_info(ended_, " of ", work_.size(), " requests have ended, ", running(), " run");
  }

  const HttpTarget& target_;
  const AskOptions& ask_;
  std::vector<PromptWork> work_;
  const LoadOptions& options_;
  std::vector<std::unique_ptr<Stream>> streams_;  // null: not started, or ended
  std::deque<size_t> ready_;                      // in the order in which they start
  std::vector<double> due_;                       // by the order of starts
  LoadResult result_;
  size_t started_ = 0, ended_ = 0;
  double begin_ = 0, last_tick_ = 0, last_report_ = 0;
  int epoll_ = -1;
};

// One socket a request: as many files as the system lets us open.
void raise_file_limit() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

std::vector<double> due_times(size_t count, double request_rate, uint64_t seed) {
  std::vector<double> due(count, 0.0);
  if (request_rate <= 0) return due;
  std::mt19937_64 random(seed);
  double at = 0;
  for (double& time : due) {
    time = at;
    const double u = static_cast<double>(random() >> 11) * 0x1p-53;  // [0, 1)
    at -= std::log1p(-u) / request_rate;
  }
  return due;
}

Result<LoadResult> run_load(const HttpTarget& target, const AskOptions& ask,
                            std::vector<PromptWork> work, const LoadOptions& options) {
  raise_file_limit();
  return LoadLoop(target, ask, std::move(work), options).run();
}

}  // namespace attune::bench
