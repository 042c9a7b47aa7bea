// One generating HTTP request from its arrival to the last byte of its answer.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "server/answer.h"
#include "server/context.h"
#include "server/prepare.h"

namespace attune::server {

// Belongs to the loop's thread. The exchange's callbacks own it.
class GenerationSession : public std::enable_shared_from_this<GenerationSession> {
 public:
  // Parses and tokenizes, long bodies on the worker, then submits; answers in every case.
  static void start(Context& context, Form form, HttpRequest request,
                    std::shared_ptr<Exchange> exchange);

  GenerationSession(Context& context, std::shared_ptr<Exchange> exchange,
                    Clock::time_point arrival);
  ~GenerationSession();

 private:
  struct ChoiceState {
    ChoiceDelta pending;  // news that has not been sent; for a whole answer all of it
    Usage usage;
    bool has_news = false;
    bool finished = false;
    Clock::time_point last_token{};
    bool any_token = false;
  };

  void begin(Prepared prepared);
  std::unique_ptr<Answer> make_answer();
  void on_delta(ChoiceDelta delta);
  void measure(const ChoiceDelta& delta, ChoiceState& state);
  void flush();  // sends what is worth it and fits
  void finish();
  // Counted once: refused, or given up by a time limit or a shutdown (aborted).
  void fail(const ApiError& error, uint64_t Metrics::*count = &Metrics::refused);
  void release();  // no callback comes any more; ends what still runs
  void log_end(const char* how) const;

  Context& context_;
  std::shared_ptr<Exchange> exchange_;
  const Clock::time_point arrival_;
  Prepared prepared_;
  std::string id_;
  std::unique_ptr<Answer> answer_;
  std::shared_ptr<Completion> completion_;
  std::vector<ChoiceState> choices_;
  size_t finished_ = 0;  // choices
  size_t sent_ = 0;      // choices whose end has been sent
  Loop::Timer timeout_;
  bool streaming_ = false;  // the head of a stream has gone out
  bool over_ = false;
};

}  // namespace attune::server
