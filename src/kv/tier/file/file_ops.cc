#include "kv/tier/file/file_ops.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

namespace attune::kv {

int FileOps::open(const std::string& path, int flags, mode_t mode) {
  return ::open(path.c_str(), flags | O_CLOEXEC, mode);
}
int FileOps::close(int file) {
  return ::close(file);
}
ssize_t FileOps::writev(int file, const iovec* parts, int count) {
  return ::writev(file, parts, count);
}
ssize_t FileOps::preadv(int file, const iovec* parts, int count, off_t offset) {
  return ::preadv(file, parts, count, offset);
}
int FileOps::fsync(int file) {
  return ::fsync(file);
}
int FileOps::fstat(int file, struct stat* out) {
  return ::fstat(file, out);
}
int FileOps::stat(const std::string& path, struct stat* out) {
  return ::stat(path.c_str(), out);
}
int FileOps::set_used_now(int file) {
  timespec times[2] = {{0, UTIME_OMIT}, {}};  // finer than the kernel's own "now"
  ::clock_gettime(CLOCK_REALTIME, &times[1]);
  return ::futimens(file, times);
}
int FileOps::rename(const std::string& from, const std::string& to) {
  return ::rename(from.c_str(), to.c_str());
}
int FileOps::link(const std::string& from, const std::string& to) {
  return ::link(from.c_str(), to.c_str());
}
int FileOps::unlink(const std::string& path) {
  return ::unlink(path.c_str());
}
int FileOps::mkdir(const std::string& path) {
  return ::mkdir(path.c_str(), 0755);
}
int FileOps::lock(int file) {
  return ::flock(file, LOCK_EX | LOCK_NB);
}

int FileOps::list(const std::string& folder, std::vector<std::string>* names) {
  DIR* dir = ::opendir(folder.c_str());
  if (dir == nullptr) return -1;
  names->clear();
  errno = 0;
  while (const dirent* entry = ::readdir(dir)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names->push_back(name);
  }
  const int error = errno;
  ::closedir(dir);
  errno = error;
  return error == 0 ? 0 : -1;
}

FileOps& system_file_ops() {
  static FileOps ops;
  return ops;
}

}  // namespace attune::kv
