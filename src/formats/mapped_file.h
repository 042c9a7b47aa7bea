// A regular file, mapped read-only. Nothing is read at open; pages come in as they are touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "attune/status.h"

namespace attune::formats {

// Move-only; const methods are thread-safe.
class MappedFile {
 public:
  enum class Advice { kNormal, kSequential, kRandom, kWillNeed };

  // Errors: not_found, io_error (permission, no regular file). An empty file maps to an empty span.
  static Result<MappedFile> open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept { swap(other); }
  MappedFile& operator=(MappedFile&& other) noexcept {
    MappedFile(std::move(other)).swap(*this);
    return *this;
  }
  ~MappedFile();

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }
  const std::byte* data() const { return data_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // How the bytes [offset, offset + length) will be used; a range past the end is cut.
  Status advise(Advice advice, uint64_t offset, uint64_t length) const;
  // Gives the whole pages inside the range back to the system; their bytes stay readable and are
  // then read from the file again. For weights that were repacked elsewhere.
  Status drop(uint64_t offset, uint64_t length) const;
  // data_loss when the file is now shorter than its map (touching the lost pages would kill the
  // process).
  Status check_not_shrunk() const;

 private:
  void swap(MappedFile& other) noexcept;

  std::string path_;
  const std::byte* data_ = nullptr;
  uint64_t size_ = 0;
  int fd_ = -1;
};

}  // namespace attune::formats
