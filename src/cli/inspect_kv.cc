// attune inspect kv: which pages are where, in a running server or in a storage folder.
#include <cstdio>

#include "base/log.h"
#include "bench/http_call.h"
#include "cli/command.h"
#include "formats/json.h"
#include "kv/tier/digits.h"
#include "kv/tier/file/folder_report.h"
#include "kv/tier/make_tier.h"

namespace attune::cli {
namespace {

using base::cat;
using formats::Json;

constexpr double kAnswerSeconds = 30;
constexpr size_t kShownFiles = 8;
constexpr size_t kShownDigits = 16;  // of a fingerprint in a table

std::string size_text(double bytes) {
  const char* const units[] = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  for (; bytes >= 1000 && unit + 1 < std::size(units); ++unit) bytes /= 1000;
  char text[32];
  std::snprintf(text, sizeof text, unit ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
  return text;
}

std::string age_text(double seconds) {
  struct Unit {
    double seconds;
    const char* name;
  };
  for (const Unit& unit : {Unit{86400, "d"}, Unit{3600, "h"}, Unit{60, "min"}})
    if (seconds >= unit.seconds)
      return cat(static_cast<int64_t>(seconds / unit.seconds), " ", unit.name);
  return cat(static_cast<int64_t>(seconds), " s");
}

// Columns as wide as their longest cell; the first to the left, the others to the right.
void print_rows(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows[0].size(), 0);
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i)
      std::printf(i == 0 ? "%-*s" : "  %*s", static_cast<int>(widths[i]), row[i].c_str());
    std::printf("\n");
  }
}

// ---- a running server ----

Result<Json> server_stats(const std::string& base_url, const std::string& api_key) {
  ATTUNE_ASSIGN_OR_RETURN(const bench::HttpTarget target, bench::find_target(base_url, api_key));
  const auto answer = bench::fetch(target, "GET", "/get_server_info", "", kAnswerSeconds);
  if (!answer.ok()) return answer.status().with_context(base_url);
  const bench::HttpReply& reply = *answer;
  auto json = formats::parse_json(reply.body);
  const Json* stats = json.ok() ? json->find("stats") : nullptr;
  if (reply.status != 200 || !stats || !stats->find("cache_tiers") || !stats->find("hicache"))
    return unavailable(cat(base_url, "/get_server_info: status ", reply.status,
                           reply.status == 200   ? ", without an Attune server's statistics"
                           : reply.status == 401 ? " (see --api-key)"
                                                 : ""));
  return *stats;
}

int64_t number(const Json& object, std::string_view name) {
  const Json* found = object.find(name);
  return found && found->is_number() ? static_cast<int64_t>(found->as_double()) : 0;
}

std::string rate_text(const Json& tier, const char* bytes, const char* seconds) {
  const Json* time = tier.find(seconds);
  if (!time || time->as_double() <= 0) return "-";
  return size_text(static_cast<double>(number(tier, bytes)) / time->as_double()) + "/s";
}

void print_server(const Json& stats) {
  const Json& hicache = *stats.find("hicache");
  const int64_t page = number(stats, "page_size");
  std::printf("device: %lld pages of %lld tokens, %lld held by requests, %lld kept\n",
              static_cast<long long>(number(stats, "total_pages")), static_cast<long long>(page),
              static_cast<long long>(number(stats, "used_pages")),
              static_cast<long long>(number(stats, "cached_pages")));
  const Json* enabled = hicache.find("enabled");
  if (!enabled || !enabled->is_bool() || !enabled->as_bool()) {
    std::printf("the hierarchical cache is off (--enable-hierarchical-cache)\n");
    return;
  }
  std::vector<std::vector<std::string>> rows = {{"tier", "pages", "held", "room", "hit tokens",
                                                 "misses", "evicted", "read", "written", "queued",
                                                 "damaged", "failed"}};
  for (const Json& tier : stats.find("cache_tiers")->as_array()) {
    const int64_t room = number(tier, "budget_bytes");
    std::vector<std::string> row = {tier.find("name")->as_string(), cat(number(tier, "pages")),
                                    size_text(double(number(tier, "bytes"))),
                                    room > 0 ? size_text(double(room)) : "-"};
    for (const char* name : {"hit_tokens", "misses", "evicted_pages"})
      row.push_back(cat(number(tier, name)));
    row.push_back(rate_text(tier, "read_bytes", "read_seconds"));
    row.push_back(rate_text(tier, "written_bytes", "write_seconds"));
    for (const char* name : {"queued_pages", "corrupt_pages", "failed_operations"})
      row.push_back(cat(number(tier, name)));
    rows.push_back(std::move(row));
  }
  print_rows(rows);
  std::printf(
      "%lld loads of %lld pages, %lld failed; %lld pages computed again, which was faster; "
      "%lld pages fetched from storage, %lld fetches cut short\n",
      static_cast<long long>(number(hicache, "loads")),
      static_cast<long long>(number(hicache, "loaded_pages")),
      static_cast<long long>(number(hicache, "failed_loads")),
      static_cast<long long>(number(hicache, "recomputed_pages")),
      static_cast<long long>(number(hicache, "prefetched_pages")),
      static_cast<long long>(number(hicache, "prefetches_cut")));
}

// ---- a storage folder ----

Json folder_json(const std::string& dir, const kv::FolderReport& report, bool verified) {
  Json groups{Json::Array{}}, damaged{Json::Array{}}, json;
  int64_t pages = 0, bytes = 0;
  for (const auto& [fingerprint, group] : report.groups) {
    Json row;
    row.set("fingerprint", kv::hex_digits(fingerprint));
    row.set("pages", group.pages);
    row.set("tokens", group.tokens);
    row.set("bytes", group.bytes);
    row.set("oldest_seconds", group.oldest_seconds);
    row.set("newest_seconds", group.newest_seconds);
    groups.push(std::move(row));
    pages += group.pages;
    bytes += group.bytes;
  }
  for (const std::string& file : report.damaged) damaged.push(file);
  json.set("folder", dir);
  json.set("pages", pages);
  json.set("bytes", bytes);
  json.set("fingerprints", std::move(groups));
  json.set("damaged", std::move(damaged));
  json.set("unfinished", report.unfinished);
  json.set("verified", verified);
  return json;
}

void print_folder(const std::string& dir, const kv::FolderReport& report, bool verified) {
  std::printf("%s\n", dir.c_str());
  std::vector<std::vector<std::string>> rows = {
      {"fingerprint", "pages", "tokens", "bytes", "last used", "longest unused"}};
  for (const auto& [fingerprint, group] : report.groups)
    rows.push_back({kv::hex_digits(fingerprint).substr(0, kShownDigits), cat(group.pages),
                    cat(group.tokens), size_text(double(group.bytes)),
                    age_text(group.newest_seconds), age_text(group.oldest_seconds)});
  print_rows(rows);
  std::printf("%zu damaged%s, %lld unfinished\n", report.damaged.size(),
              verified ? " (every checksum was computed)" : "",
              static_cast<long long>(report.unfinished));
  for (size_t i = 0; i < std::min(kShownFiles, report.damaged.size()); ++i)
    std::printf("  %s\n", report.damaged[i].c_str());
  if (report.damaged.size() > kShownFiles)
    std::printf("  and %zu more\n", report.damaged.size() - kShownFiles);
}

int inspect_server(const Invocation& call, const std::string& base_url) {
  const auto stats = server_stats(base_url, call.settings.options().api_key);
  if (!stats.ok()) return report(stats.status(), call.json);
  if (!call.json) {
    print_server(*stats);
    return kExitOk;
  }
  Json json;
  json.set("server", base_url);
  for (const char* name :
       {"page_size", "total_pages", "used_pages", "cached_pages", "hicache", "cache_tiers"})
    if (const Json* value = stats->find(name)) json.set(name, *value);
  std::printf("%s\n", json.dump().c_str());
  return kExitOk;
}

int inspect_folder(const Invocation& call, bool verify) {
  const std::string& set = call.settings.options().hicache_storage_dir;
  const std::string dir = set.empty() ? kv::default_storage_dir() : set;
  const auto found = kv::report_folder(dir, verify);
  if (!found.ok()) return report(found.status(), call.json);
  if (call.json)
    std::printf("%s\n", folder_json(dir, *found, verify).dump().c_str());
  else
    print_folder(dir, *found, verify);
  return kExitOk;
}

}  // namespace

int run_inspect_kv(const Args& args) {
  std::string base_url;
  bool verify = false;
  Invocation call;
  const Usage usage{
      "inspect kv",
      "",
      "Shows which KV pages are where: in the tiers of a running server (--base-url), "
      "or in a\nstorage folder (--hicache-storage-dir), whose servers may go on.",
      0,
      false,
      {"hicache-storage-dir", "api-key", "log-level"}};
  if (auto code = read_command_line(
          usage, args,
          {{"base-url", &base_url, "attune inspect kv", "URL",
            "the server to ask, e.g. http://127.0.0.1:30000; empty: look into the folder"},
           {"verify", &verify, "attune inspect kv", "",
            "read every stored page and compute its checksum"}},
          call))
    return *code;
  return base_url.empty() ? inspect_folder(call, verify) : inspect_server(call, base_url);
}

}  // namespace attune::cli
