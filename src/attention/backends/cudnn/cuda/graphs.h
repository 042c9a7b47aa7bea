// cuDNN's graphs of one attention call each, by the shapes that they were built for.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>

#include "attune/status.h"
#include "device/device.h"
#include "tensor/dtype.h"

namespace attune::attention::cudnn {

// What a graph has for good. Sequences and lengths are upper bounds; strides count elements. Of one
// query each, row s is that of sequence s: those graphs may split a sequence's keys, three to ten
// times faster for few sequences, and the LSE of theirs by offsets is wrong for grouped heads
// (cuDNN 9.19). Otherwise offsets say where a sequence's rows begin.
struct GraphShape {
  tensor::DType dtype = tensor::DType::kBF16;  // of queries, cache and output
  int32_t seqs = 0, q_len = 0, kv_len = 0;
  int32_t q_heads = 0, kv_heads = 0, dim = 0;
  int32_t page_size = 0, num_slots = 0;
  int64_t page_stride = 0, head_stride = 0, token_stride = 0;
  int64_t q_stride = 0, out_stride = 0;  // from row to row
  int32_t window = 0;
  bool causal = true, lse = true;
  bool dense() const { return q_len == 1; }

  int32_t pages() const { return (kv_len + page_size - 1) / page_size; }  // of a sequence
  auto operator<=>(const GraphShape&) const = default;
};

// Of one call, in device memory.
struct GraphArgs {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
  float scale = 0;
  const int32_t *q_len = nullptr, *kv_len = nullptr;  // [seqs]
  // Where each sequence's rows begin in q, out and lse, in elements. [seqs + 1]; dense: not
  // read.
  const int32_t *q_offsets = nullptr, *out_offsets = nullptr, *lse_offsets = nullptr;
  const int32_t* pages = nullptr;  // [seqs, shape.pages()], slots
  void* workspace = nullptr;
};

class Graph;

// Thread-compatible. Whatever builds a graph takes 30 to 500 ms.
class Graphs {
 public:
  static Result<std::unique_ptr<Graphs>> create(const device::DeviceInfo& info);
  ~Graphs();

  // The graph of this shape, built at the first call; what cuDNN says where it has none.
  Result<const Graph*> get(const GraphShape& shape);
  static int64_t workspace_bytes(const Graph& graph);
  // Whether the stream records what is launched: nothing may be built then.
  static bool is_captured(device::Stream& stream);
  Status run(const Graph& graph, const GraphArgs& args, device::Stream& stream);

 private:
  struct Handle;
  explicit Graphs(std::unique_ptr<Handle> handle);

  std::unique_ptr<Handle> handle_;
  std::map<GraphShape, Result<std::unique_ptr<Graph>>> graphs_;
};

}  // namespace attune::attention::cudnn
