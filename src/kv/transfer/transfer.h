// Copies pages between the device pool and the host pool beside the steps. Knows nothing of who
// owns a page: its caller keeps both ends pinned until `done`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "attune/status.h"
#include "device/device.h"
#include "kv/layout/host_layout.h"
#include "kv/layout/layout.h"

namespace attune::kv {

enum class IoBackend : uint8_t {
  kDirect,  // the copy engine; on the CPU memcpy
  kKernel,  // our kernel on few multiprocessors; the only one that changes the layout
};

struct TransferConfig {
  KvGeometry geometry;
  std::vector<PagedKvView> device;  // one per layer
  HostView host;
  IoBackend io = IoBackend::kDirect;
  double bytes_per_second = 0;  // the most in each direction; 0: no limit
};

struct TransferStats {
  uint64_t saved_pages = 0, loaded_pages = 0, saved_bytes = 0, loaded_bytes = 0;
  double save_seconds = 0, load_seconds = 0;  // from a copy's start to its end
  int64_t queued_pages = 0;                   // asked for and not done
};

// A load under way, as the forward pass sees it.
class LayerGate {
 public:
  virtual ~LayerGate() = default;
  // What `stream` is given from here on starts after the load's pieces of `layer` are in place. On
  // the CPU, inside a launched function: waits.
  virtual void wait(int32_t layer, device::Stream& stream) = 0;
};

class Transfer {
 public:
  using Done = std::function<void(Status)>;
  // `compute` is the stream of the steps. The pools outlive the transfer. Errors: unsupported
  // (kDirect with kPageFirst), resource_exhausted.
  static Result<std::unique_ptr<Transfer>> create(const TransferConfig& config,
                                                  device::Device& device, device::Stream& compute);
  virtual ~Transfer() = default;  // waits for what is under way

  // Engine's thread, as are the next ones. Starts after what `compute` has been given so far.
  // `done` runs on a thread of the device or of the transfer once every byte is in place, or
  // nothing is being copied any more after a failure.
  virtual void save(std::vector<PageCopy> pages, Done done) = 0;  // device to host
  virtual std::shared_ptr<LayerGate> load(std::vector<PageCopy> pages, Done done) = 0;

  // H5: no copy runs beside what `compute` is given between these two.
  virtual void hold() = 0;
  virtual void resume() = 0;

  virtual TransferStats stats() const = 0;  // any thread
};

}  // namespace attune::kv
