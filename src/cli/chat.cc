// attune chat: a conversation in the terminal, in process.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <thread>

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

constexpr int kExitInterrupted = 128 + SIGINT;

// What an answer waits for: its tokens, or Ctrl-C, which ends the answer and not the program. At
// any other time Ctrl-C ends the program. To be made before other threads, which get its signal
// mask.
class Interruptible {
 public:
  Interruptible() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    thread_ = std::thread([this] { watch(); });
  }
  ~Interruptible() {
    set(over_);
    pthread_kill(thread_.native_handle(), SIGINT);
    thread_.join();
  }
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

  // Any thread: something has come.
  void arrive() { set(arrived_); }
  // While one lives, an answer is being written.
  class Answer {
   public:
    explicit Answer(Interruptible& owner) : owner_(owner) { owner_.set_answering(true); }
    ~Answer() { owner_.set_answering(false); }
    Answer(const Answer&) = delete;
    Answer& operator=(const Answer&) = delete;

   private:
    Interruptible& owner_;
  };
  // Returns when something has come; false when Ctrl-C has.
  bool wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return arrived_ || interrupted_; });
    arrived_ = false;
    return !interrupted_;
  }

 private:
  void set_answering(bool answering) {
    const std::lock_guard lock(mutex_);
    answering_ = answering;
    arrived_ = interrupted_ = false;
  }
  void set(bool& flag) {
    const std::lock_guard lock(mutex_);
    flag = true;
    changed_.notify_all();
  }
  void watch() {
    for (int signal = 0; sigwait(&signals_, &signal) == 0;) {
      const std::lock_guard lock(mutex_);
      if (over_) return;
      if (!answering_) std::_Exit(kExitInterrupted);
      interrupted_ = true;
      changed_.notify_all();
    }
  }

  sigset_t signals_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool arrived_ = false, answering_ = false, interrupted_ = false, over_ = false;
  std::thread thread_;
};

// One conversation: what was said so far, and how the next answer is made.
class Conversation {
 public:
  Conversation(Session& session, Interruptible& interruptible, const SamplingFlags& sampling,
               std::string system)
      : session_(session),
        interruptible_(interruptible),
        sampling_(sampling),
        system_(std::move(system)) {
    reset();
  }

  void reset() {
    messages_ = Json(Json::Array{});
    if (!system_.empty()) messages_.push(message("system", system_));
  }

  // Streams the answer to `show`; a failed turn leaves the conversation as it was. Of one that is
  // interrupted, what was written so far is the answer.
  Result<std::string> say(const std::string& words,
                          const std::function<void(std::string_view)>& show) {
    Json messages = messages_;
    messages.push(message("user", words));
    ATTUNE_ASSIGN_OR_RETURN(text::Prompt prompt,
                            session_.chat_template->render({.messages = messages}));
    const Interruptible::Answer answering(interruptible_);
    server::EventQueue queue([this] { interruptible_.arrive(); });
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
    while (!completion->done() && interruptible_.wait()) queue.pump();
    completion->abort();
    if (answer.finish == FinishReason::kError) return internal_error(answer.error);
    messages.push(message("assistant", answer.text));
    messages_ = std::move(messages);
    return answer.text;
  }

 private:
  Session& session_;
  Interruptible& interruptible_;
  const SamplingFlags& sampling_;
  std::string system_;
  Json messages_;
};

// False: there was no answer.
bool print_turn(Conversation& conversation, const std::string& words, bool json) {
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
  return answer.ok();
}

constexpr std::string_view kCommands =
    "/clear (or /reset) starts anew, /help lists these, /exit (or Ctrl-D) ends; Ctrl-C stops an "
    "answer.";

// "/clear", but not "/etc/hosts is a file".
bool is_command(std::string_view line) {
  return line.size() > 1 && line[0] == '/' &&
         std::all_of(line.begin() + 1, line.end(), [](char c) { return c >= 'a' && c <= 'z'; });
}

void run_command(std::string_view line, Conversation& conversation) {
  if (line == "/clear" || line == "/reset") return conversation.reset();
  const std::string unknown = base::cat("there is no ", line, ": ");
  std::fprintf(stderr, "%s%s\n", line == "/help" ? "" : unknown.c_str(),
               std::string(kCommands).c_str());
}

Status chat(const Invocation& call, const SamplingFlags& sampling, const std::string& system) {
  Interruptible interruptible;
  ATTUNE_ASSIGN_OR_RETURN(Session session, load_session(call.settings.options()));
  if (!session.chat_template)
    return unsupported(
        "the model has no chat template: --chat-template names one, attune generate needs none");
  Conversation conversation(session, interruptible, sampling, system);
  const bool prompts = !call.json && isatty(STDIN_FILENO);
  if (prompts)
    std::printf("%s\n%s\n\n", describe(*session.engine).c_str(), std::string(kCommands).c_str());
  std::string line;
  int turns = 0, answered = 0;
  while (true) {
    if (prompts) {
      std::printf("> ");
      std::fflush(stdout);
    }
    if (!std::getline(std::cin, line) || line == "/exit" || line == "/quit") break;
    if (is_command(line)) {
      run_command(line, conversation);
    } else if (!line.empty()) {
      ++turns;
      answered += print_turn(conversation, line, call.json);
    }
  }
  if (turns > 0 && answered == 0) return unavailable("no message was answered");
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
  const std::string about =
      "Talks with the model in the terminal: a line is a message, its answer "
      "follows.\nWith --json each answer is one JSON message a line.\n" +
      std::string(kCommands);
  const Usage usage{"chat", "[MODEL]", about, 1, true, engine_settings()};
  if (auto code = read_command_line(usage, args, flags, call)) return *code;
  return report(chat(call, sampling, system), call.json);
}

}  // namespace attune::cli
