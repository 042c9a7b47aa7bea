#include "bench/decode_reader.h"

#include "attention/registry.h"
#include "base/log.h"

namespace attune::bench {

Result<std::unique_ptr<DecodeReader>> DecodeReader::create(const std::string& backend,
                                                           device::Device& device) {
  const attention::BackendEntry* entry = attention::find_backend(backend);
  if (!entry) return invalid_argument(base::cat("there is no attention backend '", backend, "'"));
  if (!entry->create) return unsupported(base::cat(backend, ": ", entry->unavailable));
  const AttentionCase what{.heads = {32, 8, 128, 128}, .seqs = 64, .kv_len = 4096, .page_size = 64};
  if (!serves_kind(entry->capabilities, what))
    return unsupported(base::cat(backend, ": not for MHA"));
  if (const std::string reason = why_not(entry->capabilities, what, device.info()); !reason.empty())
    return unsupported(base::cat(backend, ": ", reason));
  auto r = std::make_unique<DecodeReader>();
  r->backend_ = entry->create(device);
  r->stream_ = device.create_stream();
  ATTUNE_RETURN_IF_ERROR(r->stream_->status());
  r->memory_ = std::make_unique<SharedMemory>(device, *r->stream_);
  ATTUNE_ASSIGN_OR_RETURN(
      r->timer_, AttentionTimer::create(what, Timing::kAlone, *r->memory_, device, *r->stream_));
  ATTUNE_ASSIGN_OR_RETURN(r->chain_, r->timer_->chain(*r->backend_));
  return r;
}

int DecodeReader::run() {
  chain_.graph->launch(*stream_);
  stream_->synchronize();
  return chain_.calls;
}

}  // namespace attune::bench
