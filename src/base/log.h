// Structured log lines on standard error, behind this small interface so that fmt stays in .cc
// files. There is no fatal level: a request must never end the process. Thread-safe.
#pragma once

#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace attune::base {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

void set_log_level(LogLevel level);
LogLevel log_level();
void log(LogLevel level, std::string_view message);

// "7 of 12 pages": joins its arguments as operator<< would.
template <typename... Args>
std::string cat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return std::move(out).str();
}

// "a, b, c": the items, each as `print` gives it.
template <typename List, typename Print>
std::string join(const List& list, Print print) {
  std::ostringstream out;
  const char* between = "";
  for (const auto& item : list) {
    out << between << print(item);
    between = ", ";
  }
  return std::move(out).str();
}
inline std::string join(const std::vector<std::string>& list) {
  return join(list, [](const std::string& item) -> const std::string& { return item; });
}

template <typename... Args>
void log_info(const Args&... args) {
  if (log_level() <= LogLevel::kInfo) log(LogLevel::kInfo, cat(args...));
}
template <typename... Args>
void log_warning(const Args&... args) {
  if (log_level() <= LogLevel::kWarning) log(LogLevel::kWarning, cat(args...));
}
template <typename... Args>
void log_error(const Args&... args) {
  if (log_level() <= LogLevel::kError) log(LogLevel::kError, cat(args...));
}
template <typename... Args>
void log_debug(const Args&... args) {
  if (log_level() <= LogLevel::kDebug) log(LogLevel::kDebug, cat(args...));
}

}  // namespace attune::base
