// attune serve: the HTTP server over one model.
#include <cstdio>

#include "base/log.h"
#include "cli/command.h"
#include "cli/session.h"
#include "formats/json.h"
#include "server/server.h"

namespace attune::cli {
namespace {

// Inside the ten seconds that a supervisor commonly waits after SIGTERM.
constexpr double kDrainSeconds = 8;

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
    std::printf(
        "\nAttune is ready.\n\n%s  address    %s (a chat page in the browser; OpenAI clients: "
        "%s/v1)\n\n"
        "Try:\n  curl %s/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        "    -d '{\"model\": \"default\", \"messages\": [{\"role\": \"user\", \"content\": \"What "
        "is gravity?\"}]}'\n\n",
        describe(*session.engine).c_str(), url.c_str(), url.c_str(), url.c_str());
  }
  std::fflush(stdout);
}

Status serve(const Invocation& call) {
  const Options& options = call.settings.options();
  // The port is taken first: /health answers 503 while the model loads, and an address in use is
  // told before anything is waited for.
  ATTUNE_ASSIGN_OR_RETURN(auto server, server::Server::listen(options));
  base::log_info("loading ", options.model);
  ATTUNE_ASSIGN_OR_RETURN(Session session, load_session(options));
  base::log_info("resolution\n", session.engine->resolution_table());
  if (!session.chat_template)
    base::log_warning(
        "the model has no chat template: chat requests are refused (--chat-template gives one)");
  ATTUNE_RETURN_IF_ERROR(
      server->set_ready({.engine = session.engine.get(),
                         .tokenizer = session.tokenizer,
                         .chat_template = session.chat_template ? &*session.chat_template : nullptr,
                         .tokenizer_path = options.tokenizer,
                         .settings_json = call.settings.to_json()}));
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
  const Usage usage{"serve", "", "Serves a model over HTTP in OpenAI's and SGLang's forms."};
  if (auto code = read_command_line(usage, args, {}, call)) return *code;
  return report(serve(call), call.json);
}

}  // namespace attune::cli
