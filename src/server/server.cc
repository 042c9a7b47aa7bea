#include "server/server.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <random>

#include "base/log.h"
#include "server/api_error.h"
#include "server/context.h"
#include "server/generation_session.h"
#include "server/http.h"
#include "server/routes.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace attune::server {

namespace {

enum class Needs : uint8_t { kNothing, kModel, kGeneration };  // the last: refused while draining

struct Route {
  const char* path;  // ending in '/': everything below it
  const char* methods;
  Needs needs;
  bool open;  // without a key
  void (*handle)(Context& context, HttpRequest request, ExchangePtr exchange);
};

template <Form form>
void generate(Context& context, HttpRequest request, ExchangePtr exchange) {
  GenerationSession::start(context, form, std::move(request), std::move(exchange));
}

constexpr Route kRoutes[] = {
    {"/v1/chat/completions", "POST", Needs::kGeneration, false, generate<Form::kChat>},
    {"/v1/completions", "POST", Needs::kGeneration, false, generate<Form::kCompletion>},
    {"/generate", "POST", Needs::kGeneration, false, generate<Form::kGenerate>},
    {"/v1/tokenize", "POST", Needs::kModel, false, tokenize},
    {"/tokenize", "POST", Needs::kModel, false, tokenize},
    {"/v1/detokenize", "POST", Needs::kModel, false, detokenize},
    {"/detokenize", "POST", Needs::kModel, false, detokenize},
    {"/v1/models", "GET", Needs::kModel, false, list_models},
    {"/v1/models/", "GET", Needs::kModel, false, show_model},
    {"/health", "GET", Needs::kNothing, true, health},
    {"/ping", "GET, POST", Needs::kNothing, true, health},
    {"/health_generate", "GET", Needs::kGeneration, false, health_generate},
    {"/get_model_info", "GET", Needs::kModel, false, model_info},
    {"/model_info", "GET", Needs::kModel, false, model_info},
    {"/get_server_info", "GET", Needs::kModel, false, server_info},
    {"/server_info", "GET", Needs::kModel, false, server_info},
    {"/version", "GET", Needs::kNothing, false, show_version},
    {"/flush_cache", "GET, POST", Needs::kModel, false, flush_cache},
    {"/clear_hicache_storage_backend", "GET, POST", Needs::kModel, false, clear_storage},
    {"/metrics", "GET", Needs::kModel, true, show_metrics},
    {"/", "GET", Needs::kNothing, true, chat_page},
};

const Route* find_route(const std::string& path) {
  for (const Route& route : kRoutes) {
    const std::string_view known = route.path;
    if (path == known) return &route;
    if (known.size() > 1 && known.back() == '/' && path.size() > known.size() &&
        path.starts_with(known)) {
      return &route;
    }
  }
  return nullptr;
}

bool allows(const Route& route, Method method) {
  const std::string_view methods = route.methods;
  switch (method) {
    case Method::kGet:
      return methods.find("GET") != std::string_view::npos;
    case Method::kHead:
      return methods == "GET";  // a HEAD must change nothing
    case Method::kPost:
      return methods.find("POST") != std::string_view::npos;
    default:
      return false;
  }
}

std::string allow_header(const Route& route) {
  std::string methods = route.methods;
  if (methods == "GET") methods += ", HEAD";
  return methods + ", OPTIONS";
}

// Takes as long for a near miss as for a far one.
bool equal_in_constant_time(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^
                  static_cast<unsigned char>(secret[i % std::max<size_t>(secret.size(), 1)]);
  }
  return difference == 0;
}

std::string random_id_base() {
  std::random_device random;
  char text[20];
  std::snprintf(text, sizeof text, "%08x%08x", random(), random());
  return text;
}

}  // namespace

struct Server::Impl : HttpHandler {
  explicit Impl(const Options& options)
      : events([this] { loop.post([this] { events.pump(); }); }), worker(loop), cache_worker(loop) {
    context.options = options;
    context.id_base = random_id_base();
    context.loop = &loop;
    context.events = &events;
    context.worker = &worker;
    context.cache_worker = &cache_worker;
  }

  std::optional<HttpResponse> check(const HttpRequest& head) override;
  Headers extra_headers(const HttpRequest& head) override;
  void handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override;
  HttpResponse refusal(int status, const std::string& message) override;

  std::optional<ApiError> refuse(const HttpRequest& head, const Route*& route) const;
  bool authorized(const HttpRequest& head) const;
  HttpResponse options_response(const HttpRequest& request) const;
  std::string_view allowed_origin(const HttpRequest& head) const;
  void stop(double seconds);

  // Members go in reverse: the HTTP server closes its connections first, the workers then end
  // what they do, the loop goes last.
  Context context;
  Loop loop;
  EventQueue events;
  Worker worker, cache_worker;
  std::unique_ptr<HttpServer> http;

  std::mutex mutex;
  std::condition_variable changed;
  bool signalled = false;
  bool stopped = false;
};

std::optional<ApiError> Server::Impl::refuse(const HttpRequest& head, const Route*& route) const {
  route = find_route(head.path);
  if (!route) return ApiError{404, "there is no '" + head.path + "' here", "", "not_found"};
  if (head.method == Method::kOptions) return std::nullopt;
  if (!allows(*route, head.method)) {
    return ApiError{
        405, head.method_name + " is not allowed on '" + head.path + "'; use " + route->methods, "",
        "method_not_allowed"};
  }
  if (!route->open && !authorized(head)) {
    return ApiError{401, "a valid API key is required: send 'Authorization: Bearer KEY'", "",
                    "invalid_api_key"};
  }
  if (route->needs != Needs::kNothing && context.stage == Stage::kLoading) {
    return ApiError{503, "the model is still being loaded", "", "loading"};
  }
  if (route->needs == Needs::kGeneration && context.stage == Stage::kDraining) {
    return ApiError{503, "the server is shutting down", "", "draining"};
  }
  return std::nullopt;
}

std::optional<HttpResponse> Server::Impl::check(const HttpRequest& head) {
  const Route* route = nullptr;
  auto error = refuse(head, route);
  if (!error) return std::nullopt;
  ++context.metrics.refused;
  HttpResponse response = to_response(*error);
  if (error->status == 405) response.headers.emplace_back("Allow", allow_header(*route));
  return response;
}

void Server::Impl::handle(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  // Nobody has asked yet when there is no body; and while one came, things may have changed.
  if (auto refused = check(request)) return exchange->respond(std::move(*refused));
  if (request.method == Method::kOptions) return exchange->respond(options_response(request));
  find_route(request.path)->handle(context, std::move(request), std::move(exchange));
}

HttpResponse Server::Impl::refusal(int status, const std::string& message) {
  ++context.metrics.refused;
  return to_response({status, message});
}

bool Server::Impl::authorized(const HttpRequest& head) const {
  const std::string& key = context.options.api_key;
  if (key.empty()) return true;
  std::string_view given = head.header("authorization");
  constexpr std::string_view kScheme = "bearer ";  // in any case (RFC 9110, 11.1)
  const bool bearer = given.size() >= kScheme.size() &&
                      std::equal(kScheme.begin(), kScheme.end(), given.begin(), [](char a, char b) {
                        return a == (b >= 'A' && b <= 'Z' ? b - 'A' + 'a' : b);
                      });
  if (!bearer) return false;
  given.remove_prefix(kScheme.size());
  return equal_in_constant_time(given, key);
}

std::string_view Server::Impl::allowed_origin(const HttpRequest& head) const {
  const std::string_view origin = head.header("origin");
  if (origin.empty()) return {};
  for (const std::string& allowed : context.options.allowed_origins) {
    if (allowed == "*") return "*";
    if (allowed == origin) return origin;
  }
  return {};
}

Headers Server::Impl::extra_headers(const HttpRequest& head) {
  if (context.options.allowed_origins.empty()) return {};
  Headers headers = {{"Vary", "Origin"}};
  if (const auto origin = allowed_origin(head); !origin.empty()) {
    headers.emplace_back("Access-Control-Allow-Origin", std::string(origin));
  }
  return headers;
}

HttpResponse Server::Impl::options_response(const HttpRequest& request) const {
  const std::string allow = allow_header(*find_route(request.path));
  HttpResponse response{204, "", "", {{"Allow", allow}}};
  if (!allowed_origin(request).empty()) {
    response.headers.emplace_back("Access-Control-Allow-Methods", allow);
    response.headers.emplace_back("Access-Control-Allow-Headers", "Authorization, Content-Type");
    response.headers.emplace_back("Access-Control-Max-Age", "600");
  }
  return response;
}

void Server::Impl::stop(double seconds) {
  {
    const std::lock_guard lock(mutex);
    signalled = true;
    changed.notify_all();
    if (stopped) return;
    stopped = true;
  }
  const auto begin = Clock::now();
  Engine* engine = nullptr;
  loop.run([&] {
    context.stage = Stage::kDraining;
    engine = context.model.engine;
  });
  if (engine) engine->drain(seconds);
  const std::chrono::duration<double> used = Clock::now() - begin;
  // What the engine has just ended still needs a moment to reach its clients.
  http->stop(std::max(seconds - used.count(), 0.0) + (engine ? 0.5 : 0.0));
  // No task of ours may use the engine from here on.
  worker.stop();
  cache_worker.stop();
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Server>> Server::listen(const Options& options) {
  if (!text::is_valid_utf8(options.served_model_name))
    return invalid_argument("--served-model-name is no valid UTF-8");
  auto impl = std::make_unique<Impl>(options);
  HttpOptions http;
  http.host = options.host;
  http.port = options.port;
  http.max_body_bytes = static_cast<size_t>(options.max_request_bytes);
  http.max_held_bytes = std::max(http.max_held_bytes, 4 * http.max_body_bytes);
  http.read_timeout = options.read_timeout > 0 ? options.read_timeout : 1e8;
  http.max_connections = static_cast<size_t>(options.max_connections);
  auto listening = HttpServer::listen(impl->loop, http, *impl);
  if (!listening.ok()) return listening.status();
  impl->http = std::move(*listening);
  impl->loop.run([&] { impl->context.http = impl->http.get(); });
  impl->loop.on_signal([raw = impl.get()] {
    const std::lock_guard lock(raw->mutex);
    raw->signalled = true;
    raw->changed.notify_all();
  });
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

namespace {

// Text must not become ids that the model does not have. Models are often padded beyond their
// tokens, and special tokens (of images, say) may lie beyond the model: a request that has such a
// one is refused.
Status check_vocabulary(const text::Tokenizer& tokenizer, int32_t vocabulary) {
  for (TokenId id = vocabulary; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.is_special(id) || tokenizer.token_bytes(id).empty()) continue;
    return invalid_argument(base::cat("the tokenizer has ", tokenizer.vocab_size(),
                                      " tokens, the model only ", vocabulary,
                                      ": it belongs to another model (see --tokenizer)"));
  }
  return {};
}

}  // namespace

Status Server::set_ready(Model model) {
  if (!model.engine || !model.tokenizer) {
    return invalid_argument("the server needs an engine and a tokenizer");
  }
  ATTUNE_RETURN_IF_ERROR(check_vocabulary(*model.tokenizer, model.engine->model().vocab_size));
  const int32_t limit = token_limit(*model.engine);
  impl_->loop.run([&] {
    impl_->context.model = std::move(model);
    impl_->context.token_limit = limit;
    if (impl_->context.stage == Stage::kLoading) impl_->context.stage = Stage::kReady;
  });
  return {};
}

Result<std::unique_ptr<Server>> Server::start(const Options& options, Model model) {
  ATTUNE_ASSIGN_OR_RETURN(auto server, listen(options));
  ATTUNE_RETURN_IF_ERROR(server->set_ready(std::move(model)));
  return server;
}

Server::~Server() {
  stop(0);
}

int Server::port() const {
  return impl_->http->port();
}

std::string Server::url() const {
  const std::string& host = impl_->http->host();
  const bool ipv6 = host.find(':') != std::string::npos;
  return "http://" + (ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port());
}

bool Server::is_loopback() const {
  return impl_->http->is_loopback();
}

void Server::wait_for_signal() {
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait(lock, [this] { return impl_->signalled; });
}

void Server::stop(double seconds) {
  impl_->stop(seconds);
}

}  // namespace attune::server
