#include "device/cuda/library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <utility>

#include "base/log.h"

namespace attune::device {
namespace {

namespace fs = std::filesystem;
using base::cat;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, ':');)
    if (!part.empty()) parts.push_back(part);
  return parts;
}

// Folders of `folder` whose name begins with `prefix`, the highest name first; none on any error.
std::vector<fs::path> folders_below(const fs::path& folder, const std::string& prefix) {
  std::vector<fs::path> found;
  std::error_code error;
  fs::directory_iterator it(folder, error), end;
  for (; !error && it != end; it.increment(error))
    if (it->path().filename().string().rfind(prefix, 0) == 0) found.push_back(it->path());
  std::sort(found.rbegin(), found.rend());
  return found;
}

// Collects folders that exist, each once.
class Folders {
 public:
  void add(const fs::path& folder) {
    std::error_code error;
    if (fs::is_directory(folder, error)) add_always(folder.string());
  }
  void add_always(const std::string& folder) {
    if (std::find(list_.begin(), list_.end(), folder) == list_.end()) list_.push_back(folder);
  }
  std::vector<std::string> take() { return std::move(list_); }

 private:
  std::vector<std::string> list_;
};

void add_toolkit(Folders& folders, const fs::path& toolkit) {
  for (const char* below : {"lib64", "lib", "targets/x86_64-linux/lib", "extras/CUPTI/lib64"})
    folders.add(toolkit / below);
}

// The folders in which packages of an interpreter under `prefix` lie.
std::vector<fs::path> site_packages(const fs::path& prefix) {
  std::vector<fs::path> sites;
  for (const fs::path& python : folders_below(prefix / "lib", "python3"))
    for (const char* below : {"site-packages", "dist-packages"}) sites.push_back(python / below);
  return sites;
}

std::vector<fs::path> python_sites(const LibraryPlaces& p) {
  std::vector<fs::path> sites;
  const auto add = [&](const fs::path& prefix) {
    for (fs::path& site : site_packages(prefix)) sites.push_back(std::move(site));
  };
  for (const std::string& folder : split(p.python_path)) sites.emplace_back(folder);
  if (!p.virtual_env.empty()) add(p.virtual_env);
  for (const std::string& folder : split(p.path)) {  // the python3 that a user would call
    std::error_code error;
    const fs::path python = fs::path(folder) / "python3";
    if (!fs::exists(python, error)) continue;
    add(python.parent_path().parent_path());
    break;
  }
  if (!p.home.empty()) add(fs::path(p.home) / ".local");
  add(fs::path(p.root) / "usr/local");
  add(fs::path(p.root) / "usr");
  return sites;
}

// The file that the loader took, which for a bare name only it knows.
std::string path_of(void* handle, const std::string& asked) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name && *map->l_name)
    return map->l_name;
  return asked;
}

}  // namespace

LibraryName cublaslt_name() {
  return {
      "cuBLASLt", "libcublasLt.so.13", {"nvidia/cu13/lib", "nvidia/cublas/lib"}, "nvidia-cublas"};
}

LibraryName cudnn_name() {
  return {"cuDNN", "libcudnn.so.9", {"nvidia/cudnn/lib", "nvidia/cu13/lib"}, "nvidia-cudnn-cu13"};
}

LibraryName cupti_name() {
  return {
      "CUPTI", "libcupti.so.13", {"nvidia/cu13/lib", "nvidia/cuda_cupti/lib"}, "nvidia-cuda-cupti"};
}

LibraryPlaces LibraryPlaces::of_process(const std::string& named) {
  return {.named = named,
          .home = environment("HOME"),
          .path = environment("PATH"),
          .python_path = environment("PYTHONPATH"),
          .virtual_env = environment("VIRTUAL_ENV"),
          .cuda_home = environment("CUDA_HOME"),
          .cuda_path = environment("CUDA_PATH")};
}

std::vector<std::string> library_folders(const LibraryName& name, const LibraryPlaces& p) {
  Folders folders;
  for (const std::string& folder : split(p.named)) folders.add_always(folder);
  folders.add_always("");
  for (const std::string& toolkit : {p.cuda_home, p.cuda_path})
    if (!toolkit.empty()) add_toolkit(folders, toolkit);
  const fs::path local = fs::path(p.root) / "usr/local";
  add_toolkit(folders, local / "cuda");
  for (const fs::path& toolkit : folders_below(local, "cuda-")) add_toolkit(folders, toolkit);
  for (const fs::path& site : python_sites(p))
    for (const std::string& below : name.wheel_folders) folders.add(site / below);
  return folders.take();
}

Result<Library> Library::open(const LibraryName& name, const LibraryPlaces& places) {
  std::string tried;
  for (const std::string& folder : library_folders(name, places)) {
    const std::string path = folder.empty() ? name.file : (fs::path(folder) / name.file).string();
    std::error_code error;
    tried += tried.empty() ? "" : ", ";
    tried += folder.empty() ? "the system's folders" : folder;
    if (!folder.empty() && !fs::exists(path, error)) continue;
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      Library library;
      library.name_ = name.name;
      library.path_ = path_of(handle, path);
      library.handle_.reset(handle);
      return library;
    }
    const char* why = dlerror();
    if (!folder.empty()) tried += cat(" (is there, but: ", why ? why : "cannot be opened", ")");
  }
  return not_found(cat(name.name, ": ", name.file, " is not in ", tried, ": install it (",
                       name.package,
                       " on PyPI, or the CUDA toolkit's), or name its folder by --cuda-libraries"));
}

void Library::Closer::operator()(void* handle) const {
  dlclose(handle);
}

Result<void*> Library::find(const char* symbol) const {
  if (void* address = dlsym(handle_.get(), symbol)) return address;
  return unsupported(cat(name_, ": ", path_, " has no ", symbol, ": it is another version"));
}

}  // namespace attune::device
