// Transfer over device streams: one stream and one queue for each direction, and a thread that
// hands over the next chunk whenever one is done.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "base/throttle.h"
#include "kv/transfer/copy_plan.h"
#include "kv/transfer/transfer.h"

namespace attune::kv {

class StreamTransfer final : public Transfer {
 public:
  StreamTransfer(const TransferConfig& config, device::Device& device, device::Stream& compute,
                 device::Buffer bad_pages);
  ~StreamTransfer() override;
  void save(std::vector<PageCopy> pages, Done done) override;
  std::shared_ptr<LayerGate> load(std::vector<PageCopy> pages, Done done) override;
  void hold() override;
  void resume() override;
  void set_alone(bool alone) override { alone_ = alone; }
  TransferStats stats() const override;
  Status status() const;  // of the streams

 private:
  using Clock = std::chrono::steady_clock;
  enum Way : int { kSave, kLoad, kWays };
  class Gate;
  struct Job;
  using JobPtr = std::shared_ptr<Job>;
  struct Lane {
    std::unique_ptr<device::Stream> stream;
    std::deque<JobPtr> queue;  // not yet handed over whole
    int32_t in_flight = 0;     // chunks
    int32_t bad_seen = 0;
    int32_t* bad = nullptr;
    Clock::time_point next;                  // the rate's limit: not before
    std::shared_ptr<device::Event> last;     // the last chunk's end
    std::shared_ptr<device::Event> resumed;  // to wait for before the next chunk; of submit_
  };

  JobPtr make_job(std::vector<PageCopy> pages, Done done) const;
  void add(Way way, JobPtr job);
  Status check_pages(const std::vector<PageCopy>& pages) const;
  void work();
  bool may_submit(const Lane& lane, Clock::time_point now) const;
  Clock::time_point next_time() const;
  bool idle() const;
  void pump(Way way, bool forced);
  bool submit_next(Way way, bool forced);
  double kernel_rate(Way way, bool both_ways, bool forced) const;
  void begin(Way way, Job& job);
  void copy(Way way, Job& job, const Chunk& chunk, double rate);
  void chunk_done(Way way, const JobPtr& job);
  void fail_queued(Way way);
  void finish(Way way, const JobPtr& job);
  void wait_for_layer(const JobPtr& job, int32_t layer, device::Stream& stream);
  ops::KvCopyParams params(Way way, const Job& job, const Chunk& chunk, double rate) const;

  const TransferConfig config_;
  const ops::OpTable& ops_;
  device::Stream& compute_;
  const device::Buffer bad_pages_;  // [kWays], counted by kernels
  int64_t chunk_bytes_;
  int32_t chunks_;
  ops::KvCopyParams shape_;  // what all copies share

  // Held while something is given to a stream; before mutex_, never inside it.
  std::mutex submit_;
  CopyList list_;

  mutable std::mutex mutex_;  // of all below
  std::condition_variable cv_;
  std::array<Lane, kWays> lanes_;
  TransferStats stats_;
  base::Throttle complaints_;
  bool held_ = false, stop_ = false;
  std::atomic<bool> alone_{false};
  std::thread thread_;  // last: it uses the rest
};

}  // namespace attune::kv
