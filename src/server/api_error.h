// Errors as OpenAI's API words them: {"error": {"message", "type", "param", "code"}}.
#pragma once

#include <optional>
#include <string>

#include "attune/status.h"
#include "formats/json.h"
#include "server/http.h"

namespace attune::server {

struct ApiError {
  int status = 400;
  std::string message;
  std::string param = {};  // the field at fault; empty: null
  std::string code = {};   // empty: null
};

formats::Json to_json(const ApiError& error);  // the whole body
HttpResponse to_response(const ApiError& error);

// invalid_argument and unsupported: 400, resource_exhausted: 429, unavailable: 503, ...
ApiError to_api_error(const Status& status);

}  // namespace attune::server
