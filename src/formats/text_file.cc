#include "formats/text_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

namespace attune::formats {
namespace {

Status cannot_read(const std::string& path, int error) {
  const std::string message = "cannot read " + path + ": " + std::generic_category().message(error);
  return error == ENOENT || error == ENOTDIR ? not_found(message) : io_error(message);
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

Result<std::string> read_text_file(const std::string& path, size_t max_bytes) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return cannot_read(path, errno);
  std::string text;
  std::array<char, 64 << 10> buffer;
  for (;;) {
    const ssize_t n = ::read(file.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return cannot_read(path, errno);
    if (n == 0) return text;
    if (text.size() + size_t(n) > max_bytes)
      return invalid_argument(path + " is larger than " + std::to_string(max_bytes) + " bytes");
    text.append(buffer.data(), size_t(n));
  }
}

}  // namespace attune::formats
