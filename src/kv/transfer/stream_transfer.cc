#include "kv/transfer/stream_transfer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace attune::kv {

using base::cat;

struct StreamTransfer::Job {
  std::vector<ops::KvCopyPage> pages;
  Done done;
  std::shared_ptr<device::Event> after;
  Chunks chunks;
  bool begun = false;
  // Of mutex_.
  Status status;
  int32_t in_flight = 0;
  bool handed_over = false;                            // whole, or given up
  std::vector<std::shared_ptr<device::Event>> layers;  // the end of each that is handed over
  Clock::time_point start;
};

class StreamTransfer::Gate final : public LayerGate {
 public:
  Gate(StreamTransfer& owner, JobPtr job) : owner_(owner), job_(std::move(job)) {}
  void wait(int32_t layer, device::Stream& stream) override {
    owner_.wait_for_layer(job_, layer, stream);
  }

 private:
  StreamTransfer& owner_;
  JobPtr job_;
};

namespace {

// Measured on an H200: a chunk begins and ends with little on its way, which costs some 6 us, and
// small copies of other streams wait for none (16 KiB: 12 to 17 us beside them, 10 alone).
constexpr int64_t kChunkBytes = 32 << 20;
constexpr int32_t kChunks = 2;
// The kernel keeps to a rate by itself (ops/kvcopy), about this one; to none beside nobody. While
// pages go both ways to lower ones, since requests to the host's memory queue behind stores to it.
constexpr double kKernelRate = 50e9, kFullRate = 1e12, kSaveBesideLoads = 40e9,
                 kLoadBesideSaves = 43e9;

ops::KvCopyRows rows(const KvGeometry& g, int64_t offset, int64_t head_stride, int64_t token_stride,
                     int32_t dim) {
  const auto bytes = static_cast<int32_t>(dim * g.elem_bytes());
  if (g.order == PageOrder::kTokenMajor)  // the heads of a token lie together
    return {1, g.layer.kv_heads * bytes, offset, 0, token_stride};
  return {g.layer.kv_heads, bytes, offset, head_stride, token_stride};
}

ops::KvCopyParams shape_of(const TransferConfig& c) {
  const PagedKvView& first = c.device.front();
  const KvGeometry& g = c.geometry;
  const int64_t apart = c.device.size() < 2
                            ? 0
                            : static_cast<char*>(c.device[1].base) - static_cast<char*>(first.base);
  ops::KvCopyParams p{.host = c.host.base,
                      .device = static_cast<char*>(first.base),
                      .host_slot_stride = c.host.slot_stride,
                      .host_layer_stride = c.host.layer_stride,
                      .device_slot_stride = first.page_stride,
                      .device_layer_stride = apart,
                      .host_slots = c.host.num_slots,
                      .device_slots = first.num_slots,
                      .piece_bytes = g.piece_bytes()};
  if (c.host.layout != HostLayout::kPageFirst) return p;
  p.tokens = g.page_size;
  p.host_token_stride = c.host.token_stride;
  p.k = rows(g, 0, first.k_head_stride, first.k_token_stride, g.layer.k_dim);
  if (!g.layer.v_in_k)
    p.v = rows(g, first.v_offset, first.v_head_stride, first.v_token_stride, g.layer.v_dim);
  return p;
}

}  // namespace

StreamTransfer::StreamTransfer(const TransferConfig& config, device::Device& device,
                               device::Stream& compute, device::Buffer bad_pages)
    : config_(config),
      ops_(ops::op_table(device.info())),
      compute_(compute),
      bad_pages_(std::move(bad_pages)),
      shape_(shape_of(config)) {
  const TransferTuning& t = config.tuning;
  chunk_bytes_ = t.chunk_bytes > 0 ? t.chunk_bytes : kChunkBytes;
  if (t.chunk_bytes == 0 && config.bytes_per_second > 0)  // of a few ms, whatever the rate
    chunk_bytes_ = std::clamp(static_cast<int64_t>(config.bytes_per_second * 2e-3),
                              int64_t{1} << 20, kChunkBytes);
  chunks_ = t.chunks > 0 ? t.chunks : kChunks;
  for (int way = 0; way < kWays; ++way) {
    lanes_[way].stream = device.create_copy_stream();
    lanes_[way].bad = bad_pages_.as<int32_t>() + way;
  }
  thread_ = std::thread([this] { work(); });
}

StreamTransfer::~StreamTransfer() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    held_ = false;
  }
  cv_.notify_all();
  thread_.join();
}

Status StreamTransfer::status() const {
  for (const Lane& lane : lanes_) ATTUNE_RETURN_IF_ERROR(lane.stream->status());
  return {};
}

void StreamTransfer::save(std::vector<PageCopy> pages, Done done) {
  add(kSave, make_job(std::move(pages), std::move(done)));
}

// What can fail for want of memory comes before the job is in the queue.
std::shared_ptr<LayerGate> StreamTransfer::load(std::vector<PageCopy> pages, Done done) {
  JobPtr job = make_job(std::move(pages), std::move(done));
  auto gate = std::make_shared<Gate>(*this, job);
  add(kLoad, std::move(job));
  return gate;
}

Status StreamTransfer::check_pages(const std::vector<PageCopy>& pages) const {
  for (const PageCopy& p : pages)
    if (p.host.value < 0 || p.host.value >= shape_.host_slots || p.device.value < 0 ||
        p.device.value >= shape_.device_slots)
      return internal_error(cat("a copy between host slot ", p.host.value, " of ",
                                shape_.host_slots, " and device slot ", p.device.value, " of ",
                                shape_.device_slots,
                                ": there is no such slot; nothing was copied"));
  return {};
}

StreamTransfer::JobPtr StreamTransfer::make_job(std::vector<PageCopy> pages, Done done) const {
  auto job = std::make_shared<Job>();
  job->status = check_pages(pages);
  if (job->status.ok())
    for (const PageCopy& p : pages) job->pages.push_back({p.host.value, p.device.value});
  job->done = std::move(done);
  job->after = compute_.record();
  job->chunks = Chunks(static_cast<int32_t>(job->pages.size()), config_.geometry.layers,
                       shape_.piece_bytes, chunk_bytes_);
  return job;
}

void StreamTransfer::add(Way way, JobPtr job) {
  {
    std::lock_guard lock(mutex_);
    const auto pages = static_cast<int64_t>(job->pages.size());
    lanes_[way].queue.push_back(std::move(job));
    stats_.queued_pages += pages;
  }
  cv_.notify_all();
}

// REQUIRES: mutex_
bool StreamTransfer::may_submit(const Lane& lane, Clock::time_point now) const {
  return !held_ && !lane.queue.empty() && lane.in_flight < chunks_ && (stop_ || now >= lane.next);
}

// When the rate next allows anything. REQUIRES: mutex_
StreamTransfer::Clock::time_point StreamTransfer::next_time() const {
  auto first = Clock::time_point::max();
  for (const Lane& lane : lanes_)
    if (!held_ && !lane.queue.empty() && lane.in_flight < chunks_)
      first = std::min(first, stop_ ? Clock::time_point::min() : lane.next);
  return first;
}

// REQUIRES: mutex_
bool StreamTransfer::idle() const {
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [](const Lane& lane) { return lane.queue.empty() && lane.in_flight == 0; });
}

void StreamTransfer::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto ready = [&] {
      const auto now = Clock::now();
      return std::any_of(lanes_.begin(), lanes_.end(),
                         [&](const Lane& lane) { return may_submit(lane, now); });
    };
    while (!ready() && !(stop_ && idle())) {
      const Clock::time_point until = next_time();
      if (until == Clock::time_point::max()) {
        cv_.wait(lock);
      } else {
        cv_.wait_until(lock, until);
      }
    }
    if (stop_ && idle()) return;
    lock.unlock();
    {
      std::lock_guard submit(submit_);
      for (Way way : {kSave, kLoad}) pump(way, /*forced=*/false);
    }
    lock.lock();
  }
}

// REQUIRES: submit_, as do the next ones.
void StreamTransfer::pump(Way way, bool forced) {
  while (submit_next(way, forced)) continue;
}

// Hands over one chunk, if it may: `forced` is without limits. False: nothing more now.
bool StreamTransfer::submit_next(Way way, bool forced) {
  Lane& lane = lanes_[way];
  JobPtr job;
  Chunk chunk;
  double rate = 0;
  {
    std::lock_guard lock(mutex_);
    if (lane.queue.empty() || (!forced && !may_submit(lane, Clock::now()))) return false;
    job = lane.queue.front();
    if (job->status.ok()) job->status = lane.stream->status();
    rate = kernel_rate(way, lanes_[1 - way].in_flight > 0, forced);
    const bool nothing = job->chunks.done() || !job->status.ok();
    if (!nothing) chunk = job->chunks.next();
    job->handed_over = nothing || job->chunks.done();
    if (job->handed_over) lane.queue.pop_front();
    ++lane.in_flight;
    ++job->in_flight;
    if (config_.bytes_per_second > 0)
      lane.next = std::max(lane.next, Clock::now()) +
                  std::chrono::nanoseconds(static_cast<int64_t>(
                      1e9 * static_cast<double>(shape_.piece_bytes * chunk.pages * chunk.layers) /
                      config_.bytes_per_second));
  }
  if (!std::exchange(job->begun, true)) begin(way, *job);
  if (auto resumed = std::exchange(lane.resumed, nullptr)) lane.stream->wait(std::move(resumed));
  if (chunk.pages > 0) copy(way, *job, chunk, rate);
  auto end = lane.stream->record();
  {
    std::lock_guard lock(mutex_);
    for (int32_t l = 0; l < chunk.layers; ++l) {
      const bool whole = chunk.first_page + chunk.pages == static_cast<int32_t>(job->pages.size());
      if (whole) job->layers.push_back(end);
    }
    lane.last = std::move(end);
  }
  lane.stream->notify([this, way, job] { chunk_done(way, job); });
  return true;
}

// What the kernel is to keep to; 0: what it does by itself.
double StreamTransfer::kernel_rate(Way way, bool both_ways, bool forced) const {
  double rate = alone_ ? kFullRate : 0;
  if (both_ways) rate = way == kSave ? kSaveBesideLoads : kLoadBesideSaves;
  if (forced || config_.bytes_per_second == 0) return rate;
  // Evenly, instead of a chunk at the full rate now and then.
  return std::min(config_.bytes_per_second, rate > 0 ? rate : kKernelRate);
}

void StreamTransfer::begin(Way way, Job& job) {
  device::Stream& stream = *lanes_[way].stream;
  sort_for_runs(job.pages);
  stream.wait(std::move(job.after));
  stream.notify([this, &job] {  // the job lives until its last chunk's notice, which comes later
    std::lock_guard lock(mutex_);
    job.start = Clock::now();
  });
}

ops::KvCopyParams StreamTransfer::params(Way way, const Job& job, const Chunk& chunk,
                                         double rate) const {
  ops::KvCopyParams p = shape_;
  p.to_host = way == kSave;
  p.pages = job.pages.data() + chunk.first_page;
  p.count = chunk.pages;
  p.first_layer = chunk.first_layer;
  p.layers = chunk.layers;
  p.bad = lanes_[way].bad;
  p.tuning = way == kSave ? config_.tuning.save : config_.tuning.load;
  if (p.tuning.bytes_per_second == 0) p.tuning.bytes_per_second = rate;
  return p;
}

void StreamTransfer::copy(Way way, Job& job, const Chunk& chunk, double rate) {
  device::Stream& stream = *lanes_[way].stream;
  const ops::KvCopyParams p = params(way, job, chunk, rate);
  if (config_.io == IoBackend::kDirect) {
    list_.clear();
    list_copies(p, config_.host_part_bytes, list_);
    stream.copy_many(list_.to.data(), list_.from.data(), list_.bytes.data(), list_.count());
  } else {
    stream.launch([this, p, &stream] { ops_.kv_copy(p, stream); });
  }
}

// On a thread of the device.
void StreamTransfer::chunk_done(Way way, const JobPtr& job) {
  Lane& lane = lanes_[way];
  bool last = false;
  {
    std::lock_guard lock(mutex_);
    if (job->status.ok()) job->status = lane.stream->status();
    const int32_t bad = *static_cast<volatile int32_t*>(lane.bad);
    if (bad != lane.bad_seen && job->status.ok())
      job->status = internal_error(cat(bad - lane.bad_seen, " pages had slots outside of a pool"));
    lane.bad_seen = bad;
    if (!job->status.ok() && !job->handed_over) {  // the rest of it is given up
      std::erase(lane.queue, job);
      job->handed_over = true;
    }
    --job->in_flight;
    last = job->handed_over && job->in_flight == 0;
    if (last) finish(way, job);
  }
  // Before the chunk counts as done: the destructor waits for that.
  if (last) std::exchange(job->done, nullptr)(job->status);  // it may hold the job's gate
  {
    std::lock_guard lock(mutex_);
    --lane.in_flight;
  }
  cv_.notify_all();
}

// REQUIRES: mutex_
void StreamTransfer::finish(Way way, const JobPtr& job) {
  const auto pages = static_cast<int64_t>(job->pages.size());
  stats_.queued_pages -= pages;
  if (!job->status.ok()) {
    ++(way == kSave ? stats_.failed_saves : stats_.failed_loads);
    // Of a load its step speaks.
    if (way == kSave && complaints_.may())
      base::log_warning("KV cache: pages were not copied to the host: ", job->status.message(),
                        "; the device alone has them");
  }
  if (!job->status.ok() || pages == 0) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - job->start).count();
  const auto bytes = static_cast<uint64_t>(pages * config_.geometry.page_bytes());
  (way == kSave ? stats_.saved_pages : stats_.loaded_pages) += static_cast<uint64_t>(pages);
  (way == kSave ? stats_.saved_bytes : stats_.loaded_bytes) += bytes;
  (way == kSave ? stats_.save_seconds : stats_.load_seconds) += seconds;
}

void StreamTransfer::wait_for_layer(const JobPtr& job, int32_t layer, device::Stream& stream) {
  std::shared_ptr<device::Event> end;
  const auto ready = [&] {
    std::lock_guard lock(mutex_);
    const bool there = layer < static_cast<int32_t>(job->layers.size());
    if (there) end = job->layers[layer];
    return there || job->handed_over;
  };
  {
    std::lock_guard submit(submit_);
    while (!ready() && submit_next(kLoad, /*forced=*/true)) continue;
  }
  if (!end) return;
  if (stream.kind() == device::Kind::kCuda) {
    stream.wait(std::move(end));
  } else {
    end->wait();
  }
}

void StreamTransfer::hold() {
  std::lock_guard submit(submit_);
  pump(kLoad, /*forced=*/true);
  std::vector<std::shared_ptr<device::Event>> under_way;
  {
    std::lock_guard lock(mutex_);
    held_ = true;
    for (const Lane& lane : lanes_)
      if (lane.in_flight > 0 && lane.last) under_way.push_back(lane.last);
  }
  for (auto& event : under_way) compute_.wait(std::move(event));
}

// A step may follow at once and hold them again: then this is when they get on.
void StreamTransfer::resume() {
  std::lock_guard submit(submit_);
  const auto event = compute_.record();
  {
    std::lock_guard lock(mutex_);
    held_ = false;
  }
  for (Way way : {kSave, kLoad}) {
    lanes_[way].resumed = event;
    pump(way, /*forced=*/false);
  }
}

TransferStats StreamTransfer::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

Result<std::unique_ptr<Transfer>> Transfer::create(const TransferConfig& config,
                                                   device::Device& device,
                                                   device::Stream& compute) {
  ATTUNE_CHECK(static_cast<int32_t>(config.device.size()) == config.geometry.layers);
  ATTUNE_CHECK(config.geometry.layers > 0);
  const auto base = [&](size_t l) { return static_cast<char*>(config.device[l].base); };
  for (size_t l = 2; l < config.device.size(); ++l)
    if (base(l) - base(l - 1) != base(1) - base(0))
      return invalid_argument(cat("the device pool's layer ", l, " is ", base(l) - base(l - 1),
                                  " bytes behind the one before, layer 1 ", base(1) - base(0),
                                  ": copies need them equally far apart"));
  if (config.io == IoBackend::kDirect && config.host.layout == HostLayout::kPageFirst)
    return unsupported(
        "--hicache-mem-layout page_first with --hicache-io-backend direct: each token would be a "
        "copy of its own; use the io backend kernel, or the layout page_first_direct");
  ATTUNE_ASSIGN_OR_RETURN(device::Buffer bad,
                          device.allocate_pinned(64, "counters of the KV transfer"));
  auto transfer = std::make_unique<StreamTransfer>(config, device, compute, std::move(bad));
  ATTUNE_RETURN_IF_ERROR(transfer->status());
  return std::unique_ptr<Transfer>(std::move(transfer));
}

}  // namespace attune::kv
