// The HTTP server: OpenAI's and SGLang's forms, health, metrics and the chat page over one Engine.
#pragma once

#include <memory>
#include <string>

#include "attune/engine.h"
#include "attune/options.h"
#include "attune/status.h"

namespace attune::text {
class Tokenizer;
class ChatTemplate;
}  // namespace attune::text

namespace attune::server {

// What answers are made from, once a model is there. All but `chat_template` and `settings_json`
// are required; everything outlives the server, or is stopped by stop() before it goes.
struct Model {
  Engine* engine = nullptr;
  std::shared_ptr<const text::Tokenizer> tokenizer;
  const text::ChatTemplate* chat_template = nullptr;  // null: chat requests are refused
  std::string tokenizer_path;                         // empty: the model's
  std::string settings_json;  // an object: every setting in force, without secrets
};

// Thread-safe. One thread runs all connections; one more takes tokenization of long prompts.
class Server {
 public:
  // Binds options.host:options.port (0: a free port) and answers /health with 503 until
  // set_ready(). Errors: invalid_argument (host), io_error (address in use, with its name).
  static Result<std::unique_ptr<Server>> listen(const Options& options);
  // From here on requests are served. Call it once.
  Status set_ready(Model model);
  // Both at once.
  static Result<std::unique_ptr<Server>> start(const Options& options, Model model);

  ~Server();  // stop(0)

  int port() const;
  // "http://127.0.0.1:30000"; of a server that listens on every address, one of this machine's.
  std::string url() const;
  bool is_loopback() const;  // only programs of this machine reach it

  // Returns when SIGTERM or SIGINT has come, or stop() was called. From listen() on these signals
  // no longer end the process; a second one does.
  void wait_for_signal();

  // Refuses new requests with 503, lets the running ones end until `seconds` are over, aborts the
  // rest and closes every connection. Returns at most about a second after that. May be called
  // again.
  void stop(double seconds);

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace attune::server
