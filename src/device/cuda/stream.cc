#include "device/cuda/stream.h"

#include <atomic>
#include <utility>

#include "base/check.h"
#include "base/guard.h"
#include "base/log.h"
#include "device/cuda/graph.h"

namespace attune::device {

CudaEvent::CudaEvent(std::shared_ptr<Health> health) : health_(std::move(health)) {
  // A waiting host thread sleeps: there may be fewer cores than threads that wait.
  health_->check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync),
                 "cudaEventCreateWithFlags");
}

CudaEvent::~CudaEvent() {
  if (event_) log_failure(cudaEventDestroy(event_), "cudaEventDestroy");
}

void CudaEvent::record(cudaStream_t stream) {
  recorded_ = health_->ok() && health_->check(cudaEventRecord(event_, stream), "cudaEventRecord");
}

void CudaEvent::make_wait(cudaStream_t stream, Health& health) const {
  // What was waited for never came: nothing that follows can be right.
  if (!health_->ok()) return health.fail(health_->status().with_context("waited for a stream"));
  if (recorded_) health.check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
}

bool CudaEvent::done() const {
  if (!recorded_ || !health_->ok()) return true;
  const cudaError_t state = cudaEventQuery(event_);
  if (state == cudaErrorNotReady) return false;
  health_->check(state, "cudaEventQuery");
  return true;
}

void CudaEvent::wait() {
  if (recorded_ && health_->ok())
    health_->check(cudaEventSynchronize(event_), "cudaEventSynchronize");
}

Notifier::Notifier(int device, std::shared_ptr<Health> health)
    : device_(device), health_(std::move(health)), thread_([this] { loop(); }) {}

Notifier::~Notifier() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  cv_.notify_one();
  thread_.join();
}

void Notifier::add(std::shared_ptr<Event> event, std::function<void()> fn) {
  {
    std::lock_guard lock(mutex_);
    waiting_.push_back({std::move(event), std::move(fn)});
  }
  cv_.notify_one();
}

void Notifier::loop() {
  health_->check(cudaSetDevice(device_), "cudaSetDevice");
  std::unique_lock lock(mutex_);
  for (;;) {
    cv_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
    if (waiting_.empty()) return;  // stopped, and everything has been told
    std::swap(waiting_, taken_);
    lock.unlock();
    for (Notice& notice : taken_) {
      notice.event->wait();
      notice.fn();
      notice = {};
    }
    taken_.clear();
    lock.lock();
  }
}

CudaStream::CudaStream(int device, bool pdl, bool first)
    : device_(device), has_pdl_(pdl), pdl_(pdl) {
  int last_priority = 0, first_priority = 0;
  if (!health_->check(cudaSetDevice(device_), "cudaSetDevice") ||
      !health_->check(cudaDeviceGetStreamPriorityRange(&last_priority, &first_priority),
                      "cudaDeviceGetStreamPriorityRange"))
    return;
  health_->check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                              first ? first_priority : last_priority),
                 "cudaStreamCreateWithPriority");
}

CudaStream::~CudaStream() {
  synchronize();
  notifier_.reset();
  events_.clear();
  if (stream_) log_failure(cudaStreamDestroy(stream_), "cudaStreamDestroy");
}

bool CudaStream::enter() {
  if (!health_->ok()) return false;
  return health_->check(cudaSetDevice(device_), "cudaSetDevice");
}

// A failure inside a capture is the capture's: nothing has run.
void CudaStream::check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  if (!capturing_ || is_sticky(error)) {
    health_->check(error, call);
  } else if (capture_failure_.ok()) {
    capture_failure_ = explain(error, call);
  }
}

Status CudaStream::explain(cudaError_t error, const std::string& call) const {
  if (error != cudaSuccess && !is_sticky(error)) cudaGetLastError();
  return health_->explain(error, call);
}

bool CudaStream::refuse_in_capture() {
  refused_ |= capturing_;
  return capturing_;
}

void CudaStream::fail(const Status& status) {
  if (!capturing_) {
    health_->fail(status);
  } else if (capture_failure_.ok()) {
    capture_failure_ = status;
  }
}

void CudaStream::launch(std::function<void()> fn) {
  if (!enter()) return;
  fn();
  check(cudaGetLastError(), "a launch");
}

void CudaStream::copy(void* to, const void* from, int64_t bytes) {
  if (bytes == 0 || !enter()) return;
  record_launch("copy", {0, 0, 0}, {0, 0, 0},
                {{"to", reinterpret_cast<int64_t>(to)},
                 {"from", reinterpret_cast<int64_t>(from)},
                 {"bytes", bytes}});
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
}

void CudaStream::copy_many(void* const* to, const void* const* from, const size_t* bytes,
                           size_t count) {
  if (count == 0 || !enter()) return;
  record_launch("copies", {0, 0, 0}, {0, 0, 0},
                {{"count", static_cast<int64_t>(count)},
                 {"first to", reinterpret_cast<int64_t>(to[0])},
                 {"first from", reinterpret_cast<int64_t>(from[0])},
                 {"its bytes", static_cast<int64_t>(bytes[0])}});
  cudaMemcpyAttributes how{};
  how.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  how.flags = cudaMemcpyFlagPreferOverlapWithCompute;
  size_t first = 0;
  const cudaError_t error =
      capturing_ ? cudaErrorNotSupported
                 : cudaMemcpyBatchAsync(to, from, bytes, count, &how, &first, 1, stream_);
  if (error != cudaErrorNotSupported) return check(error, "cudaMemcpyBatchAsync");
  if (!capturing_) cudaGetLastError();
  for (size_t i = 0; i < count; ++i)
    check(cudaMemcpyAsync(to[i], from[i], bytes[i], cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
}

void CudaStream::fill(void* to, uint8_t byte, int64_t bytes) {
  if (bytes == 0 || !enter()) return;
  record_launch("fill", {0, 0, 0}, {0, 0, 0},
                {{"to", reinterpret_cast<int64_t>(to)}, {"byte", byte}, {"bytes", bytes}});
  check(cudaMemsetAsync(to, byte, bytes, stream_), "cudaMemsetAsync");
}

// An event that only the pool holds; it grows when all are in use.
std::shared_ptr<CudaEvent> CudaStream::free_event() {
  for (size_t i = 0; i < events_.size(); ++i) {
    next_event_ = (next_event_ + 1) % events_.size();
    if (events_[next_event_].use_count() > 1) continue;
    std::atomic_thread_fence(std::memory_order_acquire);  // after what its last holder did with it
    return events_[next_event_];
  }
  events_.push_back(std::make_shared<CudaEvent>(health_));
  return events_.back();
}

std::shared_ptr<Event> CudaStream::record() {
  const bool usable = !refuse_in_capture() && enter();
  auto event = usable ? free_event() : std::make_shared<CudaEvent>(health_);
  if (usable) event->record(stream_);
  return event;
}

void CudaStream::wait(std::shared_ptr<Event> event) {
  if (refuse_in_capture() || !enter()) return;
  static_cast<CudaEvent&>(*event).make_wait(stream_, *health_);
}

void CudaStream::synchronize() {
  if (refuse_in_capture() || !enter()) return;
  health_->check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

void CudaStream::notify(std::function<void()> fn) {
  if (refuse_in_capture()) return;
  if (!notifier_) notifier_ = std::make_unique<Notifier>(device_, health_);
  notifier_->add(record(), std::move(fn));
}

void CudaStream::record_launch(const char* name, std::array<uint32_t, 3> grid,
                               std::array<uint32_t, 3> block,
                               std::initializer_list<LaunchArg> args) {
  health_->launches().record(name, grid, block, args);
}

Result<cudaGraph_t> CudaStream::capture_graph(const std::string& what,
                                              const std::function<void()>& fn) {
  if (refuse_in_capture() || !enter())
    return health_->ok() ? internal_error("graph '" + what + "': captured inside a capture")
                         : status();
  // Other threads may allocate meanwhile; this one may not.
  ATTUNE_RETURN_IF_ERROR(explain(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
                                 "graph '" + what + "': cudaStreamBeginCapture"));
  capturing_ = true;
  refused_ = false;
  capture_failure_ = {};
  // A capture ends whatever happens in it: else the stream could tell of nothing any more.
  const Status ran = base::guarded(fn);
  check(cudaGetLastError(), "a launch");
  capturing_ = false;
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
  Status status = explain(ended, "cudaStreamEndCapture");
  if (!capture_failure_.ok()) status = capture_failure_;  // it came first
  if (!ran.ok()) status = ran;
  if (!status.ok()) {
    status = status.with_context("graph '" + what + "'");
  } else if (refused_) {
    status = invalid_argument(
        base::cat("graph '", what, "': record, wait, synchronize and notify cannot be captured"));
  }
  if (status.ok()) return graph;
  if (graph) log_failure(cudaGraphDestroy(graph), "cudaGraphDestroy");
  return status;
}

Result<std::unique_ptr<Graph>> CudaStream::capture(const std::string& what,
                                                   const std::function<void()>& fn) {
  return CudaGraph::create(*this, what, fn);
}

void CudaStream::launch_graph(cudaGraphExec_t graph, const std::string& what, int64_t nodes) {
  if (!enter()) return;
  record_launch(what.c_str(), {0, 0, 0}, {0, 0, 0}, {{"graph nodes", nodes}});
  check(cudaGraphLaunch(graph, stream_), "cudaGraphLaunch");
}

base::ThreadPool& CudaStream::pool() {
  ATTUNE_CHECK(!"a CUDA stream has no CPU workers");
  std::abort();
}

}  // namespace attune::device
