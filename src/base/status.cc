#include "attune/status.h"

namespace attune {

const char* code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid argument";
    case Code::kNotFound:
      return "not found";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kResourceExhausted:
      return "resource exhausted";
    case Code::kDataLoss:
      return "bad data";
    case Code::kCancelled:
      return "cancelled";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kDeadlineExceeded:
      return "deadline exceeded";
    case Code::kIoError:
      return "I/O error";
    case Code::kInternal:
      return "internal error";
  }
  return "unknown";
}

std::string Status::to_string() const {
  return ok() ? "ok" : std::string(code_name(code())) + ": " + message();
}

Status Status::with_context(const std::string& context) const {
  return ok() ? Status() : Status(code(), context + ": " + message());
}

}  // namespace attune
