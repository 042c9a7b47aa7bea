// Devices as the layers above see them. On the CPU a stream is a thread that runs what was launched
// in order; on a GPU launch() calls the function at once, since the calls inside are asynchronous.
// Model code therefore reads the same for both.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "attune/status.h"
#include "base/thread_pool.h"

namespace attune::device {

enum class Kind : uint8_t { kCpu, kCuda };

// Levels of the CPU kernels, each including the ones before it. kAvx2 is x86-64-v3.
enum class CpuIsa : uint8_t { kAvx2, kAvx512, kAvx512Vnni, kAvx512Bf16 };
const char* cpu_isa_name(CpuIsa isa);  // "avx2", "avx512", "avx512_vnni", "avx512_bf16"
// The highest level that CPUID and XCR0 allow here.
CpuIsa detect_cpu_isa();
// Whether this CPU's bf16 dot products beat its float32 ones. AMD's do (Zen 4: 446 against 161
// GFLOP/s in oneDNN on two cores); on Intel's cores VDPBF16PS has half the issue rate of FMA, so
// that float32 is both faster and exact (Sapphire Rapids, docs/performance.md).
bool cpu_bf16_is_fast();

struct DeviceInfo {
  Kind kind = Kind::kCpu;
  std::string name;            // "AMD EPYC ..., avx2, 2 threads"
  int32_t threads = 1;         // CPU only
  CpuIsa isa = CpuIsa::kAvx2;  // CPU only
  bool fast_bf16 = false;      // CPU only: at this level, see cpu_bf16_is_fast
  int32_t index = 0;           // CUDA only, as are the next six
  int32_t sm = 0;              // compute capability: 90 for Hopper
  int32_t multiprocessors = 0;
  int64_t l2_bytes = 0;
  int32_t numa_node =
      -1;  // CUDA only: of the host memory that is near; -1: unknown, or there is one
  std::string libraries;  // CUDA only: where cuBLASLt and cuDNN are looked for, --cuda-libraries
  int64_t total_memory = 0,
          free_memory = 0;  // bytes; free at creation (MemAvailable, cgroup limit)
};

// Aligned, zero-initialised device memory; move-only.
class Buffer {
 public:
  Buffer() = default;
  Buffer(void* data, int64_t bytes, std::function<void(void*)> free)
      : data_(data), bytes_(bytes), free_(std::move(free)) {}
  Buffer(Buffer&& o) noexcept { *this = std::move(o); }
  Buffer& operator=(Buffer&& o) noexcept {
    if (this != &o) {
      reset();
      data_ = std::exchange(o.data_, nullptr);
      bytes_ = std::exchange(o.bytes_, 0);
      free_ = std::move(o.free_);
    }
    return *this;
  }
  ~Buffer() { reset(); }
  void reset() {
    if (data_) free_(data_);
    data_ = nullptr;
    bytes_ = 0;
  }
  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  std::function<void(void*)> free_;
};

// Marks a point of a stream. wait() blocks the calling host thread.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool done() const = 0;
  virtual void wait() = 0;
};

class Stream;

enum class GraphUpdate : uint8_t { kInPlace, kInstantiated };

// Work that was captured once and can be launched any number of times: the same calls with the same
// arguments, so what changes between launches lies in the memory that these point to. May outlive
// the stream that captured it, not the device.
class Graph {
 public:
  virtual ~Graph() = default;
  // Runs the work on `stream`, after what was launched there before. A failure is in its status().
  virtual void launch(Stream& stream) = 0;
  // Puts what fn launches on `stream` in place of the work: kernels of the same shape are changed
  // in place, else the graph is instantiated anew. After a failure the graph is as it was.
  virtual Result<GraphUpdate> update(Stream& stream, const std::function<void()>& fn) = 0;
  // Kernels, copies and fills; on the CPU, launched functions.
  virtual int64_t nodes() const = 0;
};

// A number among a launch's arguments; the name is a literal.
struct LaunchArg {
  const char* name;
  int64_t value;
};

// In order, one producer thread.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Kind kind() const = 0;
  virtual void launch(std::function<void()> fn) = 0;
  // What the host passes here must be pinned (Device::allocate_pinned) for the call not to wait,
  // and stay until the copy is done.
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;
  // The same of `count` copies, in any order among themselves; the arrays are read by the call.
  virtual void copy_many(void* const* to, const void* const* from, const size_t* bytes,
                         size_t count) = 0;
  virtual void fill(void* to, uint8_t byte, int64_t bytes) = 0;
  virtual std::shared_ptr<Event> record() = 0;
  // What is launched from here on starts after `event`, which may be another stream's of this
  // device.
  virtual void wait(std::shared_ptr<Event> event) = 0;
  virtual void synchronize() = 0;
  // fn runs on a thread of the device once everything launched before is done, or has failed (see
  // status()). It must not block nor launch.
  virtual void notify(std::function<void()> fn) = 0;
  // Calls fn, which launches, copies and fills on this stream; that work is not run but kept.
  // record, wait, synchronize and notify cannot be captured. `what` names the graph in messages.
  virtual Result<std::unique_ptr<Graph>> capture(const std::string& what,
                                                 const std::function<void()>& fn) = 0;
  // ok, or the first failure of anything launched here, with the launches before it; then nothing
  // more is launched. unavailable: the device is lost to this process, which has to be restarted.
  // Any thread.
  virtual Status status() const { return {}; }
  // CUDA only: what a library was to launch here failed, which is this stream's failure, or in a
  // capture that one's.
  virtual void fail(const Status& /*status*/) {}
  // CPU only: the workers that ops may use, from inside a launched function.
  virtual base::ThreadPool& pool() = 0;
  // CUDA only: whether kernels are launched with programmatic dependent launch, so that one may
  // start before the last has ended. The switch for all of them; on where the GPU has it.
  virtual bool pdl() const { return false; }
  virtual void set_pdl(bool /*on*/) {}
  // CUDA only: the cudaStream_t.
  virtual void* native() const { return nullptr; }
  // CUDA only: a kernel's launch says before what it launches, for messages. Allocates nothing.
  virtual void record_launch(const char* /*name*/, std::array<uint32_t, 3> /*grid*/,
                             std::array<uint32_t, 3> /*block*/,
                             std::initializer_list<LaunchArg> /*args*/) {}
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;
  virtual Result<Buffer> allocate(int64_t bytes, const std::string& what) = 0;
  // Zeroed host memory that the device copies from and to without the host waiting.
  virtual Result<Buffer> allocate_pinned(int64_t bytes, const std::string& what) = 0;
  // Bytes that are free now, as far as the device tells; else 0.
  virtual int64_t free_memory() const { return 0; }
  // Where no stream can be made, one whose status() says why.
  virtual std::unique_ptr<Stream> create_stream() = 0;
  // For copies that go on beside other streams' work: its few CTAs come before theirs; on the CPU
  // it has one thread.
  virtual std::unique_ptr<Stream> create_copy_stream() { return create_stream(); }
  // Makes host memory such as allocate_pinned gives of memory that is there, whole pages of it,
  // until unpin with the same range. No copy may lie across two ranges. Errors: resource_exhausted.
  virtual Status pin(void* /*data*/, int64_t /*bytes*/) { return {}; }
  virtual void unpin(void* /*data*/) {}
};

// threads 0: one per core this process may use; isa above what the host has: refused.
Result<std::unique_ptr<Device>> create_cpu_device(int threads, const std::string& isa_name);
// `libraries`: folders of cuBLASLt and cuDNN, separated by ':'; empty: the usual places.
// unsupported with what is missing: CUDA in this build, a driver, a GPU that its kernels run on.
Result<std::unique_ptr<Device>> create_cuda_device(int index, const std::string& libraries = "");

}  // namespace attune::device
