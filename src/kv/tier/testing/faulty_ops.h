// File calls that break where a test says.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kv/tier/file/file_ops.h"

namespace attune::kv::testing {

class FaultyOps final : public FileOps {
 public:
  enum class Break : uint8_t {
    kNothing,
    kOnce,       // the call fails with `error`
    kShort,      // a write or read moves half of it; other calls work
    kFromThere,  // as if the process were killed in the middle of this call: none does anything
  };
  // Whole folders are made and listed so often that they are counted for themselves.
  enum class Calls : uint8_t { kOfFiles, kOfFolders };

  void break_at(int64_t call, Break how, int error = EIO, Calls counted = Calls::kOfFiles) {
    calls_ = 0;
    dead_ = false;
    at_ = call;
    how_ = how;
    error_ = error;
    counted_ = counted;
  }
  int64_t calls() const { return calls_; }
  std::function<void()> after_read;  // preadv

  int open(const std::string& path, int flags, mode_t mode) override {
    return fails() ? -1 : FileOps::open(path, flags, mode);
  }
  int close(int file) override {
    const bool failing = fails();
    const int closed = FileOps::close(file);  // also of a dead process
    return failing ? -1 : closed;
  }
  ssize_t writev(int file, const iovec* parts, int count) override {
    return move(parts, count,
                [&](const iovec* some, int n) { return FileOps::writev(file, some, n); });
  }
  ssize_t preadv(int file, const iovec* parts, int count, off_t offset) override {
    const ssize_t moved = move(parts, count, [&](const iovec* some, int n) {
      return FileOps::preadv(file, some, n, offset);
    });
    if (after_read) after_read();
    return moved;
  }
  int fsync(int file) override { return fails() ? -1 : FileOps::fsync(file); }
  int fstat(int file, struct stat* out) override {
    return fails() ? -1 : FileOps::fstat(file, out);
  }
  int stat(const std::string& path, struct stat* out) override {
    return fails() ? -1 : FileOps::stat(path, out);
  }
  int set_used_now(int file) override { return fails() ? -1 : FileOps::set_used_now(file); }
  int rename(const std::string& from, const std::string& to) override {
    return fails() ? -1 : FileOps::rename(from, to);
  }
  int link(const std::string& from, const std::string& to) override {
    return fails() ? -1 : FileOps::link(from, to);
  }
  int unlink(const std::string& path) override { return fails() ? -1 : FileOps::unlink(path); }
  int mkdir(const std::string& path) override {
    return fails(Calls::kOfFolders) ? -1 : FileOps::mkdir(path);
  }
  int lock(int file) override { return fails() ? -1 : FileOps::lock(file); }
  int list(const std::string& folder, std::vector<std::string>* names) override {
    return fails(Calls::kOfFolders) ? -1 : FileOps::list(folder, names);
  }

 private:
  Break next(Calls of) {
    if (dead_) return Break::kOnce;
    if (of != counted_ || calls_++ != at_) return Break::kNothing;
    const Break how = how_;
    if (how == Break::kFromThere) dead_ = true;
    return how;
  }
  bool fails(Calls of = Calls::kOfFiles) {
    const Break how = next(of);
    if (how == Break::kNothing || how == Break::kShort) return false;
    errno = error_;
    return true;
  }
  template <typename Move>
  ssize_t move(const iovec* parts, int count, Move really) {
    const Break how = next(Calls::kOfFiles);
    if (how == Break::kNothing) return really(parts, count);
    std::vector<iovec> half(parts, parts + (count + 1) / 2);
    half.back().iov_len = (half.back().iov_len + 1) / 2;
    if (how == Break::kShort) return really(half.data(), static_cast<int>(half.size()));
    if (how == Break::kFromThere) really(half.data(), static_cast<int>(half.size()));
    errno = error_;
    return -1;
  }

  std::atomic<int64_t> calls_{0}, at_{-1};
  std::atomic<Break> how_{Break::kNothing};
  std::atomic<int> error_{EIO};
  std::atomic<Calls> counted_{Calls::kOfFiles};
  std::atomic<bool> dead_{false};
};

}  // namespace attune::kv::testing
