#include "formats/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace attune::formats {
namespace {

std::string error_text(int error) {
  return std::generic_category().message(error);
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  MappedFile file;
  file.path_ = path;
  // Without O_NONBLOCK, opening a FIFO would wait for a writer.
  file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd_ < 0) {
    const std::string message = path + ": " + error_text(errno);
    return errno == ENOENT || errno == ENOTDIR ? not_found(message) : io_error(message);
  }
  struct stat info {};
  if (::fstat(file.fd_, &info) != 0) return io_error(path + ": " + error_text(errno));
  if (!S_ISREG(info.st_mode)) return io_error(path + ": not a regular file");
  file.size_ = uint64_t(info.st_size);
  if (file.size_ == 0) return file;
  void* data = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, file.fd_, 0);
  if (data == MAP_FAILED) {
    file.size_ = 0;
    return io_error(path + ": cannot map it: " + error_text(errno));
  }
  file.data_ = static_cast<const std::byte*>(data);
  return file;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  if (fd_ >= 0) ::close(fd_);
}

void MappedFile::swap(MappedFile& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
}

Status MappedFile::advise(Advice advice, uint64_t offset, uint64_t length) const {
  constexpr int kAdvice[] = {MADV_NORMAL, MADV_SEQUENTIAL, MADV_RANDOM, MADV_WILLNEED};
  if (offset >= size_) return {};
  const uint64_t page = uint64_t(::sysconf(_SC_PAGESIZE));
  const uint64_t begin = offset / page * page;
  const uint64_t end = offset + std::min(length, size_ - offset);
  if (::madvise(const_cast<std::byte*>(data_) + begin, end - begin, kAdvice[int(advice)]) != 0)
    return io_error(path_ + ": madvise: " + error_text(errno));
  return {};
}

Status MappedFile::drop(uint64_t offset, uint64_t length) const {
  if (offset >= size_) return {};
  const uint64_t page = uint64_t(::sysconf(_SC_PAGESIZE));
  const uint64_t begin = (offset + page - 1) / page * page;
  // The last page ends with the file and not at its page's end.
  const uint64_t cut = offset + std::min(length, size_ - offset);
  const uint64_t end = cut == size_ ? size_ : cut / page * page;
  if (begin >= end) return {};
  if (::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED) != 0)
    return io_error(path_ + ": madvise: " + error_text(errno));
  return {};
}

Status MappedFile::check_not_shrunk() const {
  if (fd_ < 0) return {};
  struct stat info {};
  if (::fstat(fd_, &info) != 0) return io_error(path_ + ": " + error_text(errno));
  if (uint64_t(info.st_size) >= size_) return {};
  return data_loss(path_ + ": shrank from " + std::to_string(size_) + " to " +
                   std::to_string(info.st_size) + " bytes while in use; load it again");
}

}  // namespace attune::formats
