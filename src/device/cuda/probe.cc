#include "device/cuda/probe.h"

#include <dlfcn.h>

#include <cstdlib>
#include <sstream>

#include "base/log.h"

namespace attune::device {

Status check_driver(const std::string& library) {
  if (void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    dlclose(handle);
    return {};
  }
  const char* why = dlerror();
  return unsupported(base::cat("no NVIDIA driver: ", library, " not found (", why ? why : "",
                               "): install the driver, or use --device cpu"));
}

Status check_arch(int sm, const std::string& gpu, const std::string& built) {
  if (sm >= 120)
    return unsupported(base::cat(gpu, " is sm_", sm,
                                 ", whose multiprocessors have less shared memory than kernels for "
                                 "sm_90 and later take here: use --device cpu"));
  std::istringstream archs(built);
  for (std::string arch; std::getline(archs, arch, ',');) {
    const int least = std::atoi(arch.c_str());
    const bool exact = !arch.empty() && arch.back() == 'a';
    if (exact ? sm == least : sm >= least) return {};
  }
  return unsupported(base::cat(gpu, " is sm_", sm, ", this build has kernels for ", built,
                               ": build with -DATTUNE_CUDA_ARCHS=", sm, ", or use --device cpu"));
}

}  // namespace attune::device
