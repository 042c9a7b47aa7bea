#include "kv/tier/redis/url.h"

#include <charconv>
#include <optional>

#include "base/log.h"

namespace attune::kv {
namespace {

constexpr std::string_view kForms =
    "; it is redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE] or "
    "unix://[USER:PASSWORD@]/PATH/TO/SOCKET[?db=DATABASE]";

// Never the URL itself, which may hold a password.
Status wrong(std::string_view what) {
  return invalid_argument(base::cat("--hicache-storage-url: ", what, kForms));
}

std::optional<int> number(std::string_view text, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > most)
    return std::nullopt;
  return value;
}

std::optional<std::string> unescape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    uint8_t byte = 0;
    if (i + 2 >= text.size()) return std::nullopt;
    const char* digits = text.data() + i + 1;
    if (std::from_chars(digits, digits + 2, byte, 16).ptr != digits + 2) return std::nullopt;
    out += static_cast<char>(byte);
    i += 2;
  }
  return out;
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// USER:PASSWORD@ in front; the last @ ends it.
Status take_login(std::string_view& rest, RedisUrl& url) {
  const size_t at = rest.rfind('@');
  if (at == rest.npos) return {};
  const std::string_view login = rest.substr(0, at);
  rest.remove_prefix(at + 1);
  const size_t colon = login.find(':');
  if (colon == login.npos) return wrong("there is no ':' between user and password");
  const std::optional<std::string> user = unescape(login.substr(0, colon)),
                                   password = unescape(login.substr(colon + 1));
  if (!user || !password) return wrong("a % in user or password is followed by no two hex digits");
  url.user = *user;
  url.password = *password;
  return {};
}

Status take_host(std::string_view rest, RedisUrl& url) {
  const size_t slash = rest.find('/');
  if (slash != rest.npos && slash + 1 < rest.size()) {
    const std::optional<int> database = number(rest.substr(slash + 1), 1 << 20);
    if (!database) return wrong(base::cat("\"", rest.substr(slash + 1), "\" is no database"));
    url.database = *database;
  }
  rest = rest.substr(0, slash);
  const size_t bracket = rest.starts_with('[') ? rest.find(']') : 0;
  if (bracket == rest.npos) return wrong("there is no ']' after the address");
  const size_t colon = rest.find(':', bracket);
  if (colon != rest.npos) {
    const std::optional<int> port = number(rest.substr(colon + 1), 65535);
    if (!port || *port == 0) return wrong(base::cat("\"", rest.substr(colon + 1), "\" is no port"));
    url.port = *port;
  }
  url.host = bracket > 0 ? rest.substr(1, bracket - 1) : rest.substr(0, colon);
  if (url.host.empty()) return wrong("it names no host");
  return {};
}

Status take_socket(std::string_view rest, RedisUrl& url) {
  const size_t query = rest.find('?');
  if (query != rest.npos) {
    std::string_view database = rest.substr(query + 1);
    const std::optional<int> value =
        take_prefix(database, "db=") ? number(database, 1 << 20) : std::nullopt;
    if (!value) return wrong("after '?' there is only db=DATABASE");
    url.database = *value;
  }
  const std::optional<std::string> path = unescape(rest.substr(0, query));
  if (!path || !path->starts_with('/')) return wrong("the socket's path does not start with '/'");
  url.socket = *path;
  return {};
}

}  // namespace

std::string RedisUrl::where() const {
  if (!socket.empty()) return socket;
  const bool brackets = host.find(':') != host.npos;
  return base::cat(brackets ? "[" : "", host, brackets ? "]:" : ":", port);
}

Result<RedisUrl> parse_redis_url(std::string_view text) {
  RedisUrl url;
  if (text.empty()) return wrong("it is not set");
  if (text.starts_with("rediss:"))
    return unsupported(
        "--hicache-storage-url: there is no TLS; use "
        "redis:// through a tunnel of yours");
  const bool network = take_prefix(text, "redis://");
  if (!network && !take_prefix(text, "unix://")) return wrong("it does not start with redis://");
  ATTUNE_RETURN_IF_ERROR(take_login(text, url));
  ATTUNE_RETURN_IF_ERROR(network ? take_host(text, url) : take_socket(text, url));
  return url;
}

}  // namespace attune::kv
