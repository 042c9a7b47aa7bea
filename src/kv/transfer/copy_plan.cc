#include "kv/transfer/copy_plan.h"

#include <algorithm>
#include <tuple>

namespace attune::kv {

Chunks::Chunks(int32_t pages, int32_t layers, int64_t piece_bytes, int64_t chunk_bytes)
    : pages_(pages), layers_(layers) {
  const int64_t pieces = std::max<int64_t>(1, chunk_bytes / piece_bytes);
  pages_at_once_ = static_cast<int32_t>(std::min<int64_t>({pieces, pages, ops::kMostKvCopyPages}));
  if (pages_at_once_ == pages_ && pages_ > 0)
    layers_at_once_ = static_cast<int32_t>(std::min<int64_t>(layers, pieces / pages));
  layers_at_once_ = std::max(1, layers_at_once_);
}

Chunk Chunks::next() {
  const Chunk chunk{page_, std::min(pages_at_once_, pages_ - page_), layer_,
                    std::min(layers_at_once_, layers_ - layer_)};
  page_ += chunk.pages;
  if (page_ == pages_) {
    page_ = 0;
    layer_ += chunk.layers;
  }
  return chunk;
}

void CopyList::clear() {
  to.clear();
  from.clear();
  bytes.clear();
}

void sort_for_runs(std::span<ops::KvCopyPage> pages) {
  std::sort(pages.begin(), pages.end(), [](const auto& a, const auto& b) {
    return std::tie(a.device, a.host) < std::tie(b.device, b.host);
  });
}

namespace {

struct Run {
  int64_t host = 0;  // from the pool's start
  char* device = nullptr;
  int64_t bytes = 0;
};

void add_run(const ops::KvCopyParams& p, int64_t part_bytes, Run run, CopyList& list) {
  while (run.bytes > 0) {
    const int64_t left = part_bytes > 0 ? part_bytes - run.host % part_bytes : run.bytes;
    const int64_t bytes = std::min(run.bytes, left);
    char* host = p.host + run.host;
    list.to.push_back(p.to_host ? host : run.device);
    list.from.push_back(p.to_host ? run.device : host);
    list.bytes.push_back(static_cast<size_t>(bytes));
    run = {run.host + bytes, run.device + bytes, run.bytes - bytes};
  }
}

}  // namespace

void list_copies(const ops::KvCopyParams& p, int64_t part_bytes, CopyList& list) {
  Run run;
  for (int32_t l = p.first_layer; l < p.first_layer + p.layers; ++l)
    for (int32_t i = 0; i < p.count; ++i) {
      const int64_t host = p.pages[i].host * p.host_slot_stride + l * p.host_layer_stride;
      char* device =
          p.device + p.pages[i].device * p.device_slot_stride + l * p.device_layer_stride;
      if (host == run.host + run.bytes && device == run.device + run.bytes) {
        run.bytes += p.piece_bytes;
        continue;
      }
      add_run(p, part_bytes, run, list);
      run = {host, device, p.piece_bytes};
    }
  add_run(p, part_bytes, run, list);
}

}  // namespace attune::kv
