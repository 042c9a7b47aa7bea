// The folder of a file tier: where its pages lie, its root salt, and temporary files that are told
// apart from those of processes that died. Several processes may use one folder.
//
//   DIR/root_salt                    made once
//   DIR/ab/ab...(64 digits).page     256 folders by the key's first two digits
//   DIR/tmp/INSTANCE.lock            locked (flock) as long as INSTANCE lives
//   DIR/tmp/INSTANCE.NUMBER          written there, then renamed to its place
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "attune/status.h"
#include "kv/layout/page_key.h"
#include "kv/tier/file/file_ops.h"

namespace attune::kv {

inline constexpr std::string_view kPageEnd = ".page";  // of a page's file name

class StorageFolder {
 public:
  struct Page {
    PageKey key;
    int64_t bytes = 0;
    int64_t used_ns = 0;  // time of modification
  };

  // Makes what is missing. `ops` outlives the folder.
  static Result<std::unique_ptr<StorageFolder>> open(const std::string& dir, FileOps& ops);
  ~StorageFolder();

  const std::string& dir() const { return dir_; }
  const std::string& root_salt() const { return root_salt_; }
  std::string page_folder(const PageKey& key) const;
  std::string page_path(const PageKey& key) const;
  std::string temp_path();  // a new one

  // Names in `path` are on the medium. errno on failure.
  bool sync(const std::string& path);
  // Every page there, of any process; `stop` ends it early. Errors: io_error, cancelled.
  Status for_each_page(const std::function<bool()>& stop,
                       const std::function<void(const Page&)>& visit);
  // Temporary files of processes that are gone.
  void remove_stale_temps();

 private:
  StorageFolder(std::string dir, FileOps& ops) : dir_(std::move(dir)), ops_(ops) {}
  Status prepare();
  Status make_folders();
  Status lock_instance();
  Status find_salt();
  Result<std::string> read_salt();
  Status make_salt();
  bool instance_is_gone(const std::string& instance);
  Status failed(const std::string& what, const std::string& path) const;
  std::string temp(const std::string& name) const { return dir_ + "/tmp/" + name; }

  const std::string dir_;
  FileOps& ops_;
  std::string instance_, root_salt_;
  int lock_ = -1;
  std::atomic<uint64_t> next_temp_{0};
};

}  // namespace attune::kv
