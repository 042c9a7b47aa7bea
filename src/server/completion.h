// A request's life between text and tokens: prompts go to the engine, its events come back as
// deltas of text. Knows neither HTTP nor JSON, so the command line uses it too.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "attune/engine.h"
#include "attune/request.h"
#include "attune/status.h"
#include "text/text_stream.h"

namespace attune::server {

class Completion;

// Carries the engine's events to one consumer thread, many at a time. `wake` is called on the
// engine's thread when the queue turns from empty to not; the consumer then calls pump().
class EventQueue {
 public:
  explicit EventQueue(std::function<void()> wake = {});
  ~EventQueue();  // events that come later are dropped
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  // Hands everything that has come to its completions, on the calling thread.
  void pump();
  // Waits until there is something, then pumps. False after `seconds` without anything.
  bool wait_and_pump(double seconds);

 private:
  friend class Completion;
  struct Item {
    std::weak_ptr<Completion> owner;
    int32_t choice;
    TokenEvent event;
  };
  struct Shared {
    std::mutex mutex;
    std::condition_variable arrived;
    std::vector<Item> items;
    bool open = true;
    std::function<void()> wake;
    void push(Item item);
  };
  std::shared_ptr<Shared> shared_;
};

// max_new_tokens of "as many as the context holds".
constexpr int32_t kRestOfContext = std::numeric_limits<int32_t>::max();

struct PromptSpec {
  std::vector<TokenId> ids;  // at least one
  // max_new_tokens is cut to what the context leaves; 0: the prompt is scored, nothing generated.
  SamplingParams sampling;
  std::vector<std::string> stop;
  bool skip_special_tokens = true;
  bool no_stop_trim = false;  // what stopped the text (a stop string, or the token) stays in it
};

// "the prompt", or of several "prompt 1".
std::string prompt_name(size_t i, size_t prompts);
// Why a prompt of `tokens` is refused; "": it is not. `which`: its prompt_name(). Not
// `counted`: it has more than these.
std::string prompt_objection(const std::string& which, size_t tokens, int32_t token_limit,
                             bool counted = true);

struct CompletionSpec {
  std::vector<PromptSpec> prompts;
  int32_t n = 1;  // choices per prompt; choice i of a seeded request draws with seed + i
  int32_t token_limit = kRestOfContext;  // of prompt and output together
  int32_t priority = 0;
  std::string cache_salt, label;
};

// What is new about one choice. With the default options the texts, joined, are the answer.
struct ChoiceDelta {
  int32_t choice = 0;  // prompt index * n + sample index
  std::string text;
  std::vector<TokenId> tokens;         // counted in usage; a token that ended the text is included
  std::vector<LogprobEntry> logprobs;  // one per token, when asked for
  std::vector<int64_t> offsets;        // one per token: character of the text where it begins
  std::vector<LogprobEntry> prompt_logprobs;  // entry i: prompt position prompt_logprobs_first + i
  int32_t prompt_logprobs_first = 0;
  Usage usage;                                // totals so far
  FinishReason finish = FinishReason::kNone;  // of the last delta only
  std::optional<TokenId> matched_token;       // kStop by a token ...
  std::string matched_stop;                   // ... or by a string
  std::string error;                          // kError, kAbort

  // Makes this the sum of both.
  void append(ChoiceDelta later);
};

// Belongs to the consumer's thread. Destruction aborts what still runs.
class Completion : public std::enable_shared_from_this<Completion> {
 public:
  using OnDelta = std::function<void(ChoiceDelta)>;

  // Submits every choice; on_delta is called from queue.pump(). When the engine refuses one, those
  // before it are aborted. Errors: invalid_argument (an empty prompt; one as long as the limit,
  // with both numbers), and the engine's. `engine` and `tokenizer` outlive this.
  static Result<std::shared_ptr<Completion>> start(Engine& engine, const text::Tokenizer& tokenizer,
                                                   CompletionSpec spec, EventQueue& queue,
                                                   OnDelta on_delta);
  ~Completion();

  void abort();  // no delta comes any more
  int32_t choices() const { return static_cast<int32_t>(choices_.size()); }
  bool done() const { return running_ == 0; }

 private:
  friend class EventQueue;
  class Sink;
  struct Choice {
    text::TextStream text;
    RequestId request = 0;
    bool submitted = false;
    bool done = false;
    bool score_only = false;  // the one token that the engine was asked for is dropped
    bool keep_stop = false;
    int64_t characters = 0;  // handed out
  };

  Completion(Engine& engine, OnDelta on_delta) : engine_(engine), on_delta_(std::move(on_delta)) {}
  Status submit(const CompletionSpec& spec, const text::Tokenizer& tokenizer, EventQueue& queue);
  void deliver(int32_t index, TokenEvent event);
  void break_off(int32_t index, const std::string& why);
  void add_text(Choice& choice, TokenEvent& event, ChoiceDelta& delta);
  void finish_text(Choice& choice, const TokenEvent& event, ChoiceDelta& delta);

  Engine& engine_;
  OnDelta on_delta_;
  std::vector<Choice> choices_;
  int32_t running_ = 0;
};

// The number of characters (code points) of valid UTF-8.
int64_t count_characters(std::string_view text);

}  // namespace attune::server
