// What a transfer hands over at once. Pure: addresses and sizes only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/kvcopy/kvcopy.h"

namespace attune::kv {

// Pages [first_page, first_page + pages) of a call in layers [first_layer, first_layer + layers).
struct Chunk {
  int32_t first_page = 0, pages = 0, first_layer = 0, layers = 0;
};

// Cuts `pages` pages of `layers` layers into chunks, layer after layer: whole layers while they are
// small, else pages of one layer.
class Chunks {
 public:
  Chunks() = default;
  Chunks(int32_t pages, int32_t layers, int64_t piece_bytes, int64_t chunk_bytes);
  bool done() const { return layer_ == layers_ || pages_ == 0; }
  Chunk next();  // REQUIRES: !done()

 private:
  int32_t pages_ = 0, layers_ = 0, pages_at_once_ = 0, layers_at_once_ = 0;
  int32_t page_ = 0, layer_ = 0;
};

// Copies for Stream::copy_many.
struct CopyList {
  std::vector<void*> to;
  std::vector<const void*> from;
  std::vector<size_t> bytes;

  size_t count() const { return to.size(); }
  void clear();
};

// The pieces of a chunk (p.pages, p.first_layer, p.layers) as few copies: what follows each other
// on both sides is one. No copy lies across a multiple of part_bytes from p.host, unless that is 0.
void list_copies(const ops::KvCopyParams& p, int64_t part_bytes, CopyList& list);

// In an order in which neighbours on both sides follow each other.
void sort_for_runs(std::span<ops::KvCopyPage> pages);

}  // namespace attune::kv
