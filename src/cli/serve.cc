// attune serve: the HTTP server over one model.
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "cli/command.h"
#include "cli/session.h"
#include "formats/json.h"
#include "server/server.h"

namespace attune::cli {
namespace {

// Inside the ten seconds that a supervisor commonly waits after SIGTERM.
constexpr double kDrainSeconds = 8;
constexpr double kLastSeconds = 9.5;

// Ends the process where a signal would otherwise wait for what cannot be interrupted: the load of
// a model, or a step (a long prompt on a slow machine) that runs on after the drain.
class SignalWatch {
 public:
  // `server` must outlive this.
  explicit SignalWatch(server::Server& server) : server_(server), thread_([this] { watch(); }) {}
  ~SignalWatch() {
    set(over_);
    server_.stop(0);  // also ends the wait for a signal
    thread_.join();
  }
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  void set_ready() { set(ready_); }

 private:
  void set(bool& flag) {
    const std::lock_guard lock(mutex_);
    flag = true;
    changed_.notify_all();
  }
  void watch() {
    server_.wait_for_signal();
    std::unique_lock lock(mutex_);
    if (over_) return;
    if (!ready_) {
      base::log_info("stopped while loading");
      std::_Exit(kExitOk);
    }
    const std::chrono::duration<double> last(kLastSeconds);
    if (changed_.wait_for(lock, last, [this] { return over_; })) return;
    base::log_warning("a step, or a copy to storage, still runs ", kLastSeconds,
                      " s after the signal: ending without it");
    std::_Exit(kExitFailed);
  }

  server::Server& server_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ready_ = false, over_ = false;
  std::thread thread_;
};

void announce(const Invocation& call, const Session& session, const server::Server& server) {
  const std::string url = server.url();
  if (call.json) {
    formats::Json ready;
    ready.set("event", "ready");
    ready.set("url", url);
    ready.set("port", server.port());
    ready.set("model", session.engine->model().name);
    std::printf("%s\n", ready.dump().c_str());
  } else {
    const bool needs_key = !call.settings.options().api_key.empty();
    std::printf(
        "\nAttune is ready.\n\n%s  address    %s (a chat page in the browser; OpenAI clients: "
        "%s/v1)\n\n"
        "Try:\n  curl %s/v1/chat/completions -H 'Content-Type: application/json' \\\n%s"
        "    -d '{\"model\": \"default\", \"messages\": [{\"role\": \"user\", \"content\": \"What "
        "is gravity?\"}]}'\n\n",
        describe(*session.engine).c_str(), url.c_str(), url.c_str(), url.c_str(),
        needs_key ? "    -H \"Authorization: Bearer $KEY\" \\\n" : "");
  }
  std::fflush(stdout);
}

// What was chosen is in the banner; why, in full, is only worth lines when somebody chose too.
void log_resolution(const base::Settings& settings, const Engine& engine) {
  Options defaults;
  bool chosen = false;
  for (const base::Flag& row : base::option_flags(defaults)) {
    chosen |= (row.group == "Device" || row.group == "Attention") &&
              settings.source(row.name) != base::SettingSource::kDefault;
  }
  if (chosen) {
    base::log_info("resolution\n", engine.resolution_table());
  } else {
    base::log_debug("resolution\n", engine.resolution_table());
  }
}

Status serve(const Invocation& call) {
  const Options& options = call.settings.options();
  std::signal(SIGPIPE, SIG_IGN);  // a reader of the log that leaves does not end the service
  // The port is taken first: /health answers 503 while the model loads, and an address in use is
  // told before anything is waited for.
  ATTUNE_ASSIGN_OR_RETURN(auto server, server::Server::listen(options));
  SignalWatch watch(*server);
  base::log_info("loading ", options.model);
  ATTUNE_ASSIGN_OR_RETURN(Session session, load_session(options));
  log_resolution(call.settings, *session.engine);
  if (!server->is_loopback() && options.api_key.empty())
    base::log_warning("--host ", options.host,
                      " lets other machines in, and there is no --api-key: whoever reaches port ",
                      server->port(), " can use the model");
  if (!session.chat_template)
    base::log_warning(
        "the model has no chat template: chat requests are refused (--chat-template gives one)");
  ATTUNE_RETURN_IF_ERROR(
      server->set_ready({.engine = session.engine.get(),
                         .tokenizer = session.tokenizer,
                         .chat_template = session.chat_template ? &*session.chat_template : nullptr,
                         .tokenizer_path = options.tokenizer,
                         .settings_json = call.settings.to_json()}));
  watch.set_ready();
  announce(call, session, *server);
  server->wait_for_signal();
  base::log_info("draining: running requests have ", kDrainSeconds, " s");
  server->stop(kDrainSeconds);
  base::log_info("stopped");
  return {};
}

}  // namespace

int run_serve(const Args& args) {
  Invocation call;
  const Usage usage{"serve", "[MODEL]", "Serves a model over HTTP in OpenAI's and SGLang's forms.",
                    1, true};
  if (auto code = read_command_line(usage, args, {}, call)) return *code;
  return report(serve(call), call.json);
}

}  // namespace attune::cli
