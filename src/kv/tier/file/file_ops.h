// The system's file calls, as the file tier makes them: a seam that tests break. Results as the
// system's: -1 and errno. Calls from any thread.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <string>
#include <vector>

namespace attune::kv {

class FileOps {
 public:
  virtual ~FileOps() = default;
  virtual int open(const std::string& path, int flags, mode_t mode);
  virtual int close(int file);
  virtual ssize_t writev(int file, const iovec* parts, int count);
  virtual ssize_t preadv(int file, const iovec* parts, int count, off_t offset);
  virtual int fsync(int file);
  virtual int fstat(int file, struct stat* out);
  virtual int stat(const std::string& path, struct stat* out);
  virtual int set_used_now(int file);  // the time of modification, which is the order of eviction
  virtual int rename(const std::string& from, const std::string& to);
  virtual int link(const std::string& from, const std::string& to);
  virtual int unlink(const std::string& path);
  virtual int mkdir(const std::string& path);
  virtual int lock(int file);  // the whole file, until it is closed; fails when another has it
  virtual int list(const std::string& folder, std::vector<std::string>* names);
};

FileOps& system_file_ops();

}  // namespace attune::kv
