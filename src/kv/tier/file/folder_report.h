// What lies in the folder of a file tier, for people: only reads, beside servers that use it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "attune/status.h"
#include "kv/layout/page_key.h"

namespace attune::kv {

struct FolderReport {
  // Pages that stand for the same model, types and layout (record_fingerprint).
  struct Group {
    int64_t pages = 0, tokens = 0, bytes = 0;       // bytes: of the files
    double oldest_seconds = 0, newest_seconds = 0;  // since their last use
  };
  std::map<PageKey, Group> groups;   // by fingerprint
  std::vector<std::string> damaged;  // files that are no whole page of their name
  int64_t unfinished = 0;            // temporary files: being written, or left by a crash
};

// With `verify` every page is read and its checksum computed; else heads, names and sizes are
// compared. A page that goes while it is looked at is left out. Errors: not_found (no such folder,
// or none of a tier), io_error.
Result<FolderReport> report_folder(const std::string& dir, bool verify);

}  // namespace attune::kv
