// `attune bench hicache`: how fast pages are copied between device and host, alone and beside a
// kernel that reads device memory at the full rate, and how much that one is slowed. Pages are
// random, so that no two copies are neighbours.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attune/status.h"
#include "bench/decode_reader.h"
#include "device/device.h"
#include "kv/transfer/host_pool.h"
#include "kv/transfer/transfer.h"
#include "ops/read/reader.h"

namespace attune::bench {

struct HicacheCase {
  bool save = false, load = false;
  kv::IoBackend io = kv::IoBackend::kDirect;
  kv::HostLayout layout = kv::HostLayout::kLayerFirst;
  int64_t piece_bytes = 0;  // a multiple of 4096: a token of 8 heads, 128 elements, bf16
  double bytes_per_second = 0;
  kv::TransferTuning tuning;
};

struct HicacheRow {
  HicacheCase what;
  double alone = 0, beside = 0;  // bytes/s, both directions together
  double slowdown = 0;           // of the reader; 0: none was beside (CPU)
  double small_copy = 0;  // s, what 99 % of 16 KiB copies to the device stay under beside it; GPU
};

class HicacheBench {
 public:
  // `pool_bytes` of each pool; `beside`: HicacheConfig's. Errors: resource_exhausted; those of
  // DecodeReader.
  static Result<std::unique_ptr<HicacheBench>> create(device::Device& device, int64_t pool_bytes,
                                                      double seconds_per_case,
                                                      const std::string& beside = "");
  Result<HicacheRow> measure(const HicacheCase& what);
  // The reader alone, bytes/s; 0: there is none.
  double read_rate();
  // The device's own copy of large blocks, bytes/s, alone.
  double copy_rate(bool save, bool load);

 private:
  explicit HicacheBench(device::Device& device) : device_(device) {}
  void fill_pools();
  double reader_seconds(double for_seconds);  // of one pass
  double small_copy_seconds();
  Result<double> rate(const HicacheCase& what, const std::function<void()>& meanwhile);

  device::Device& device_;
  double seconds_ = 0;
  int64_t pool_bytes_ = 0;
  std::unique_ptr<kv::HostPool> host_;
  device::Buffer pool_, read_, counters_, small_pinned_, small_device_;
  std::unique_ptr<device::Stream> compute_, reading_, small_;
  ops::Reader reader_ = nullptr;
  std::unique_ptr<DecodeReader> decode_;  // in its place
  int32_t launches_ = 0;
};

struct HicacheConfig {
  std::vector<std::string> io;                              // "direct", "kernel"; empty: both
  std::vector<std::string> layouts;                         // empty: all
  std::vector<int32_t> pieces = {4, 16, 32, 64, 128, 256};  // KiB
  int32_t pool_mib = 2048;
  double seconds = 0.3;         // of each measurement
  double bytes_per_second = 0;  // --hicache-io-rate
  std::string beside;           // an attention backend's decode; empty: a kernel that only reads
};

// `told` hears each row as it is done. Errors: invalid_argument (names), resource_exhausted.
Status run_hicache(const HicacheConfig& config, device::Device& device,
                   const std::function<void(const HicacheRow&)>& told);
std::string hicache_header();
std::string to_line(const HicacheRow& row);
std::string to_json(const HicacheRow& row, const device::DeviceInfo& device);

}  // namespace attune::bench
