#include "server/fields.h"

#include <charconv>

namespace attune::server {

using formats::Json;

namespace {

std::string number_text(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return {text, end};
}

// Cut to a readable length at a character's border.
std::string shortened(std::string text) {
  constexpr size_t kLimit = 80;
  if (text.size() <= kLimit) return text;
  size_t end = kLimit;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

// The value as the client wrote it.
std::string shown(const Json& value) {
  return shortened(value.dump());
}

}  // namespace

MaybeFault read_bool(const Json& value, bool& out) {
  if (!value.is_bool()) return Fault{"must be true or false"};
  out = value.as_bool();
  return std::nullopt;
}

MaybeFault read_string(const Json& value, std::string& out) {
  if (!value.is_string()) return Fault{"must be a string"};
  out = value.as_string();
  return std::nullopt;
}

MaybeFault read_name(const Json& value, std::string& out) {
  if (!value.is_string() || value.as_string().size() > kMaxNameBytes) {
    return Fault{"must be a string of at most " + std::to_string(kMaxNameBytes) + " bytes"};
  }
  out = value.as_string();
  return std::nullopt;
}

MaybeFault read_int(const Json& value, int64_t low, int64_t high, int64_t& out) {
  if (!value.is_int() || value.as_int() < low || value.as_int() > high) {
    std::string what = "must be an integer";
    if (low > INT64_MIN && high == INT64_MAX) {
      what += " of at least " + std::to_string(low);
    } else if (low > INT64_MIN) {
      what += " from " + std::to_string(low) + " to " + std::to_string(high);
    }
    return Fault{what};
  }
  out = value.as_int();
  return std::nullopt;
}

MaybeFault read_number(const Json& value, Range range, double& out) {
  const bool is_number = value.is_number() && std::isfinite(value.as_double());
  if (is_number) out = value.as_double();
  if (!is_number || out < range.low || out > range.high || (range.open_low && out == range.low)) {
    return Fault{"must be a number in " + std::string(range.open_low ? "(" : "[") +
                 number_text(range.low) + ", " + number_text(range.high) + "]"};
  }
  return std::nullopt;
}

MaybeFault read_strings(const Json& value, size_t max_count, std::vector<std::string>& out) {
  const Fault fault{"must be a non-empty string or an array of at most " +
                    std::to_string(max_count) + " such strings, of at most " +
                    std::to_string(kMaxNameBytes) + " bytes each"};
  const auto good = [](const Json& item) {
    return item.is_string() && !item.as_string().empty() &&
           item.as_string().size() <= kMaxNameBytes;
  };
  out.clear();
  if (value.is_array()) {
    if (value.as_array().size() > max_count) return fault;
    for (const Json& item : value.as_array()) {
      if (!good(item)) return fault;
      out.push_back(item.as_string());
    }
    return std::nullopt;
  }
  if (!good(value)) return fault;
  out.push_back(value.as_string());
  return std::nullopt;
}

MaybeFault read_token_ids(const Json& value, std::vector<int32_t>& out) {
  const Fault fault{"must be an array of token ids (integers of at least 0)"};
  if (!value.is_array()) return fault;
  out.clear();
  out.reserve(value.as_array().size());
  for (const Json& item : value.as_array()) {
    if (!item.is_int() || item.as_int() < 0 || item.as_int() > INT32_MAX) return fault;
    out.push_back(static_cast<int32_t>(item.as_int()));
  }
  return std::nullopt;
}

ApiError unknown_field(const std::string& whole_path) {
  const std::string path = shortened(whole_path);
  return {400, "unknown field '" + path + "'; remove it", path, "unknown_parameter"};
}

ApiError field_error(const std::string& path, const Fault& fault, const Json& value) {
  std::string message = "'" + path + "' " + fault.what;
  if (fault.code != "unsupported_parameter") message += ", but is " + shown(value);
  return {400, std::move(message), path, fault.code};
}

ApiError missing_field(const std::string& path) {
  return {400, "'" + path + "' is required", path, "missing_required_parameter"};
}

std::optional<ApiError> parse_body(std::string_view body, Json& out) {
  auto json = formats::parse_json(body);
  if (!json.ok()) {
    return ApiError{400, "the body is not valid JSON: " + json.status().message(), "",
                    "invalid_json"};
  }
  if (!json->is_object()) {
    return ApiError{400, std::string("the body must be a JSON object, but is ") + json->type_name(),
                    "", "invalid_json"};
  }
  out = std::move(*json);
  return std::nullopt;
}

}  // namespace attune::server
