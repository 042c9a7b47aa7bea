#include "kv/tier/file/folder_report.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>

#include "kv/tier/digits.h"
#include "kv/tier/file/storage_folder.h"
#include "kv/tier/record.h"

namespace attune::kv {
namespace {

namespace fs = std::filesystem;

enum class Look { kWhole, kDamaged, kGone };

struct Seen {
  Look look = Look::kGone;
  RecordHead head;
};

Seen look_at(const fs::path& path, int64_t bytes, bool verify) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return {};
  std::string record(static_cast<size_t>(verify ? bytes : std::min(bytes, kLargestRecordHead)),
                     '\0');
  in.read(record.data(), static_cast<std::streamsize>(record.size()));
  record.resize(static_cast<size_t>(std::max<std::streamsize>(0, in.gcount())));
  auto head = read_record_head(record);
  if (!head || path.filename().string() != hex_digits(head->page.key) + std::string(kPageEnd) ||
      head->header_bytes + head->payload_bytes != bytes)
    return {Look::kDamaged, {}};
  if (verify) {
    const auto at = static_cast<size_t>(head->header_bytes);
    const PageRuns payload{record.data() + at, head->payload_bytes, head->payload_bytes, 1};
    if (record.size() != static_cast<size_t>(bytes) ||
        !record_is_right(std::string_view(record).substr(0, at), head->fingerprint, head->page,
                         payload))
      return {Look::kDamaged, {}};
  }
  return {Look::kWhole, std::move(*head)};
}

void add(FolderReport::Group& group, const Seen& seen, int64_t bytes, double age) {
  group.oldest_seconds = group.pages == 0 ? age : std::max(group.oldest_seconds, age);
  group.newest_seconds = group.pages == 0 ? age : std::min(group.newest_seconds, age);
  ++group.pages;
  group.tokens += static_cast<int64_t>(seen.head.page.tokens.size());
  group.bytes += bytes;
}

// Entries of `folder`; none when it is gone.
std::vector<fs::directory_entry> entries(const fs::path& folder) {
  std::vector<fs::directory_entry> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    found.push_back(*it);
  std::ranges::sort(found);
  return found;
}

}  // namespace

Result<FolderReport> report_folder(const std::string& dir, bool verify) {
  std::error_code error;
  if (!fs::is_directory(dir, error)) return not_found(dir + ": there is no such folder");
  if (!fs::exists(fs::path(dir) / "root_salt", error))
    return not_found(dir + ": no storage of pages: it has no root_salt");
  FolderReport report;
  const auto now = fs::file_time_type::clock::now();
  for (const fs::directory_entry& sub : entries(dir)) {
    const std::string name = sub.path().filename().string();
    if (name.size() != 2 || !sub.is_directory(error)) continue;
    for (const fs::directory_entry& file : entries(sub.path())) {
      if (file.path().extension() != kPageEnd) continue;
      const auto bytes = static_cast<int64_t>(file.file_size(error));
      if (error) continue;
      const auto used = file.last_write_time(error);
      const double age = error ? 0 : std::chrono::duration<double>(now - used).count();
      const Seen seen = look_at(file.path(), bytes, verify);
      if (seen.look == Look::kDamaged) report.damaged.push_back(file.path().string());
      if (seen.look == Look::kWhole)
        add(report.groups[seen.head.fingerprint], seen, bytes, std::max(0.0, age));
    }
  }
  for (const fs::directory_entry& file : entries(fs::path(dir) / "tmp"))
    report.unfinished += file.path().extension() != ".lock";
  return report;
}

}  // namespace attune::kv
