#include "kv/tier/file/storage_folder.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "kv/tier/digits.h"
#include "kv/tier/record.h"

namespace attune::kv {
namespace {

constexpr std::string_view kLockEnd = ".lock";
constexpr size_t kSaltDigits = 64;

std::optional<PageKey> key_of(std::string_view name) {
  if (!name.ends_with(kPageEnd)) return std::nullopt;
  return parse_page_key(name.substr(0, name.size() - kPageEnd.size()));
}

std::string instance_of(const std::string& temp_name) {
  return temp_name.substr(0, temp_name.find('.'));
}

}  // namespace

Result<std::unique_ptr<StorageFolder>> StorageFolder::open(const std::string& dir, FileOps& ops) {
  std::unique_ptr<StorageFolder> folder(new StorageFolder(dir, ops));
  if (Status status = folder->prepare(); !status.ok()) return status;
  return folder;
}

StorageFolder::~StorageFolder() {
  if (lock_ < 0) return;
  ops_.unlink(temp(instance_ + std::string(kLockEnd)));
  ops_.close(lock_);
}

Status StorageFolder::prepare() {
  ATTUNE_RETURN_IF_ERROR(make_folders());
  ATTUNE_RETURN_IF_ERROR(lock_instance());
  return find_salt();
}

Status StorageFolder::failed(const std::string& what, const std::string& path) const {
  const int error = errno;
  const std::string message = base::cat("the storage folder ", dir_, ": cannot ", what, " ", path,
                                        ": ", std::strerror(error));
  const bool refused = error == EACCES || error == EPERM || error == EROFS || error == ENOTDIR;
  if (!refused) return io_error(message);
  return invalid_argument(message + "; name a folder that this user may write to");
}

// Everything that leads to a page is synced here once, so that later a page's own folder is enough.
Status StorageFolder::make_folders() {
  const auto make = [this](const std::string& path) -> Status {
    if (ops_.mkdir(path) == 0) return {};
    struct stat is;
    if (errno == EEXIST && ops_.stat(path, &is) == 0) {
      if (S_ISDIR(is.st_mode)) return {};
      errno = ENOTDIR;
    }
    return failed("make", path);
  };
  for (size_t end = dir_.find('/', 1); end != dir_.npos; end = dir_.find('/', end + 1)) {
    struct stat is;
    const std::string parent = dir_.substr(0, end);
    if (ops_.stat(parent, &is) != 0) ATTUNE_RETURN_IF_ERROR(make(parent));
  }
  ATTUNE_RETURN_IF_ERROR(make(dir_));
  ATTUNE_RETURN_IF_ERROR(make(dir_ + "/tmp"));
  for (char a : kHexDigits)
    for (char b : kHexDigits) ATTUNE_RETURN_IF_ERROR(make(dir_ + "/" + a + b));
  if (!sync(dir_)) return failed("sync", dir_);
  return {};
}

bool StorageFolder::sync(const std::string& path) {
  const int folder = ops_.open(path, O_RDONLY | O_DIRECTORY, 0);
  if (folder < 0) return false;
  const bool synced = ops_.fsync(folder) == 0;
  const int error = errno;
  ops_.close(folder);
  errno = error;
  return synced;
}

Status StorageFolder::lock_instance() {
  for (;;) {
    ATTUNE_ASSIGN_OR_RETURN(instance_, random_hex_digits(8));
    const std::string path = temp(instance_ + std::string(kLockEnd));
    lock_ = ops_.open(path, O_CREAT | O_EXCL | O_RDWR, 0644);
    if (lock_ < 0) return failed("make", path);
    const bool locked = ops_.lock(lock_) == 0;
    if (!locked && errno != EWOULDBLOCK) return failed("lock", path);
    // Another process may have taken it for a dead one's between the two calls above.
    struct stat own, there;
    if (locked && ops_.fstat(lock_, &own) == 0 && ops_.stat(path, &there) == 0 &&
        own.st_ino == there.st_ino)
      return {};
    ops_.close(lock_);
    lock_ = -1;
    if (locked && errno != ENOENT) return failed("look at", path);
  }
}

// Whoever links its file first has made the salt; everybody else reads it.
Status StorageFolder::find_salt() {
  Result<std::string> salt = read_salt();
  if (!salt.ok() && salt.status().code() == Code::kNotFound) {
    ATTUNE_RETURN_IF_ERROR(make_salt());
    salt = read_salt();
  }
  if (!salt.ok()) return salt.status();
  root_salt_ = std::move(*salt);
  return {};
}

Result<std::string> StorageFolder::read_salt() {
  const std::string path = dir_ + "/root_salt";
  const int file = ops_.open(path, O_RDONLY | O_NONBLOCK, 0);  // a pipe must not make it wait
  if (file < 0 && errno == ENOENT) return not_found(path);
  if (file < 0) return failed("open", path);
  char text[kSaltDigits + 1];
  const iovec part{text, sizeof text};
  const ssize_t bytes = ops_.preadv(file, &part, 1, 0);
  const int error = errno;
  ops_.close(file);
  errno = error;
  if (bytes < 0) return failed("read", path);
  const std::string_view salt(text, std::min<size_t>(static_cast<size_t>(bytes), kSaltDigits));
  if (bytes != static_cast<ssize_t>(kSaltDigits) || salt.find_first_not_of(kHexDigits) != salt.npos)
    return data_loss(path + " is damaged, so no page in the folder can be found: empty the folder");
  return std::string(salt);
}

Status StorageFolder::make_salt() {
  const std::string path = dir_ + "/root_salt", made = temp_path();
  ATTUNE_ASSIGN_OR_RETURN(std::string salt, random_hex_digits(kSaltDigits / 2));
  const int file = ops_.open(made, O_CREAT | O_EXCL | O_WRONLY, 0644);
  if (file < 0) return failed("make", made);
  const iovec part{salt.data(), salt.size()};
  bool ok = ops_.writev(file, &part, 1) == static_cast<ssize_t>(salt.size());
  ok = ok && ops_.fsync(file) == 0;
  Status status = ok ? Status() : failed("write", made);
  if (ops_.close(file) != 0 && status.ok()) status = failed("write", made);
  if (status.ok() && ops_.link(made, path) != 0 && errno != EEXIST) status = failed("make", path);
  ops_.unlink(made);
  if (status.ok() && !sync(dir_)) status = failed("sync", dir_);
  return status;
}

std::string StorageFolder::page_folder(const PageKey& key) const {
  return dir_ + "/" + hex_digits(std::span(key.bytes).first(1));
}

std::string StorageFolder::page_path(const PageKey& key) const {
  return page_folder(key) + "/" + hex_digits(key) + std::string(kPageEnd);
}

std::string StorageFolder::temp_path() {
  return temp(instance_ + "." + std::to_string(next_temp_++));
}

Status StorageFolder::for_each_page(const std::function<bool()>& stop,
                                    const std::function<void(const Page&)>& visit) {
  std::vector<std::string> names;
  for (char a : kHexDigits) {
    for (char b : kHexDigits) {
      if (stop()) return cancelled("stopped");
      const std::string path = dir_ + "/" + a + b;
      if (ops_.list(path, &names) != 0) {
        if (errno == ENOENT || errno == ENOTDIR) continue;
        return failed("list", path);
      }
      for (const std::string& name : names) {
        struct stat is;
        const std::optional<PageKey> key = key_of(name);
        if (!key || ops_.stat(path + "/" + name, &is) != 0) continue;  // went away meanwhile
        if (!S_ISREG(is.st_mode) || is.st_size < kLeastRecordBytes) continue;  // none, by its looks
        visit({*key, is.st_size, int64_t{is.st_mtim.tv_sec} * 1'000'000'000 + is.st_mtim.tv_nsec});
      }
    }
  }
  return {};
}

bool StorageFolder::instance_is_gone(const std::string& instance) {
  const int file = ops_.open(temp(instance + std::string(kLockEnd)), O_RDWR, 0);
  if (file < 0) return errno == ENOENT;
  const bool gone = ops_.lock(file) == 0;
  ops_.close(file);
  return gone;
}

void StorageFolder::remove_stale_temps() {
  std::vector<std::string> names;
  if (ops_.list(dir_ + "/tmp", &names) != 0) return;
  std::set<std::string> live = {instance_}, gone;
  for (const std::string& name : names) {
    const std::string instance = instance_of(name);
    if (live.contains(instance) || gone.contains(instance)) continue;
    (instance_is_gone(instance) ? gone : live).insert(instance);
  }
  // The lock goes last: without it nobody is told apart.
  for (bool locks : {false, true})
    for (const std::string& name : names)
      if (gone.contains(instance_of(name)) && name.ends_with(kLockEnd) == locks)
        ops_.unlink(temp(name));
}

}  // namespace attune::kv
