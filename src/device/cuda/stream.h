// A stream, its events and the thread that tells of their completion.
#pragma once

#include <cuda_runtime.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "device/cuda/error.h"
#include "device/device.h"

namespace attune::device {

// Lives in its stream's pool and is used again once nobody else holds it.
class CudaEvent final : public Event {
 public:
  explicit CudaEvent(std::shared_ptr<Health> health);
  ~CudaEvent() override;
  void record(cudaStream_t stream);
  void make_wait(cudaStream_t stream, Health& health) const;
  // After a failure: true, and wait() returns; the stream's status() says why.
  bool done() const override;
  void wait() override;

 private:
  std::shared_ptr<Health> health_;
  cudaEvent_t event_ = nullptr;
  bool recorded_ = false;
};

// Runs functions when their event has passed, in order, on a thread of its own: a host function in
// the stream would not be called once the device has failed, and whoever waits for it would hang.
class Notifier {
 public:
  Notifier(int device, std::shared_ptr<Health> health);
  ~Notifier();
  void add(std::shared_ptr<Event> event, std::function<void()> fn);

 private:
  struct Notice {
    std::shared_ptr<Event> event;
    std::function<void()> fn;
  };
  void loop();

  int device_;
  std::shared_ptr<Health> health_;
  std::mutex mutex_;
  std::condition_variable cv_;
  std::vector<Notice> waiting_, taken_;  // they change places, so that neither allocates for long
  bool stop_ = false;
  std::thread thread_;
};

// launch() calls the function at once. Host and device memory is allocated only while there are
// more events or notices under way than ever before, and in capture().
class CudaStream final : public Stream {
 public:
  // `first`: its kernels' CTAs come before those of other streams.
  CudaStream(int device, bool pdl, bool first = false);
  ~CudaStream() override;
  Kind kind() const override { return Kind::kCuda; }
  void launch(std::function<void()> fn) override;
  void copy(void* to, const void* from, int64_t bytes) override;
  void copy_many(void* const* to, const void* const* from, const size_t* bytes,
                 size_t count) override;
  void fill(void* to, uint8_t byte, int64_t bytes) override;
  std::shared_ptr<Event> record() override;
  void wait(std::shared_ptr<Event> event) override;
  void synchronize() override;
  void notify(std::function<void()> fn) override;
  Result<std::unique_ptr<Graph>> capture(const std::string& what,
                                         const std::function<void()>& fn) override;
  Status status() const override { return health_->status(); }
  void fail(const Status& status) override;
  base::ThreadPool& pool() override;
  bool pdl() const override { return pdl_; }
  void set_pdl(bool on) override { pdl_ = on && has_pdl_; }
  void* native() const override { return stream_; }
  void record_launch(const char* name, std::array<uint32_t, 3> grid, std::array<uint32_t, 3> block,
                     std::initializer_list<LaunchArg> args) override;

  // What fn launches, as a graph that the caller owns.
  Result<cudaGraph_t> capture_graph(const std::string& what, const std::function<void()>& fn);
  // ok, or the error with the launches before it; the stream's own status stays as it is.
  Status explain(cudaError_t error, const std::string& call) const;
  void launch_graph(cudaGraphExec_t graph, const std::string& what, int64_t nodes);

 private:
  // Makes the device current for this thread; false once the stream has failed.
  bool enter();
  void check(cudaError_t error, const char* call);
  bool refuse_in_capture();
  std::shared_ptr<CudaEvent> free_event();

  int device_;
  const bool has_pdl_;
  bool pdl_;
  std::shared_ptr<Health> health_ = std::make_shared<Health>();
  cudaStream_t stream_ = nullptr;
  std::vector<std::shared_ptr<CudaEvent>> events_;
  size_t next_event_ = 0;
  std::unique_ptr<Notifier> notifier_;
  bool capturing_ = false, refused_ = false;
  Status capture_failure_;
};

}  // namespace attune::device
