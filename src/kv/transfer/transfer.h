// Copies pages between the device pool and the host pool beside the steps. Knows nothing of who
// owns a page: its caller keeps both ends pinned until `done`.
//
// A call's copies are cut into chunks of a few MiB, of which few are on their way at once in each
// direction: what else is copied (a step's inputs, its results) never queues behind more. The
// copies of one direction go in the order of the calls, a load's layer after layer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "attune/status.h"
#include "device/device.h"
#include "kv/layout/host_layout.h"
#include "kv/layout/layout.h"
#include "ops/kvcopy/kvcopy.h"

namespace attune::kv {

enum class IoBackend : uint8_t {
  kDirect,  // the copy engine; on the CPU memcpy
  kKernel,  // our kernel on few multiprocessors; the only one that changes the layout
};

// Zeros: what was measured to be best.
struct TransferTuning {
  int64_t chunk_bytes = 0;  // at most so many at once, but at least one piece
  int32_t chunks = 0;       // of each direction that are on their way
  ops::KvCopyTuning save, load;
};

struct TransferConfig {
  KvGeometry geometry;
  std::vector<PagedKvView> device;  // one per layer, equally far apart
  HostView host;
  IoBackend io = IoBackend::kDirect;
  double bytes_per_second = 0;  // the most in each direction; 0: no limit
  // The host pool was pinned in parts of this size (HostPool::part_bytes), across which no single
  // copy may lie; 0: in one.
  int64_t host_part_bytes = 0;
  TransferTuning tuning;
};

struct TransferStats {
  uint64_t saved_pages = 0, loaded_pages = 0, saved_bytes = 0, loaded_bytes = 0;
  // From the moment a call's first copy could begin until its last one has ended.
  double save_seconds = 0, load_seconds = 0;
  int64_t queued_pages = 0;                     // asked for and not done
  uint64_t failed_saves = 0, failed_loads = 0;  // calls
};

// A load under way, as the forward pass sees it.
class LayerGate {
 public:
  virtual ~LayerGate() = default;
  // What `stream` is given from here on starts after the load's pieces of `layer` are in place; the
  // load then goes on without limits up to there, since a step waits for it. On the CPU, inside a
  // launched function: waits. After a failure (see `done`) there is nothing to wait for. REQUIRES:
  // the transfer is still there.
  virtual void wait(int32_t layer, device::Stream& stream) = 0;
};

class Transfer {
 public:
  using Done = std::function<void(Status)>;
  // `compute` is the stream of the steps. The pools outlive the transfer. Errors: unsupported
  // (kDirect where the layout changes), invalid_argument (layers at odd distances),
  // resource_exhausted, the device's.
  static Result<std::unique_ptr<Transfer>> create(const TransferConfig& config,
                                                  device::Device& device, device::Stream& compute);
  virtual ~Transfer() = default;  // does what was asked for, then returns

  // Engine's thread, as are the next ones. Starts after what `compute` has been given so far.
  // `done` runs once, on a thread of the device or of the transfer, when every byte is in place,
  // or nothing is being copied any more after a failure. It must not block.
  virtual void save(std::vector<PageCopy> pages, Done done) = 0;  // device to host
  virtual std::shared_ptr<LayerGate> load(std::vector<PageCopy> pages, Done done) = 0;

  // H5: no copy runs beside what `compute` is given between these two. Loads that were asked for
  // before hold() are done before it begins; none is asked for until resume().
  virtual void hold() = 0;
  virtual void resume() = 0;
  // No step runs: what is handed over from here on goes as fast as the link allows.
  virtual void set_alone(bool alone) = 0;

  virtual TransferStats stats() const = 0;  // any thread
};

}  // namespace attune::kv
