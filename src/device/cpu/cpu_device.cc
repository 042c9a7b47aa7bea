#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>

#include "base/log.h"
#include "device/device.h"
#include "device/host_memory.h"

namespace attune::device {
namespace {

class CpuEvent final : public Event {
 public:
  bool done() const override { return done_.load(std::memory_order_acquire); }
  void wait() override {
    std::unique_lock lock(mutex_);
    cv_.wait(lock, [&] { return done(); });
  }
  void set() {
    std::lock_guard lock(mutex_);
    done_.store(true, std::memory_order_release);
    cv_.notify_all();
  }

 private:
  std::atomic<bool> done_{false};
  std::mutex mutex_;
  std::condition_variable cv_;
};

Status cannot_capture(const std::string& graph) {
  return invalid_argument(
      base::cat("graph '", graph, "': record, wait, synchronize and notify cannot be captured"));
}

using Work = std::vector<std::function<void()>>;

class CpuStream final : public Stream {
 public:
  explicit CpuStream(int threads) : pool_(threads), thread_([this] { loop(); }) {}
  ~CpuStream() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    cv_.notify_one();
    thread_.join();
  }
  Kind kind() const override { return Kind::kCpu; }
  void launch(std::function<void()> fn) override {
    if (captured_) {
      captured_->push_back(std::move(fn));
      return;
    }
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(fn));
    }
    cv_.notify_one();
  }
  void copy(void* to, const void* from, int64_t bytes) override {
    launch([=] { std::memcpy(to, from, bytes); });
  }
  void copy_many(void* const* to, const void* const* from, const size_t* bytes,
                 size_t count) override {
    struct Copy {
      void* to;
      const void* from;
      size_t bytes;
    };
    std::vector<Copy> copies(count);
    for (size_t i = 0; i < count; ++i) copies[i] = {to[i], from[i], bytes[i]};
    launch([copies = std::move(copies)] {
      for (const Copy& c : copies) std::memcpy(c.to, c.from, c.bytes);
    });
  }
  void fill(void* to, uint8_t byte, int64_t bytes) override {
    launch([=] { std::memset(to, byte, bytes); });
  }
  std::shared_ptr<Event> record() override {
    auto event = std::make_shared<CpuEvent>();
    if (refuse_in_capture()) {
      event->set();
    } else {
      launch([event] { event->set(); });
    }
    return event;
  }
  void wait(std::shared_ptr<Event> event) override {
    if (!refuse_in_capture()) launch([event = std::move(event)] { event->wait(); });
  }
  void synchronize() override { record()->wait(); }
  void notify(std::function<void()> fn) override {
    if (!refuse_in_capture()) launch(std::move(fn));
  }
  Result<std::unique_ptr<Graph>> capture(const std::string& what,
                                         const std::function<void()>& fn) override;
  Result<Work> capture_work(const std::string& what, const std::function<void()>& fn) {
    Work work;
    captured_ = &work;
    refused_ = false;
    fn();
    captured_ = nullptr;
    if (refused_) return cannot_capture(what);
    return work;
  }
  base::ThreadPool& pool() override { return pool_; }

 private:
  bool refuse_in_capture() {
    if (!captured_) return false;
    refused_ = true;
    return true;
  }
  void loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      cv_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;  // stopped, and everything launched has run
      std::function<void()> fn = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      fn();
      fn = nullptr;
      lock.lock();
    }
  }

  base::ThreadPool pool_;
  Work* captured_ = nullptr;  // of the producer's thread, as is refused_
  bool refused_ = false;
  std::mutex mutex_;
  std::condition_variable cv_;
  std::deque<std::function<void()>> queue_;
  bool stop_ = false;
  std::thread thread_;
};

class CpuGraph final : public Graph {
 public:
  CpuGraph(std::string what, Work work)
      : what_(std::move(what)), work_(std::make_shared<Work>(std::move(work))) {}
  void launch(Stream& stream) override {
    stream.launch([work = work_] {
      for (const auto& fn : *work) fn();
    });
  }
  Result<GraphUpdate> update(Stream& stream, const std::function<void()>& fn) override {
    ATTUNE_ASSIGN_OR_RETURN(Work work, static_cast<CpuStream&>(stream).capture_work(what_, fn));
    work_ = std::make_shared<Work>(std::move(work));
    return GraphUpdate::kInPlace;
  }
  int64_t nodes() const override { return static_cast<int64_t>(work_->size()); }

 private:
  std::string what_;
  std::shared_ptr<Work> work_;  // launches that still run keep theirs
};

Result<std::unique_ptr<Graph>> CpuStream::capture(const std::string& what,
                                                  const std::function<void()>& fn) {
  ATTUNE_ASSIGN_OR_RETURN(Work work, capture_work(what, fn));
  return std::unique_ptr<Graph>(std::make_unique<CpuGraph>(what, std::move(work)));
}

std::string cpu_model_name() {
  std::ifstream in("/proc/cpuinfo");
  std::string line;
  while (std::getline(in, line))
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "CPU";
}

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

class CpuDevice final : public Device {
 public:
  CpuDevice(int threads, CpuIsa isa) {
    info_.threads = threads;
    info_.isa = isa;
    info_.fast_bf16 = isa >= CpuIsa::kAvx512Bf16 && cpu_bf16_is_fast();
    info_.name = base::cat(cpu_model_name(), " (", cpu_isa_name(isa), ", ", threads,
                           threads == 1 ? " thread)" : " threads)");
    const HostMemory memory = host_memory();
    info_.total_memory = memory.total;
    info_.free_memory = memory.available;
  }
  const DeviceInfo& info() const override { return info_; }

  // Anonymous maps: zero pages that cost memory only once touched.
  Result<Buffer> allocate(int64_t bytes, const std::string& what) override {
    if (bytes <= 0) return Buffer();
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
      return resource_exhausted(
          base::cat("cannot allocate ", bytes, " bytes for ", what, ": ", std::strerror(errno)));
    madvise(p, bytes, MADV_HUGEPAGE);
    return Buffer(p, bytes, [bytes](void* q) { munmap(q, bytes); });
  }
  Result<Buffer> allocate_pinned(int64_t bytes, const std::string& what) override {
    return allocate(bytes, what);
  }
  std::unique_ptr<Stream> create_stream() override {
    return std::make_unique<CpuStream>(info_.threads);
  }
  std::unique_ptr<Stream> create_copy_stream() override { return std::make_unique<CpuStream>(1); }

 private:
  DeviceInfo info_;
};

}  // namespace

Result<std::unique_ptr<Device>> create_cpu_device(int threads, const std::string& isa_name) {
  const CpuIsa have = detect_cpu_isa();
  CpuIsa want = have;
  if (isa_name != "auto" && !isa_name.empty()) {
    bool known = false;
    for (int i = 0; i <= static_cast<int>(CpuIsa::kAvx512Bf16); ++i) {
      if (isa_name != cpu_isa_name(static_cast<CpuIsa>(i))) continue;
      want = static_cast<CpuIsa>(i);
      known = true;
    }
    if (!known)
      return invalid_argument("cpu-isa '" + isa_name +
                              "' is unknown: use auto, avx2, avx512, avx512_vnni or avx512_bf16");
    if (want > have)
      return unsupported(base::cat("cpu-isa '", isa_name,
                                   "' is not offered by this CPU, whose level is ",
                                   cpu_isa_name(have), ": leave --cpu-isa at auto"));
  }
  if (threads <= 0) threads = usable_cores();
  return std::unique_ptr<Device>(std::make_unique<CpuDevice>(threads, want));
}

}  // namespace attune::device
