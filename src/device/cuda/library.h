// Libraries that are too large to link or to ship, opened when they are needed: cuBLASLt, cuDNN
// and CUPTI.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attune/status.h"

namespace attune::device {

// What to look for.
struct LibraryName {
  std::string name;                        // "cuBLASLt", for messages
  std::string file;                        // "libcublasLt.so.13": the major version is part of it
  std::vector<std::string> wheel_folders;  // below site-packages, "nvidia/cublas/lib"
  std::string package;                     // the PyPI package that brings it
};
LibraryName cublaslt_name();
LibraryName cudnn_name();
LibraryName cupti_name();

// Where to look. Plain data, so that a test can make its own world.
struct LibraryPlaces {
  std::string named;  // --cuda-libraries: folders, separated by ':'; these alone are searched first
  std::string home, path, python_path, virtual_env, cuda_home, cuda_path;  // from the environment
  std::string root = "/";  // what absolute places of ours lie below
  // That of this process, with the setting's folders.
  static LibraryPlaces of_process(const std::string& named);
};

// Folders in the order of the search: the named ones; "" (the dynamic linker's own search:
// LD_LIBRARY_PATH, the system); the toolkit's; those of Python packages. Only the ones that exist,
// but for the named ones.
std::vector<std::string> library_folders(const LibraryName& name, const LibraryPlaces& places);

// Open until it is destroyed; move-only.
class Library {
 public:
  // not_found with every place tried, and why a file that was there could not be opened.
  static Result<Library> open(const LibraryName& name, const LibraryPlaces& places);

  const std::string& path() const { return path_; }
  // The function `symbol`; F is its type. unsupported when the library has none.
  template <typename F>
  Result<F*> function(const char* symbol) const {
    ATTUNE_ASSIGN_OR_RETURN(void* address, find(symbol));
    return reinterpret_cast<F*>(address);
  }
  // The same into `to`, which stays as it was where the library has none.
  template <typename F>
  Status bind(F*& to, const char* symbol) const {
    ATTUNE_ASSIGN_OR_RETURN(to, function<F>(symbol));
    return {};
  }

 private:
  struct Closer {
    void operator()(void* handle) const;
  };
  Result<void*> find(const char* symbol) const;

  std::string name_, path_;
  std::unique_ptr<void, Closer> handle_;
};

}  // namespace attune::device
