#include "server/api_error.h"

namespace attune::server {

using formats::Json;

namespace {

const char* error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

Json text_or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

}  // namespace

Json to_json(const ApiError& error) {
  Json inner;
  inner.set("message", error.message);
  inner.set("type", error_type(error.status));
  inner.set("param", text_or_null(error.param));
  inner.set("code", text_or_null(error.code));
  Json body;
  body.set("error", std::move(inner));
  return body;
}

HttpResponse to_response(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = to_json(error).dump();
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("Retry-After", "1");
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

ApiError to_api_error(const Status& status) {
  switch (status.code()) {
    case Code::kInvalidArgument:
    case Code::kUnsupported:
      return {400, status.message(), "", "invalid_value"};
    case Code::kNotFound:
      return {404, status.message()};
    case Code::kDeadlineExceeded:
      return {408, status.message()};
    case Code::kResourceExhausted:
      return {429, status.message(), "", "queue_full"};
    case Code::kUnavailable:
    case Code::kCancelled:
      return {503, status.message(), "", "unavailable"};
    default:
      return {500, status.message(), "", "internal_error"};
  }
}

}  // namespace attune::server
