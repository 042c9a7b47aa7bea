// Tables that say which fields a JSON object may have, and of which type and range: one row per
// field, one place per rule. A field that is in no row is refused by its name.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "server/api_error.h"

namespace attune::server {

// What is wrong with a value: "must be a number in [0, 2]"; the reader adds the field and the
// value.
struct Fault {
  std::string what;
  std::string code = "invalid_value";
};
using MaybeFault = std::optional<Fault>;

template <typename T>
struct Field {
  std::string name;
  // Reads `value`, which is not null, into the object. Null is as good as absent in every field.
  std::function<MaybeFault(T&, const formats::Json& value)> set;
};

struct Range {
  double low, high;
  bool open_low = false;  // low itself is outside
};

// Each reads one value, or says what it must be.
MaybeFault read_bool(const formats::Json& value, bool& out);
MaybeFault read_string(const formats::Json& value, std::string& out);
// What is copied for every choice, or repeated in every event, has to be short.
constexpr size_t kMaxNameBytes = 1024;
MaybeFault read_name(const formats::Json& value, std::string& out);
MaybeFault read_int(const formats::Json& value, int64_t low, int64_t high, int64_t& out);
MaybeFault read_number(const formats::Json& value, Range range, double& out);
// A string or an array of at most `max_count`; none may be empty or over kMaxNameBytes.
MaybeFault read_strings(const formats::Json& value, size_t max_count,
                        std::vector<std::string>& out);
// An array of integers in [0, 2^31).
MaybeFault read_token_ids(const formats::Json& value, std::vector<int32_t>& out);

// Rows. `get(object)` is a reference to the member, or for optional members to the optional.
template <typename T, typename Get>
Field<T> bool_field(std::string name, Get get) {
  return {std::move(name),
          [get](T& object, const formats::Json& value) { return read_bool(value, get(object)); }};
}
template <typename T, typename Get>
Field<T> name_field(std::string name, Get get) {
  return {std::move(name),
          [get](T& object, const formats::Json& value) { return read_name(value, get(object)); }};
}
template <typename T, typename Get>
Field<T> int_field(std::string name, int64_t low, int64_t high, Get get) {
  return {std::move(name), [get, low, high](T& object, const formats::Json& value) {
            int64_t number = 0;
            auto fault = read_int(value, low, high, number);
            if (!fault) get(object) = static_cast<int32_t>(number);
            return fault;
          }};
}
template <typename T, typename Get>
Field<T> number_field(std::string name, Range range, Get get) {
  return {std::move(name), [get, range](T& object, const formats::Json& value) {
            double number = 0;
            auto fault = read_number(value, range, number);
            if (fault) return fault;
            float& out = get(object) = static_cast<float>(number);
            if (range.open_low && out <= range.low) out = std::numeric_limits<float>::min();
            return fault;
          }};
}
template <typename T>
Field<T> custom_field(std::string name,
                      std::function<MaybeFault(T&, const formats::Json& value)> set) {
  return {std::move(name), std::move(set)};
}
// Accepted without effect.
template <typename T>
Field<T> ignored_field(std::string name) {
  return {std::move(name), [](T&, const formats::Json&) -> MaybeFault { return std::nullopt; }};
}
// Known, but not offered. `harmless` values ask for nothing and pass; `instead` says what to do.
template <typename T>
Field<T> unsupported_field(std::string name, std::string instead,
                           std::vector<formats::Json> harmless = {}) {
  return {std::move(name),
          [instead = std::move(instead), harmless = std::move(harmless)](
              T&, const formats::Json& value) -> MaybeFault {
            for (const auto& accepted : harmless) {
              if (value == accepted) return std::nullopt;
            }
            return Fault{"is not supported; " + instead, "unsupported_parameter"};
          }};
}

// Rows for a member of T that is a struct with rows of its own.
template <typename T, typename Part, typename Get>
void add_part(std::vector<Field<T>>& table, const std::vector<Field<Part>>& part, Get get) {
  for (const auto& field : part) {
    table.push_back({field.name, [get, set = field.set](T& object, const formats::Json& value) {
                       return set(get(object), value);
                     }});
  }
}

ApiError unknown_field(const std::string& path);
ApiError field_error(const std::string& path, const Fault& fault, const formats::Json& value);
ApiError missing_field(const std::string& path);

// Reads the members of `object` as the table says. `prefix` stands before names in messages, e.g.
// "sampling_params.".
template <typename T>
std::optional<ApiError> read_fields(const std::vector<Field<T>>& table, const formats::Json& object,
                                    const std::string& prefix, T& out) {
  for (const auto& [name, value] : object.as_object()) {
    const Field<T>* found = nullptr;
    for (const auto& field : table) {
      if (field.name == name) found = &field;
    }
    if (!found) return unknown_field(prefix + name);
    if (value.is_null()) continue;
    if (auto fault = found->set(out, value)) return field_error(prefix + name, *fault, value);
  }
  return std::nullopt;
}

// The body as an object.
std::optional<ApiError> parse_body(std::string_view body, formats::Json& out);

}  // namespace attune::server
