// A JSON document as a plain value. Objects keep the order of their keys. Thread-compatible.
// A parsed document is at most 256 deep, so copying, comparing, writing and destroying one may
// recurse; who builds a document by hand keeps to that too.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "attune/status.h"

namespace attune::formats {

class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;
  // Integers that fit int64 stay integers; 1.0 is a double, and is written as 1.0.
  using Rep = std::variant<std::nullptr_t, bool, int64_t, double, std::string, Array, Object>;

  Json() : rep_(nullptr) {}
  Json(std::nullptr_t) : rep_(nullptr) {}             // NOLINT
  Json(bool v) : rep_(v) {}                           // NOLINT
  Json(int v) : rep_(int64_t{v}) {}                   // NOLINT
  Json(int64_t v) : rep_(v) {}                        // NOLINT
  Json(size_t v) : rep_(static_cast<int64_t>(v)) {}   // NOLINT
  Json(double v) : rep_(v) {}                         // NOLINT
  Json(const char* v) : rep_(std::string(v)) {}       // NOLINT
  Json(std::string v) : rep_(std::move(v)) {}         // NOLINT
  Json(std::string_view v) : rep_(std::string(v)) {}  // NOLINT
  Json(Array v) : rep_(std::move(v)) {}               // NOLINT
  Json(Object v) : rep_(std::move(v)) {}              // NOLINT

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(rep_); }
  bool is_bool() const { return std::holds_alternative<bool>(rep_); }
  bool is_int() const { return std::holds_alternative<int64_t>(rep_); }
  bool is_number() const { return is_int() || std::holds_alternative<double>(rep_); }
  bool is_string() const { return std::holds_alternative<std::string>(rep_); }
  bool is_array() const { return std::holds_alternative<Array>(rep_); }
  bool is_object() const { return std::holds_alternative<Object>(rep_); }
  const char* type_name()
      const;  // "null", "boolean", "integer", "number", "string", "array", "object"

  // REQUIRES: the matching is_*(); as_double also takes integers.
  bool as_bool() const { return std::get<bool>(rep_); }
  int64_t as_int() const { return std::get<int64_t>(rep_); }
  double as_double() const { return is_int() ? double(as_int()) : std::get<double>(rep_); }
  const std::string& as_string() const { return std::get<std::string>(rep_); }
  const Array& as_array() const { return std::get<Array>(rep_); }
  Array& as_array() { return std::get<Array>(rep_); }
  const Object& as_object() const { return std::get<Object>(rep_); }
  Object& as_object() { return std::get<Object>(rep_); }

  // The member `key`, or null when this is no object or has none.
  const Json* find(std::string_view key) const;
  // Appends or replaces. REQUIRES: object or null (null becomes an object).
  Json& set(std::string_view key, Json value);
  // REQUIRES: array or null (null becomes an array).
  Json& push(Json value);

  // Compact, valid UTF-8 out (invalid bytes become U+FFFD); non-finite numbers are written as null.
  std::string dump() const;
  std::string dump_pretty() const;

  bool operator==(const Json&) const = default;
  const Rep& rep() const { return rep_; }

 private:
  Rep rep_;
};

// Refuses with the offset: bad syntax, invalid UTF-8, nesting deeper than 256, duplicate keys in
// one object, integers outside int64 (they become doubles), trailing bytes.
Result<Json> parse_json(std::string_view text);

}  // namespace attune::formats
