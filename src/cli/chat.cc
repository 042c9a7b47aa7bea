// attune chat: a conversation in the terminal, in process.
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "base/log.h"
#include "cli/command.h"
#include "cli/sampling.h"
#include "cli/session.h"
#include "formats/json.h"

namespace attune::cli {
namespace {

using formats::Json;

Json message(const char* role, std::string content) {
  Json json;
  json.set("role", role);
  json.set("content", std::move(content));
  return json;
}

// One conversation: what was said so far, and how the next answer is made.
class Conversation {
 public:
  Conversation(Session& session, const SamplingFlags& sampling, std::string system)
      : session_(session), sampling_(sampling), system_(std::move(system)) {
    reset();
  }

  void reset() {
    messages_ = Json(Json::Array{});
    if (!system_.empty()) messages_.push(message("system", system_));
  }

  // Streams the answer to `show`; a failed turn leaves the conversation as it was.
  Result<std::string> say(const std::string& words,
                          const std::function<void(std::string_view)>& show) {
    Json messages = messages_;
    messages.push(message("user", words));
    ATTUNE_ASSIGN_OR_RETURN(text::Prompt prompt,
                            session_.chat_template->render({.messages = messages}));
    server::EventQueue queue;
    server::ChoiceDelta answer;
    auto on_delta = [&](server::ChoiceDelta delta) {
      show(delta.text);
      answer.append(std::move(delta));
    };
    server::CompletionSpec spec{
        .prompts = {sampling_.spec(text::encode_prompt(*session_.tokenizer, prompt.segments))}};
    ATTUNE_ASSIGN_OR_RETURN(auto completion,
                            server::Completion::start(*session_.engine, *session_.tokenizer,
                                                      std::move(spec), queue, on_delta));
    while (!completion->done()) queue.wait_and_pump(60);
    if (answer.finish == FinishReason::kError) return internal_error(answer.error);
    messages.push(message("assistant", answer.text));
    messages_ = std::move(messages);
    return answer.text;
  }

 private:
  Session& session_;
  const SamplingFlags& sampling_;
  std::string system_;
  Json messages_;
};

void print_turn(Conversation& conversation, const std::string& words, bool json) {
  auto show = [&](std::string_view text) {
    if (json) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  auto answer = conversation.say(words, show);
  if (!answer.ok()) {
    report(answer.status(), json);
  } else if (json) {
    std::printf("%s\n", message("assistant", *answer).dump().c_str());
  } else {
    std::printf("\n\n");
  }
  std::fflush(stdout);
}

Status chat(const Invocation& call, const SamplingFlags& sampling, const std::string& system) {
  ATTUNE_ASSIGN_OR_RETURN(Session session, load_session(call.settings.options()));
  if (!session.chat_template)
    return unsupported(
        "the model has no chat template: --chat-template names one, attune generate needs none");
  Conversation conversation(session, sampling, system);
  const bool prompts = !call.json && isatty(STDIN_FILENO);
  if (prompts)
    std::printf("%s\n/reset starts anew, /exit ends.\n\n", describe(*session.engine).c_str());
  std::string line;
  while (true) {
    if (prompts) {
      std::printf("> ");
      std::fflush(stdout);
    }
    if (!std::getline(std::cin, line) || line == "/exit") break;
    if (line == "/reset") {
      conversation.reset();
    } else if (!line.empty()) {
      print_turn(conversation, line, call.json);
    }
  }
  return {};
}

}  // namespace

int run_chat(const Args& args) {
  Invocation call;
  SamplingFlags sampling;
  sampling.max_new_tokens = 1024;
  sampling.temperature = 0.7;
  sampling.top_p = 0.95;
  std::string system;
  std::vector<base::Flag> flags = sampling.flags();
  flags.push_back({"system", &system, "Conversation", "TEXT", "what the model is told first"});
  const Usage usage{"chat", "",
                    "Talks with the model in the terminal: a line is a message, its answer "
                    "follows.\nWith --json each answer is one JSON message a line."};
  if (auto code = read_command_line(usage, args, flags, call)) return *code;
  return report(chat(call, sampling, system), call.json);
}

}  // namespace attune::cli
