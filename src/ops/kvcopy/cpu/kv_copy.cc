#include <atomic>
#include <cstring>

#include "base/check.h"
#include "ops/cpu_kernels.h"
#include "ops/kvcopy/kvcopy.h"

namespace attune::ops::cpu {
namespace {

void move(const KvCopyParams& p, char* host, char* device, int64_t bytes) {
  std::memcpy(p.to_host ? host : device, p.to_host ? device : host, bytes);
}

void copy_rows_of(const KvCopyParams& p, const KvCopyRows& rows, int32_t token, char*& host,
                  char* device) {
  for (int32_t r = 0; r < rows.count; ++r, host += rows.bytes)
    move(p, host, device + rows.offset + r * rows.stride + token * rows.token_stride, rows.bytes);
}

void copy_piece(const KvCopyParams& p, char* host, char* device) {
  if (p.tokens == 0) return move(p, host, device, p.piece_bytes);
  for (int32_t t = 0; t < p.tokens; ++t) {
    char* at = host + t * p.host_token_stride;
    copy_rows_of(p, p.k, t, at, device);
    copy_rows_of(p, p.v, t, at, device);
  }
}

}  // namespace

void kv_copy(const KvCopyParams& p, Stream& /*stream*/) {
  ATTUNE_CHECK(p.count <= kMostKvCopyPages);
  for (int32_t i = 0; i < p.count; ++i) {
    const KvCopyPage page = p.pages[i];
    const bool known = page.host >= 0 && page.host < p.host_slots && page.device >= 0 &&
                       page.device < p.device_slots;
    if (!known) {
      std::atomic_ref(*p.bad).fetch_add(1);
      continue;
    }
    for (int32_t l = p.first_layer; l < p.first_layer + p.layers; ++l)
      copy_piece(p, p.host + page.host * p.host_slot_stride + l * p.host_layer_stride,
                 p.device + page.device * p.device_slot_stride + l * p.device_layer_stride);
  }
}

}  // namespace attune::ops::cpu
