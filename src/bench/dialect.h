// How each kind of server is asked, and how its answers are read and timed.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attune/status.h"
#include "bench/workload.h"
#include "formats/json.h"

namespace attune::bench {

enum class Dialect {
  kGenerate,     // SGLang's native form, /generate
  kCompletions,  // OpenAI's /v1/completions
  kChat,         // OpenAI's /v1/chat/completions
};

struct AskOptions {
  Dialect dialect = Dialect::kGenerate;
  std::string model;  // as the server calls it; not used by /generate
  double temperature = 0;
  bool stream = true;
  bool ignore_eos = true;
};

const char* request_path(Dialect dialect);
std::string request_body(const AskOptions& options, const PromptWork& work);

// One request as the client saw it. Times in seconds.
struct CallRecord {
  bool ok = false;
  std::string error;       // why not
  int32_t prompt_len = 0;  // as the server counts, else as sent
  int32_t cached_len = 0;  // of these, found in the server's prefix cache
  int32_t output_len = 0;
  std::optional<double> ttft;  // from the start of the request, connecting included, to the first
                               // token; none when the answer was no stream
  double latency = 0;          // to the last token
  std::vector<double> itl;     // between tokens: output_len - 1 entries where the server tells how
                            // many tokens an event brings, else one for each event after the first
  std::string text;
  std::vector<TokenId> ids;  // of the answer, where the server tells them (/generate)
  int32_t turn = 0;          // of its chat
};

// Gathers the record of one request. Times are seconds on any one clock.
class AnswerReader {
 public:
  AnswerReader(const AskOptions& options, const PromptWork& work, double start);

  // The data of one event. data_loss: no JSON, or not in the dialect's form; what the server
  // reports as an error keeps its message.
  Status on_event(std::string_view data, double now);
  // A whole reply that is no stream.
  Status on_body(std::string_view body, double now);
  // The reply is over. data_loss when the stream did not say that the answer is whole.
  Result<CallRecord> finish();

 private:
  Status on_generate(const formats::Json& json, double now);
  Status on_choice(const formats::Json& json, double now);
  void read_usage(const formats::Json& usage);
  void read_ids(const formats::Json& json);
  void add_tokens(int32_t count, double now);

  Dialect dialect_;
  double start_, last_ = 0;
  int32_t events_ = 0;    // tokens as far as events tell
  bool counted_ = false;  // the server told how many tokens there were
  bool finished_ = false;
  CallRecord record_;
};

// What a reply with an error status says, shortened: its message when it is in a known form.
std::string error_message(int status, std::string_view body);

}  // namespace attune::bench
