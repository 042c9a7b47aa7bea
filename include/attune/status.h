// Status and Result: how everything that a request, a file, the network or an allocation can cause
// is reported. Checks (base/check.h) are for programmer errors only; no exception crosses a folder.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace attune {

enum class Code : uint8_t {
  kOk,
  kInvalidArgument,    // the caller asked for something malformed or contradictory
  kNotFound,           // the thing named does not exist
  kUnsupported,        // well-formed, but not offered here; the message says what is
  kResourceExhausted,  // memory, pages, queue places, budget
  kDataLoss,           // a file or message is truncated, corrupt or hostile
  kCancelled,          // aborted by its owner
  kUnavailable,        // not now: starting, draining, peer gone; retrying may help
  kDeadlineExceeded,
  kIoError,
  kInternal,  // a bug of ours
};

const char* code_name(Code code);

// Eight bytes; null means ok. Thread-compatible.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) {
    if (code != Code::kOk) rep_ = std::make_unique<Rep>(Rep{code, std::move(message)});
  }
  Status(const Status& o) : rep_(o.rep_ ? std::make_unique<Rep>(*o.rep_) : nullptr) {}
  Status& operator=(const Status& o) {
    rep_ = o.rep_ ? std::make_unique<Rep>(*o.rep_) : nullptr;
    return *this;
  }
  Status(Status&&) noexcept = default;
  Status& operator=(Status&&) noexcept = default;

  bool ok() const { return rep_ == nullptr; }
  Code code() const { return rep_ ? rep_->code : Code::kOk; }
  const std::string& message() const {
    static const std::string empty;
    return rep_ ? rep_->message : empty;
  }
  // "invalid argument: MESSAGE", or "ok".
  std::string to_string() const;
  // The same status with `context: ` in front of its message; ok stays ok.
  Status with_context(const std::string& context) const;

 private:
  struct Rep {
    Code code;
    std::string message;
  };
  std::unique_ptr<Rep> rep_;
};

inline Status invalid_argument(std::string m) {
  return {Code::kInvalidArgument, std::move(m)};
}
inline Status not_found(std::string m) {
  return {Code::kNotFound, std::move(m)};
}
inline Status unsupported(std::string m) {
  return {Code::kUnsupported, std::move(m)};
}
inline Status resource_exhausted(std::string m) {
  return {Code::kResourceExhausted, std::move(m)};
}
inline Status data_loss(std::string m) {
  return {Code::kDataLoss, std::move(m)};
}
inline Status cancelled(std::string m) {
  return {Code::kCancelled, std::move(m)};
}
inline Status unavailable(std::string m) {
  return {Code::kUnavailable, std::move(m)};
}
inline Status deadline_exceeded(std::string m) {
  return {Code::kDeadlineExceeded, std::move(m)};
}
inline Status io_error(std::string m) {
  return {Code::kIoError, std::move(m)};
}
inline Status internal_error(std::string m) {
  return {Code::kInternal, std::move(m)};
}

// A value, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) {  // NOLINT
    if (status_.ok()) status_ = internal_error("Result built from an ok Status without a value");
  }
  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  // REQUIRES: ok()
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

#define ATTUNE_CONCAT_(a, b) a##b
#define ATTUNE_CONCAT(a, b) ATTUNE_CONCAT_(a, b)
#define ATTUNE_RETURN_IF_ERROR(expr)                 \
  do {                                               \
    ::attune::Status attune_status_ = (expr);        \
    if (!attune_status_.ok()) return attune_status_; \
  } while (false)
#define ATTUNE_ASSIGN_OR_RETURN_(tmp, lhs, expr) \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return tmp.status();            \
  lhs = std::move(tmp).value()
#define ATTUNE_ASSIGN_OR_RETURN(lhs, expr) \
  ATTUNE_ASSIGN_OR_RETURN_(ATTUNE_CONCAT(attune_result_, __LINE__), lhs, expr)

}  // namespace attune
