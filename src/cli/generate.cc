// attune generate: one prompt, one continuation, in process.
#include <charconv>
#include <cstdio>

#include "base/log.h"
#include "cli/command.h"
#include "cli/sampling.h"
#include "cli/session.h"
#include "formats/json.h"
#include "formats/text_file.h"

namespace attune::cli {
namespace {

using formats::Json;

constexpr size_t kMaxPromptBytes = 16 << 20;  // far beyond any context

struct GenerateArgs {
  std::string prompt, prompt_file;
  std::vector<std::string> input_ids;
  SamplingFlags sampling;
};

Result<std::vector<TokenId>> parse_ids(const std::vector<std::string>& texts) {
  std::vector<TokenId> ids;
  for (const std::string& text : texts) {
    TokenId id = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
    if (error != std::errc() || end != text.data() + text.size())
      return invalid_argument(base::cat("--input-ids: '", text, "' is not a token id"));
    ids.push_back(id);
  }
  return ids;
}

// The prompt's ids from whichever flag has it.
Result<std::vector<TokenId>> prompt_ids(const GenerateArgs& args,
                                        const text::Tokenizer& tokenizer) {
  const int given = !args.prompt.empty() + !args.prompt_file.empty() + !args.input_ids.empty();
  if (given != 1)
    return invalid_argument("one of --prompt, --prompt-file and --input-ids says what to continue");
  if (!args.input_ids.empty()) return parse_ids(args.input_ids);
  if (args.prompt_file.empty()) return tokenizer.encode(args.prompt);
  const std::string file = args.prompt_file == "-" ? "/dev/stdin" : args.prompt_file;
  auto prompt = formats::read_text_file(file, kMaxPromptBytes);
  if (!prompt.ok()) return prompt.status().with_context("--prompt-file");
  return tokenizer.encode(*prompt);
}

template <typename T>
Json array_of(const std::vector<T>& values) {
  Json array{Json::Array{}};
  for (const T& value : values) array.push(Json(value));
  return array;
}

Json logprob_json(const TokenLogprob& entry) {
  Json pair{Json::Array{}};
  pair.push(entry.token);
  pair.push(double(entry.logprob));
  return pair;
}

const char* finish_name(FinishReason finish) {
  switch (finish) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    default:
      return "error";
  }
}

Json answer_json(const server::ChoiceDelta& answer, const std::vector<TokenId>& prompt) {
  Json json;
  json.set("text", answer.text);
  json.set("prompt_ids", array_of(prompt));
  json.set("output_ids", array_of(answer.tokens));
  json.set("finish_reason", finish_name(answer.finish));
  json.set("prompt_tokens", answer.usage.prompt_tokens);
  json.set("completion_tokens", answer.usage.completion_tokens);
  if (!answer.logprobs.empty()) {
    Json chosen{Json::Array{}}, top{Json::Array{}};
    for (const LogprobEntry& entry : answer.logprobs) {
      chosen.push(logprob_json(entry.chosen));
      Json row{Json::Array{}};
      for (const TokenLogprob& candidate : entry.top) row.push(logprob_json(candidate));
      top.push(std::move(row));
    }
    json.set("output_logprobs", std::move(chosen));
    json.set("output_top_logprobs", std::move(top));
  }
  return json;
}

Status generate(const Invocation& call, const GenerateArgs& args) {
  ATTUNE_ASSIGN_OR_RETURN(Session session, load_session(call.settings.options()));
  ATTUNE_ASSIGN_OR_RETURN(std::vector<TokenId> prompt, prompt_ids(args, *session.tokenizer));
  server::EventQueue queue;
  server::ChoiceDelta answer;
  auto on_delta = [&](server::ChoiceDelta delta) {
    if (!call.json) {
      std::fwrite(delta.text.data(), 1, delta.text.size(), stdout);
      std::fflush(stdout);
    }
    answer.append(std::move(delta));
  };
  ATTUNE_ASSIGN_OR_RETURN(
      auto completion,
      server::Completion::start(*session.engine, *session.tokenizer,
                                {.prompts = {args.sampling.spec(prompt)}}, queue, on_delta));
  while (!completion->done()) queue.wait_and_pump(60);
  if (answer.finish == FinishReason::kError) return internal_error(answer.error);
  std::printf("%s\n", call.json ? answer_json(answer, prompt).dump().c_str() : "");
  return {};
}

}  // namespace

int run_generate(const Args& args) {
  Invocation call;
  GenerateArgs own;
  const char* group = "Prompt";
  std::vector<base::Flag> flags = {
      {"prompt", &own.prompt, group, "TEXT", "text to continue; special tokens in it are such"},
      {"prompt-file", &own.prompt_file, group, "FILE", "file with the text; -: standard input"},
      {"input-ids", &own.input_ids, group, "ID,...", "token ids to continue"},
  };
  for (base::Flag& flag : own.sampling.flags()) flags.push_back(flag);
  const Usage usage{"generate", "",    "Continues a text with the model and prints what it wrote.",
                    0,          false, engine_settings()};
  // Settings such as the log level apply; lines about the load are noise beside an answer.
  if (auto code = read_command_line(usage, args, flags, call)) return *code;
  return report(generate(call, own), call.json);
}

}  // namespace attune::cli
