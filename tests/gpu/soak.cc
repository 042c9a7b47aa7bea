#include "soak.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "base/log.h"
#include "bench/attention_neighbours.h"
#include "kv/transfer/host_pool.h"
#include "kv/transfer/transfer.h"

namespace attune::soak {
namespace {

using kv::DeviceSlot;
using kv::HostSlot;
using tensor::DType;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// What one step gives to attention: the host's arrays, and their image in pinned memory.
struct Set {
  std::vector<int32_t> q_indptr, kv_len, page_indptr, page_slots;
  int32_t* image = nullptr;
};

// Two streams of pages between the pools: saves of any page that attention reads, loads of NaN into
// pages that it does not.
class Copies {
 public:
  Copies(kv::Transfer& transfer, const Shape& shape, int32_t first_copied)
      : transfer_(transfer), shape_(shape), first_copied_(first_copied) {
    thread_ = std::thread([this] { loop(); });
  }
  ~Copies() { (void)stop(); }
  Status stop() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    cv_.notify_all();
    if (thread_.joinable()) thread_.join();
    std::unique_lock lock(mutex_);
    cv_.wait(lock, [&] { return under_way_[0] + under_way_[1] == 0; });
    return status_;
  }
  // By host slot: the device slot that was saved there last; -1: none.
  const std::vector<int32_t>& saved() const { return saved_; }

 private:
  static constexpr int kAtOnce = 3;

  void loop() {
    std::mt19937 random(5);
    const int32_t sources = shape_.host_slots / 3, targets = shape_.host_slots - sources;
    saved_.assign(targets, -1);
    std::vector<int32_t> from_host(sources), to_host(targets), to_device(shape_.copied_slots);
    std::iota(to_host.begin(), to_host.end(), 0);
    std::iota(from_host.begin(), from_host.end(), targets);
    std::iota(to_device.begin(), to_device.end(), first_copied_);
    std::unique_lock lock(mutex_);
    for (int call = 0;; ++call) {
      const int way = call % 2;
      cv_.wait(lock, [&] { return stop_ || under_way_[way] < kAtOnce; });
      if (stop_ || !status_.ok()) return;
      ++under_way_[way];
      lock.unlock();
      std::vector<int32_t>& host = way == 0 ? to_host : from_host;
      std::vector<kv::PageCopy> pages;
      const int32_t count = std::min<int32_t>(16, targets / (2 * kAtOnce));
      for (int32_t i = 0; i < count; ++i) {
        const int32_t h = host[at_[way]++ % host.size()];
        int32_t d = 1 + static_cast<int32_t>(random() % (first_copied_ - 1 - shape_.seqs));
        if (way == 0) {
          saved_[h] = d;
        } else {
          d = to_device[device_at_++ % to_device.size()];
        }
        pages.push_back({HostSlot(h), DeviceSlot(d)});
      }
      const auto done = [this, way](Status status) {
        std::lock_guard inner(mutex_);
        if (status_.ok()) status_ = std::move(status);
        --under_way_[way];
        cv_.notify_all();
      };
      if (way == 0) {
        transfer_.save(std::move(pages), done);
      } else {
        transfer_.load(std::move(pages), done);
      }
      lock.lock();
    }
  }

  kv::Transfer& transfer_;
  const Shape shape_;
  const int32_t first_copied_;
  std::vector<int32_t> saved_;
  size_t at_[2] = {0, 0}, device_at_ = 0;
  std::mutex mutex_;
  std::condition_variable cv_;
  int under_way_[2] = {0, 0};
  bool stop_ = false;
  Status status_;
  std::thread thread_;
};

// Device slots: 0 the padding, then full pages, then the page of each sequence's newest row, then
// those that are copied to.
class Soak {
 public:
  // `backend` null: the planted fault.
  static Result<std::unique_ptr<Soak>> create(const Shape& shape, device::Device& device,
                                              const attention::Backend* backend, bool pdl) {
    std::unique_ptr<Soak> s(new Soak(shape, device, backend));
    s->stream_->set_pdl(pdl);
    ATTUNE_RETURN_IF_ERROR(s->make_pools());
    s->make_sets();
    ATTUNE_RETURN_IF_ERROR(s->make_arrays());
    ATTUNE_RETURN_IF_ERROR(s->make_attention());
    return s;
  }
  ~Soak() { stream_->synchronize(); }

  Result<Outcome> run(double seconds) {
    Outcome outcome;
    for (int32_t set = 0; set < shape_.sets; ++set) ATTUNE_RETURN_IF_ERROR(step(set, true));
    outcome.outputs = hash_of_first();
    const double before = seconds_now();
    while (seconds_now() - before < std::min(seconds / 4, 10.0) ||
           outcome.steps_alone < 2 * shape_.sets)
      ATTUNE_RETURN_IF_ERROR(
          step(static_cast<int32_t>(outcome.steps_alone++ % shape_.sets), false));
    outcome.alone = differences();
    outcome.step_alone = (seconds_now() - before) / static_cast<double>(outcome.steps_alone);
    ATTUNE_ASSIGN_OR_RETURN(auto transfer, kv::Transfer::create(transfer_, device_, *quiet_));
    Copies copies(*transfer, shape_, first_copied_);
    const double start = seconds_now();
    while (seconds_now() - start < seconds || outcome.steps < shape_.sets)
      ATTUNE_RETURN_IF_ERROR(step(static_cast<int32_t>(outcome.steps++ % shape_.sets), false));
    stream_->synchronize();
    const double took = seconds_now() - start;
    outcome.step_beside = took / static_cast<double>(outcome.steps);
    const kv::TransferStats stats = transfer->stats();
    ATTUNE_RETURN_IF_ERROR(copies.stop());
    outcome.saved = static_cast<double>(stats.saved_bytes) / took;
    outcome.loaded = static_cast<double>(stats.loaded_bytes) / took;
    outcome.beside = differences();
    outcome.beside.words -= outcome.alone.words;
    outcome.beside.far -= outcome.alone.far;
    ATTUNE_RETURN_IF_ERROR(check_saved(copies.saved()));
    return outcome;
  }

 private:
  Soak(const Shape& shape, device::Device& device, const attention::Backend* backend)
      : shape_(shape),
        device_(device),
        backend_(backend),
        stream_(device.create_stream()),
        quiet_(device.create_stream()) {
    const bench::AttentionHeads& h = shape.heads;
    geometry_ = {.layer = {h.kv, h.qk_dim, h.v_dim, shape.dtype, h.mla},
                 .layers = shape.layers,
                 .page_size = shape.page_size};
    newest_ = 1 + shape.seqs * shape.full_pages;
    first_copied_ = newest_ + shape.seqs;
  }

  Status make_pools() {
    const int32_t slots = first_copied_ + shape_.copied_slots;
    ATTUNE_ASSIGN_OR_RETURN(pool_, device_.allocate(geometry_.page_bytes() * slots, "the soak"));
    std::mt19937 random(1);
    std::vector<uint16_t> values(8 << 20);
    for (uint16_t& v : values) {  // bf16 of magnitude 2^-7 to 1, or two e4m3 below 2
      v = static_cast<uint16_t>((random() & 0x807f) | (120 + random() % 7) << 7);
      if (shape_.dtype == DType::kF8E4M3) v = static_cast<uint16_t>(random() & 0xbfbf);
    }
    const auto bytes = static_cast<int64_t>(2 * values.size());
    for (int64_t at = 0; at < pool_.bytes(); at += bytes)
      stream_->copy(pool_.as<char>() + at, values.data(), std::min(bytes, pool_.bytes() - at));
    stream_->synchronize();
    for (int32_t l = 0; l < shape_.layers; ++l)
      views_.push_back(
          kv::make_view(geometry_, pool_.as<char>() + l * geometry_.piece_bytes() * slots, slots));
    ATTUNE_ASSIGN_OR_RETURN(host_, kv::HostPool::create({.geometry = geometry_,
                                                         .layout = kv::HostLayout::kPageFirst,
                                                         .num_slots = shape_.host_slots},
                                                        device_));
    host_->wait();
    std::memset(host_->view().base, 0xff, host_->bytes());
    transfer_ = {.geometry = geometry_,
                 .device = views_,
                 .host = host_->view(),
                 .io = kv::IoBackend::kKernel,
                 .host_part_bytes = host_->part_bytes()};
    return host_->status();
  }

  // Of a sequence's last row in its newest page, where all rows of a step lie.
  int32_t offset_of(int32_t seq) const {
    return shape_.q_len - 1 + (seq * 7 + 3) % (shape_.page_size - shape_.q_len + 1);
  }

  void make_sets() {
    std::mt19937 random(2);
    std::vector<int32_t> slots(shape_.seqs * shape_.full_pages);
    std::iota(slots.begin(), slots.end(), 1);
    sets_.resize(shape_.sets);
    for (Set& set : sets_) {
      std::shuffle(slots.begin(), slots.end(), random);
      set.q_indptr.resize(shape_.seqs + 1);
      for (int32_t s = 0; s <= shape_.seqs; ++s) set.q_indptr[s] = s * shape_.q_len;
      set.page_indptr = {0};
      for (int32_t s = 0; s < shape_.seqs; ++s) {
        const auto full = static_cast<int32_t>(random() % (shape_.full_pages + 1));
        for (int32_t p = 0; p < full; ++p)
          set.page_slots.push_back(slots[s * shape_.full_pages + p]);
        set.page_slots.push_back(newest_ + s);
        set.page_indptr.push_back(static_cast<int32_t>(set.page_slots.size()));
        set.kv_len.push_back(full * shape_.page_size + offset_of(s) + 1);
      }
    }
  }

  // All arrays of a step lie in one block, each at the same place in every step; what a step does
  // not use of it is wild.
  Status make_arrays() {
    const int32_t n = (shape_.seqs + 1 + 15) / 16 * 16;
    const int32_t most = shape_.seqs * (shape_.full_pages + 1);
    image_bytes_ = int64_t{4} * (3 * n + most);
    ATTUNE_ASSIGN_OR_RETURN(arrays_, device_.allocate(image_bytes_, "arrays"));
    ATTUNE_ASSIGN_OR_RETURN(images_, device_.allocate_pinned(image_bytes_ * shape_.sets, "arrays"));
    std::fill_n(images_.as<int32_t>(), images_.bytes() / 4, 0x7ffffff1);
    for (size_t i = 0; i < sets_.size(); ++i) {
      Set& set = sets_[i];
      set.image = images_.as<int32_t>() + i * (image_bytes_ / 4);
      std::copy(set.q_indptr.begin(), set.q_indptr.end(), set.image);
      std::copy(set.kv_len.begin(), set.kv_len.end(), set.image + n);
      std::copy(set.page_indptr.begin(), set.page_indptr.end(), set.image + 2 * n);
      std::copy(set.page_slots.begin(), set.page_slots.end(), set.image + 3 * n);
    }
    const int32_t* on = arrays_.as<int32_t>();
    on_device_ = {
        .q_indptr = on, .kv_len = on + n, .page_indptr = on + 2 * n, .page_slots = on + 3 * n};
    return {};
  }

  Status make_attention() {
    const bench::AttentionHeads& h = shape_.heads;
    ATTUNE_ASSIGN_OR_RETURN(q_, device_.allocate(int64_t{2} * shape_.rows() * h.q * h.qk_dim, "q"));
    out_bytes_ = int64_t{2} * shape_.rows() * h.q * h.v_dim * shape_.layers;
    ATTUNE_ASSIGN_OR_RETURN(out_, device_.allocate(out_bytes_, "outputs"));
    ATTUNE_ASSIGN_OR_RETURN(first_, device_.allocate(out_bytes_ * shape_.sets, "first outputs"));
    ATTUNE_ASSIGN_OR_RETURN(differ_, device_.allocate(sizeof(Differences), "counts"));
    ATTUNE_ASSIGN_OR_RETURN(weights_, bench::OutputWeights::create(h, device_, *stream_));
    std::vector<int64_t> slots;
    for (int32_t s = 0; s < shape_.seqs; ++s)
      for (int32_t i = shape_.q_len - 1; i >= 0; --i)
        slots.push_back(int64_t{newest_ + s} * shape_.page_size + offset_of(s) - i);
    const bench::AttentionCase what{.heads = h,
                                    .seqs = shape_.rows(),
                                    .kv_len = (shape_.full_pages + 1) * shape_.page_size,
                                    .page_size = shape_.page_size};
    ATTUNE_ASSIGN_OR_RETURN(neighbours_,
                            bench::Neighbours::create(what, slots, weights_, device_, *stream_));
    int64_t scratch = out_bytes_ / shape_.layers;
    attention::Limits limits{.max_seqs = shape_.seqs,
                             .max_tokens = shape_.rows(),
                             .max_kv_len = what.kv_len,
                             .q_heads = h.q,
                             .kv_heads = h.kv,
                             .qk_dim = h.qk_dim,
                             .v_dim = h.v_dim,
                             .page_size = shape_.page_size,
                             .num_slots = views_[0].num_slots};
    limits.calls = {{layer_params(), views_[0], io(0)}};
    if (backend_) scratch = backend_->workspace_bytes(limits);
    ATTUNE_ASSIGN_OR_RETURN(scratch_, device_.allocate(std::max<int64_t>(scratch, 64), "scratch"));
    if (backend_) plan_ = backend_->make_plan(limits, scratch_.data());
    return stream_->status();
  }

  attention::LayerParams layer_params() const {
    return {.q_heads = shape_.heads.q,
            .kv_heads = shape_.heads.kv,
            .scale = 1.0f / std::sqrt(static_cast<float>(shape_.heads.qk_dim)),
            .window = shape_.window};
  }
  attention::Io io(int32_t layer) const {
    const bench::AttentionHeads& h = shape_.heads;
    return {.q = q_.data(),
            .q_dtype = DType::kBF16,
            .q_stride = int64_t{h.q} * h.qk_dim,
            .out = out_.as<char>() + layer * (out_bytes_ / shape_.layers),
            .out_dtype = DType::kBF16,
            .out_stride = int64_t{h.q} * h.v_dim};
  }
  attention::Batch batch(const Set& set) const {
    return {.phase = shape_.q_len > 1 ? attention::Phase::kVerify : attention::Phase::kDecode,
            .path = shape_.heads.mla ? attention::Path::kAbsorbed : attention::Path::kPaged,
            .num_seqs = shape_.seqs,
            .num_tokens = shape_.rows(),
            .max_q_len = shape_.q_len,
            .max_kv_len = *std::max_element(set.kv_len.begin(), set.kv_len.end()),
            .q_indptr = set.q_indptr.data(),
            .kv_len = set.kv_len.data(),
            .page_indptr = set.page_indptr.data(),
            .page_slots = set.page_slots.data(),
            .page_size = shape_.page_size,
            .on_device = on_device_};
  }

  // All layers, and what others would do to the memory between them.
  void launch_layers() {
    if (backend_) backend_->plan_on(*plan_, *stream_);
    for (int32_t l = 0; l < shape_.layers; ++l) {
      const attention::Io io = this->io(l);
      neighbours_->before(views_[l], q_.data());
      if (backend_) {
        backend_->run(*plan_, layer_params(), views_[l], io, *stream_);
      } else {
        run_without_wait(*stream_, on_device_.kv_len, shape_.seqs, l, scratch_.as<uint32_t>(),
                         static_cast<uint32_t*>(io.out), scratch_.bytes() / 4);
      }
      neighbours_->after(io.out, l);
      overwrite(l);
    }
  }

  void overwrite(int32_t layer) {
    constexpr int64_t kMost = 32 << 20;
    stream_->fill(scratch_.data(), 0xff, std::min(scratch_.bytes(), kMost));
    if (shape_.heads.mla) return;  // what comes before makes neither all of q nor rows
    stream_->fill(q_.data(), 0xff, q_.bytes());
    // Finite: attention may multiply what lies past a sequence's end by zero.
    stream_->fill(static_cast<char*>(views_[layer].base) + newest_ * geometry_.piece_bytes(), 0x3f,
                  shape_.seqs * geometry_.piece_bytes());
  }

  Status step(int32_t index, bool first) {
    const Set& set = sets_[index];
    auto& before = events_[steps_ % 2];  // the backend's plan allows two in flight
    if (before) before->wait();
    if (steps_ == 0) {
      stream_->fill(q_.data(), 0x3c, q_.bytes());
      for (int32_t l = 0; l < shape_.layers; ++l) overwrite(l);
    }
    stream_->copy(arrays_.data(), set.image, image_bytes_);
    stream_->fill(out_.data(), 0xff, out_bytes_);
    if (backend_) ATTUNE_RETURN_IF_ERROR(backend_->plan(batch(set), *plan_, *stream_));
    if (steps_ == 1) {
      ATTUNE_ASSIGN_OR_RETURN(graph_, stream_->capture("a soak's step", [&] {
        stream_->launch([&] { launch_layers(); });
      }));
    }
    if (graph_) {
      graph_->launch(*stream_);
    } else {
      stream_->launch([&] { launch_layers(); });
    }
    char* mine = first_.as<char>() + index * out_bytes_;
    if (first) {
      stream_->copy(mine, out_.data(), out_bytes_);
    } else {
      stream_->launch([&] {
        count_differences(*stream_, out_.as<uint32_t>(), reinterpret_cast<uint32_t*>(mine),
                          out_bytes_ / 4, differ_.as<Differences>());
      });
    }
    before = stream_->record();
    ++steps_;
    return stream_->status();
  }

  Differences differences() {
    Differences sum;
    stream_->copy(&sum, differ_.data(), sizeof sum);
    stream_->synchronize();
    return sum;
  }

  uint64_t hash_of_first() {
    std::vector<uint64_t> words(first_.bytes() / 8);
    stream_->copy(words.data(), first_.data(), first_.bytes());
    stream_->synchronize();
    uint64_t hash = 14695981039346656037u;  // FNV-1a's, word by word
    for (const uint64_t word : words) hash = (hash ^ word) * 1099511628211u;
    return hash;
  }

  // What was saved last is what the device has.
  Status check_saved(const std::vector<int32_t>& saved) {
    const int64_t piece = geometry_.piece_bytes();
    std::vector<char> device(piece);
    for (size_t host = 0; host < saved.size(); host += 7)
      for (int32_t l = 0; l < shape_.layers && saved[host] >= 0; ++l) {
        stream_->copy(device.data(), static_cast<char*>(views_[l].base) + saved[host] * piece,
                      piece);
        stream_->synchronize();
        const int64_t heads = geometry_.layer.kv_heads,
                      e = tensor::dtype_bytes(shape_.dtype, geometry_.layer.k_dim);
        const kv::HostView& v = host_->view();
        for (int64_t head = 0; head < heads; ++head)
          for (int64_t t = 0; t < shape_.page_size; ++t)
            if (std::memcmp(v.piece(HostSlot(static_cast<int32_t>(host)), l) + t * v.token_stride +
                                head * e,
                            &device[(head * shape_.page_size + t) * e], e) != 0)
              return data_loss("a saved page differs from the device's");
      }
    return {};
  }

  const Shape shape_;
  device::Device& device_;
  const attention::Backend* backend_;
  std::unique_ptr<device::Stream> stream_, quiet_;
  kv::KvGeometry geometry_;
  int32_t newest_ = 0, first_copied_ = 0;
  device::Buffer pool_, arrays_, images_, q_, out_, first_, differ_, scratch_;
  std::vector<kv::PagedKvView> views_;
  std::unique_ptr<kv::HostPool> host_;
  kv::TransferConfig transfer_;
  std::vector<Set> sets_;
  int64_t image_bytes_ = 0, out_bytes_ = 0;
  attention::Batch::Arrays on_device_;
  bench::OutputWeights weights_;
  std::unique_ptr<bench::Neighbours> neighbours_;
  std::unique_ptr<attention::Plan> plan_;
  std::unique_ptr<device::Graph> graph_;
  std::shared_ptr<device::Event> events_[2];
  int64_t steps_ = 0;
};

}  // namespace

std::string Outcome::verdict() const {
  if (alone.far > 0)
    return base::cat("alone it does not repeat itself: ", alone.far,
                     " words differ by more than rounding");
  if (beside.far > 0 || (alone.words == 0 && beside.words > 0))
    return base::cat("it gives other outputs beside copies: ", beside.words, " words differ, ",
                     beside.far, " by more than rounding");
  return "";
}

Result<Outcome> run(const Shape& shape, device::Device& device, const attention::Backend* backend,
                    bool pdl, double seconds) {
  ATTUNE_ASSIGN_OR_RETURN(const auto soak, Soak::create(shape, device, backend, pdl));
  return soak->run(seconds);
}

}  // namespace attune::soak
