#include "bench/decode_reader.h"

#include <algorithm>

#include "attention/arch.h"
#include "attention/registry.h"
#include "base/log.h"

namespace attune::bench {
namespace {

bool decodes_here(const attention::Capabilities& c, const device::DeviceInfo& info) {
  const auto has = [](const auto& all, auto one) {
    return std::find(all.begin(), all.end(), one) != all.end();
  };
  return has(c.archs, attention::arch_of(info)) && has(c.kinds, attention::AttentionKind::kMha) &&
         has(c.phases, attention::Phase::kDecode);
}

}  // namespace

Result<std::unique_ptr<DecodeReader>> DecodeReader::create(const std::string& backend,
                                                           device::Device& device) {
  const attention::BackendEntry* entry = attention::find_backend(backend);
  if (!entry) return invalid_argument(base::cat("there is no attention backend '", backend, "'"));
  if (!entry->create) return unsupported(base::cat(backend, ": ", entry->unavailable));
  if (!decodes_here(entry->capabilities, device.info()))
    return unsupported(base::cat(backend, " has no decode of grouped queries on this device"));
  auto r = std::make_unique<DecodeReader>();
  r->backend_ = entry->create(device);
  r->stream_ = device.create_stream();
  ATTUNE_RETURN_IF_ERROR(r->stream_->status());
  r->memory_ = std::make_unique<SharedMemory>(device, *r->stream_);
  const AttentionCase what{.heads = {32, 8, 128, 128}, .seqs = 64, .kv_len = 4096, .page_size = 64};
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
