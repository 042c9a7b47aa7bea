#include "device/trace.h"

#include <cuda_runtime.h>
#include <cxxabi.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "base/check.h"
#include "base/log.h"
#include "device/cuda/error.h"
#include "device/cuda/library.h"
#include "device/cuda/probe.h"
#if __has_include(<cupti.h>)  // toolkits can be installed without it
#include <cupti.h>

namespace attune::device {
namespace {

using base::cat;

constexpr size_t kBufferBytes = size_t{8} << 20;  // about 35,000 activities
// Kernels of graphs one by one: of graphs that were made before, CUPTI_ACTIVITY_KIND_GRAPH_TRACE
// (each graph whole) crashes in cuGraphLaunch (CUPTI 13.0.1, driver 580.159).
constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                         CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET};
constexpr std::align_val_t kBufferAlign{8};  // as CUPTI asks

int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The functions by the names that they have in the library.
struct Api {
  std::optional<Library> library;
#define ATTUNE_CUPTI_API(F)            \
  F(cuptiActivityRegisterCallbacks)    \
  F(cuptiActivityEnable)               \
  F(cuptiActivityDisable)              \
  F(cuptiActivityFlushAll)             \
  F(cuptiActivityGetNextRecord)        \
  F(cuptiActivityGetNumDroppedRecords) \
  F(cuptiGetTimestamp)                 \
  F(cuptiGetResultString)
#define ATTUNE_CUPTI_FIELD(name) decltype(&::name) name = nullptr;
  ATTUNE_CUPTI_API(ATTUNE_CUPTI_FIELD)
#undef ATTUNE_CUPTI_FIELD

  Status open(const std::string& libraries) {
    auto opened = Library::open(cupti_name(), LibraryPlaces::of_process(libraries));
    if (!opened.ok()) return opened.status();
    library = std::move(*opened);
#define ATTUNE_CUPTI_BIND(name) ATTUNE_RETURN_IF_ERROR(library->bind(name, #name));
    ATTUNE_CUPTI_API(ATTUNE_CUPTI_BIND)
#undef ATTUNE_CUPTI_BIND
#undef ATTUNE_CUPTI_API
    return {};
  }

  Status check(CUptiResult result, const char* call) const {
    if (result == CUPTI_SUCCESS) return {};
    const char* why = nullptr;
    cuptiGetResultString(result, &why);
    return internal_error(cat(call, ": ", why ? why : "unknown error"));
  }
};

// What CUPTI's callbacks write to; they are called with nothing by which one could tell whose they
// are, from threads of CUPTI. Neither is ever taken down: CUPTI stays in the process once it is
// there.
struct Collected {
  Api api;
  std::mutex mutex;
  bool taken = false;  // a Tracer is there
  int64_t offset = 0;  // steady clock less CUPTI's, ns
  size_t dropped = 0;
  Trace trace;
  std::unordered_map<std::string, uint32_t> names;  // as CUPTI has them

  uint32_t name_index(const char* raw) {
    const auto [it, is_new] = names.try_emplace(raw ? raw : "?", trace.names.size());
    if (!is_new) return it->second;
    int failed = 0;
    char* plain = abi::__cxa_demangle(it->first.c_str(), nullptr, nullptr, &failed);
    trace.names.push_back(plain ? plain : it->first);
    std::free(plain);
    return it->second;
  }
};

Collected& collected() {
  static Collected* one = new Collected;
  return *one;
}

const char* copy_name(uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "copy to the device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "copy to the host";
    default:
      return "copy";
  }
}

Activity activity(const CUpti_ActivityKernel10& k, Collected& c) {
  return {.kind = Activity::Kind::kKernel,
          .name = c.name_index(k.name),
          .stream = k.streamId,
          .begin_ns = static_cast<int64_t>(k.start),
          .end_ns = static_cast<int64_t>(k.end),
          .grid = {k.gridX, k.gridY, k.gridZ},
          .block = {k.blockX, k.blockY, k.blockZ}};
}

// Of all but kernels: the times have the same names in each of the records.
template <typename Record>
Activity activity(const Record& r, Activity::Kind kind, const char* name, Collected& c) {
  return {.kind = kind,
          .name = c.name_index(name),
          .stream = r.streamId,
          .begin_ns = static_cast<int64_t>(r.start),
          .end_ns = static_cast<int64_t>(r.end)};
}

void keep(const CUpti_Activity* record, Collected& c) {
  Activity a;
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      a = activity(*reinterpret_cast<const CUpti_ActivityKernel10*>(record), c);
      break;
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& copy = *reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      a = activity(copy, Activity::Kind::kCopy, copy_name(copy.copyKind), c);
      a.bytes = static_cast<int64_t>(copy.bytes);
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto& fill = *reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      a = activity(fill, Activity::Kind::kFill, "fill", c);
      a.bytes = static_cast<int64_t>(fill.bytes);
      break;
    }
    default:
      return;
  }
  // No times: CUPTI could not read them.
  if (a.end_ns == 0 || a.end_ns < a.begin_ns) {
    ++c.dropped;
    return;
  }
  a.begin_ns += c.offset;
  a.end_ns += c.offset;
  c.trace.activities.push_back(a);
}

void CUPTIAPI buffer_requested(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(::operator new(kBufferBytes, kBufferAlign, std::nothrow));
  *size = *buffer ? kBufferBytes : 0;
  *max_records = 0;  // as many as fit
}

void CUPTIAPI buffer_completed(CUcontext context, uint32_t stream, uint8_t* buffer, size_t /*size*/,
                               size_t valid) {
  Collected& c = collected();
  std::lock_guard lock(c.mutex);
  CUpti_Activity* record = nullptr;
  while (valid > 0 && c.api.cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS)
    keep(record, c);
  size_t dropped = 0;
  if (c.api.cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS)
    c.dropped += dropped;
  ::operator delete(buffer, kBufferAlign);
}

class CuptiTracer final : public Tracer {
 public:
  ~CuptiTracer() override {
    Collected& c = collected();
    if (running_) disable();
    std::lock_guard lock(c.mutex);
    c.taken = false;
  }

  Status start() override {
    ATTUNE_CHECK(!running_);
    Collected& c = collected();
    const int64_t before = steady_ns();
    uint64_t now = 0;
    ATTUNE_RETURN_IF_ERROR(c.api.check(c.api.cuptiGetTimestamp(&now), "cuptiGetTimestamp"));
    {
      std::lock_guard lock(c.mutex);
      c.offset = (before + steady_ns()) / 2 - static_cast<int64_t>(now);
      c.dropped = 0;
      c.trace = {};
      c.names.clear();
    }
    running_ = true;
    for (const CUpti_ActivityKind kind : kKinds) {
      const Status enabled = c.api.check(c.api.cuptiActivityEnable(kind), "cuptiActivityEnable");
      if (enabled.ok()) continue;
      disable();
      return enabled;
    }
    return {};
  }

  Result<Trace> stop() override {
    ATTUNE_CHECK(running_);
    Collected& c = collected();
    const Status waited = to_status(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    const Status flushed = c.api.check(
        c.api.cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll");
    disable();
    ATTUNE_RETURN_IF_ERROR(waited);
    ATTUNE_RETURN_IF_ERROR(flushed);
    std::lock_guard lock(c.mutex);
    if (c.dropped > 0) return internal_error(cat("CUPTI lost ", c.dropped, " activities"));
    Trace trace = std::exchange(c.trace, {});
    std::stable_sort(trace.activities.begin(), trace.activities.end(),
                     [](const Activity& a, const Activity& b) { return a.begin_ns < b.begin_ns; });
    return trace;
  }

 private:
  void disable() {
    for (const CUpti_ActivityKind kind : kKinds) collected().api.cuptiActivityDisable(kind);
    running_ = false;
  }

  bool running_ = false;
};

}  // namespace

Result<std::unique_ptr<Tracer>> create_cuda_tracer(const std::string& libraries) {
  ATTUNE_RETURN_IF_ERROR(check_driver(kDriverLibrary));
  Collected& c = collected();
  std::lock_guard lock(c.mutex);
  ATTUNE_CHECK(!c.taken);
  if (!c.api.library) {
    Api api;
    ATTUNE_RETURN_IF_ERROR(api.open(libraries));
    ATTUNE_RETURN_IF_ERROR(
        api.check(api.cuptiActivityRegisterCallbacks(buffer_requested, buffer_completed),
                  "cuptiActivityRegisterCallbacks"));
    c.api = std::move(api);
  }
  c.taken = true;
  return std::unique_ptr<Tracer>(std::make_unique<CuptiTracer>());
}

}  // namespace attune::device
#else
namespace attune::device {

Result<std::unique_ptr<Tracer>> create_cuda_tracer(const std::string& /*libraries*/) {
  return unsupported(
      "this build cannot trace a GPU: the CUDA toolkit that made it had no cupti.h (package "
      "cuda-cupti-dev)");
}

}  // namespace attune::device
#endif
