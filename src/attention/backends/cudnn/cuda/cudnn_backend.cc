#include "attention/backends/cudnn/cudnn_backend.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "attention/backends/cudnn/cuda/graphs.h"
#include "attention/backends/cudnn/cuda/tables.h"
#include "attention/check.h"
#include "base/check.h"
#include "base/log.h"

namespace attune::attention::cudnn {
namespace {

using tensor::DType;

// Graphs take up to half a second to be built, so those by offsets are for few sizes of batches:
// `least` and what is 4, 16 ... times as many. Blocks without work end at once.
int32_t bucket(int32_t n, int32_t least) {
  while (least < n) least *= 4;
  return least;
}
constexpr int32_t kLeastSeqs = 8, kLeastRows = 128;
// What does not vary, but bounds what a graph may address.
int32_t power_of_two(int32_t n) {
  return static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(std::max(n, 1024))));
}

// Graphs by rows have exactly as many sequences; there are some sizes, close together where one
// more is a large part. A batch is cut into the largest that it holds, of which all but the last
// are multiples of four, so that what is theirs of the tables begins at multiples of 16 bytes.
int32_t largest_piece(int32_t seqs) {
  const int32_t step = seqs < 4 ? 1 : seqs < 16 ? 4 : seqs < 64 ? 8 : 16;
  return seqs / step * step;
}

// Whether row s is that of sequence s, for all. One without a row would have that row zeroed.
bool is_dense(const Batch& b) {
  for (int32_t s = 0; s <= b.num_seqs; ++s)
    if (b.q_indptr[s] != s) return false;
  return true;
}

// What a layer adds to a batch's shape.
struct LayerShape {
  DType dtype = DType::kBF16;
  int64_t page_stride = 0, head_stride = 0, token_stride = 0;  // elements
  int64_t q_stride = 0, out_stride = 0;
  int32_t window = 0;
  bool lse = true;
  bool operator==(const LayerShape&) const = default;
};

LayerShape layer_shape(const kv::PagedKvView& kv, const Io& io, int32_t window) {
  const int64_t elem = tensor::dtype_bytes(kv.dtype, 1);
  return {.dtype = kv.dtype,
          .page_stride = kv.page_stride / elem,
          .head_stride = kv.k_head_stride / elem,
          .token_stride = kv.k_token_stride / elem,
          .q_stride = io.q_stride,
          .out_stride = io.out_stride,
          .window = window,
          .lse = io.lse != nullptr};
}

GraphShape graph_shape(const Limits& l, int32_t seqs, int32_t q_len, bool causal,
                       const LayerShape& layer) {
  return {.dtype = layer.dtype,
          .seqs = seqs,
          .q_len = q_len,
          .kv_len = power_of_two(l.max_kv_len),
          .q_heads = l.q_heads,
          .kv_heads = l.kv_heads,
          .dim = l.qk_dim,
          .page_size = l.page_size,
          .num_slots = power_of_two(l.num_slots),
          .page_stride = layer.page_stride,
          .head_stride = layer.head_stride,
          .token_stride = layer.token_stride,
          .q_stride = layer.q_stride,
          .out_stride = layer.out_stride,
          .window = layer.window,
          .causal = causal,
          .lse = layer.lse};
}

// One graph of a layer, over the sequences from `first` on.
struct Piece {
  const Graph* graph = nullptr;
  int32_t first = 0;
};
struct Layer {
  LayerShape shape;
  std::vector<Piece> pieces;  // of the batch
  bool by_rows = false;       // they are; else there is one, by offsets
};

struct CudnnPlan final : Plan {
  Limits limits;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  device::Buffer memory;  // of tables
  Tables tables{};        // for the largest batch
  // Offsets of rows that do not lie side by side.
  int32_t *q_offsets = nullptr, *out_offsets = nullptr;
  Batch batch;
  bool dense = false;         // the batch
  std::vector<Layer> layers;  // that are expected, or came
};

// What no layer of this backend has.
Status check_call(const Call& c) {
  if (c.layer.soft_cap > 0 || c.layer.sinks) return unsupported("cudnn: no soft cap and no sinks");
  if (c.io.q_dtype != c.kv.dtype || c.io.out_dtype != c.kv.dtype)
    return unsupported("cudnn: queries, cache and outputs are of one type");
  return {};
}

class CudnnBackend final : public Backend {
 public:
  explicit CudnnBackend(device::Device& device) : device_(device) {
    auto graphs = Graphs::create(device.info());
    if (graphs.ok()) {
      graphs_ = std::move(*graphs);
    } else {
      absent_ = graphs.status().message();
    }
  }

  const Capabilities& capabilities() const override { return capabilities_; }

  Support supports(const Batch& b) const override {
    Support s;
    if (!graphs_) s.reasons.push_back(absent_);
    if (b.tree_mask) s.reasons.push_back("cudnn has no token trees");
    // Its graphs by offsets leave their outputs and LSEs as they were.
    for (int32_t i = 0; i < b.num_seqs; ++i) {
      const int32_t q_len = b.q_indptr[i + 1] - b.q_indptr[i];
      if (q_len == 0 || b.kv_len[i] >= (b.causal ? q_len : 1)) continue;
      s.reasons.push_back("cudnn has no rows that see no key");
      break;
    }
    return s;
  }

  // Graphs that split keys keep a float32 row and two sums of each query head and part: as many
  // parts as keep all multiprocessors busy. Measured with cuDNN 9.19 on sm90 as exactly that for
  // two parts a multiprocessor; graphs that want more than twice that are not taken (graph_of).
  int64_t workspace_bytes(const Limits& l) const override {
    const int64_t group = l.q_heads / std::max(l.kv_heads, 1);
    const int64_t rows =
        4 * group * device_.info().multiprocessors + 2 * int64_t{l.max_seqs} * l.q_heads;
    return rows * (l.v_dim + 2) * 4 + 4096;
  }

  std::unique_ptr<Plan> make_plan(const Limits& l, void* workspace) const override;
  Status plan(const Batch& batch, Plan& plan, device::Stream& stream) const override;
  void plan_on(Plan& plan, device::Stream& stream) const override;
  void run(Plan& plan, const LayerParams& params, const kv::PagedKvView& kv, const Io& io,
           device::Stream& stream) const override;

 private:
  Result<const Graph*> graph_of(const CudnnPlan& p, const GraphShape& shape) const;
  Status make_ready(const CudnnPlan& p, Layer& layer) const;

  device::Device& device_;
  std::unique_ptr<Graphs> graphs_;
  std::string absent_;  // why there are no graphs
  const Capabilities capabilities_ = cudnn::capabilities();
};

std::unique_ptr<Plan> CudnnBackend::make_plan(const Limits& l, void* workspace) const {
  auto p = std::make_unique<CudnnPlan>();
  p->limits = l;
  p->workspace = workspace;
  p->workspace_bytes = workspace_bytes(l);
  const int32_t rows = bucket(l.max_seqs, kLeastSeqs);
  const int64_t pitch = graph_shape(l, rows, 1, true, {}).pages();
  const int64_t column = rows + 4;  // one more than rows, and a multiple of 16 bytes
  auto memory = device_.allocate((7 * column + rows * pitch) * 4, "cudnn's page tables");
  if (!memory.ok()) return p;  // plan() says so
  p->memory = std::move(*memory);
  auto* at = p->memory.as<int32_t>();
  p->tables = {.q_len = at,
               .kv_len = at + column,
               .q_offsets = at + 2 * column,
               .lse_offsets = at + 3 * column,
               .pages = at + 7 * column,
               .used = at + 4 * column,
               .rows = rows,
               .pitch = static_cast<int32_t>(pitch),
               .q_width = l.q_heads * l.qk_dim,
               .q_heads = l.q_heads};
  p->q_offsets = at + 5 * column;
  p->out_offsets = at + 6 * column;
  for (const Call& c : l.calls)
    if (check_call(c).ok()) p->layers.push_back({.shape = layer_shape(c.kv, c.io, c.layer.window)});
  return p;
}

Result<const Graph*> CudnnBackend::graph_of(const CudnnPlan& p, const GraphShape& shape) const {
  const auto graph = graphs_->get(shape);
  if (!graph.ok() || Graphs::workspace_bytes(**graph) <= p.workspace_bytes) return graph;
  return unsupported(base::cat("cuDNN: a graph needs ", Graphs::workspace_bytes(**graph),
                               " bytes of workspace, more than the ", p.workspace_bytes,
                               " there are"));
}

// By rows where the batch has one row a sequence and cuDNN such graphs; else by offsets.
Status CudnnBackend::make_ready(const CudnnPlan& p, Layer& layer) const {
  const Batch& b = p.batch;
  layer.pieces.clear();
  for (int32_t first = 0; p.dense && first < b.num_seqs;) {
    const int32_t seqs = largest_piece(b.num_seqs - first);
    const auto graph = graph_of(p, graph_shape(p.limits, seqs, 1, b.causal, layer.shape));
    if (!graph.ok()) {
      layer.pieces.clear();
      break;
    }
    layer.pieces.push_back({*graph, first});
    first += seqs;
  }
  layer.by_rows = !layer.pieces.empty();
  if (layer.by_rows) return {};
  if (b.num_tokens * std::max(layer.shape.q_stride, layer.shape.out_stride) >
      std::numeric_limits<int32_t>::max())
    return unsupported(
        base::cat("cudnn: offsets of ", b.num_tokens, " rows need more than 32 bits"));
  ATTUNE_ASSIGN_OR_RETURN(
      const Graph* graph,
      graph_of(p, graph_shape(p.limits, bucket(b.num_seqs, kLeastSeqs),
                              bucket(b.max_q_len, kLeastRows), b.causal, layer.shape)));
  layer.pieces.push_back({graph, 0});
  return {};
}

Status CudnnBackend::plan(const Batch& batch, Plan& plan, device::Stream&) const {
  auto& p = static_cast<CudnnPlan&>(plan);
  p.batch = {};
  if (!graphs_) return unavailable(absent_);
  if (!p.memory.data()) return resource_exhausted("cudnn: no memory for its page tables");
  ATTUNE_RETURN_IF_ERROR(check_batch(batch, p.limits));
  ATTUNE_RETURN_IF_ERROR(check_on_device(batch));
  const Support support = supports(batch);
  if (!support.ok()) return invalid_argument(support.reasons.front());
  for (const Call& call : p.limits.calls) ATTUNE_RETURN_IF_ERROR(check_call(call));
  p.dense = is_dense(batch);
  p.batch = batch;
  if (batch.num_tokens == 0) return {};
  for (Layer& layer : p.layers) {
    const Status status = make_ready(p, layer);
    if (status.ok()) continue;
    p.batch = {};
    return status;
  }
  return {};
}

void CudnnBackend::plan_on(Plan& plan, device::Stream& stream) const {
  const auto& p = static_cast<CudnnPlan&>(plan);
  if (p.batch.num_seqs == 0) return;
  fill_tables(p.batch.on_device, p.batch.num_seqs, p.limits.page_size, p.tables, stream);
}

void CudnnBackend::run(Plan& plan, const LayerParams& params, const kv::PagedKvView& kv,
                       const Io& io, device::Stream& stream) const {
  auto& p = static_cast<CudnnPlan&>(plan);
  if (p.batch.num_tokens == 0) return;
  const LayerShape shape = layer_shape(kv, io, params.window);
  auto layer = std::find_if(p.layers.begin(), p.layers.end(),
                            [&](const Layer& l) { return l.shape == shape; });
  if (layer == p.layers.end()) {  // nobody said that it would come
    ATTUNE_CHECK(!Graphs::is_captured(stream));
    ATTUNE_CHECK(check_call({params, kv, io}).ok());
    layer = p.layers.insert(layer, {.shape = shape});
    const Status ready = make_ready(p, *layer);
    if (!ready.ok()) base::log_error("attention backend cudnn: ", ready.message());
    ATTUNE_CHECK(ready.ok());
  }
  const Tables& t = p.tables;
  const auto offsets = [&](int64_t stride, int32_t* own) {
    if (layer->by_rows || stride == t.q_width) return t.q_offsets;
    fill_offsets(p.batch.on_device.q_indptr, p.batch.num_seqs, t.rows, stride, own, stream);
    return own;
  };
  const int32_t* q_offsets = offsets(io.q_stride, p.q_offsets);
  const int32_t* out_offsets = offsets(io.out_stride, p.out_offsets);
  const int64_t elem = tensor::dtype_bytes(kv.dtype, 1);
  for (const Piece& piece : layer->pieces) {
    const int64_t first = piece.first;  // also its row: by rows each sequence has one
    const GraphArgs args{.q = static_cast<const char*>(io.q) + first * io.q_stride * elem,
                         .k = kv.base,
                         .v = static_cast<const char*>(kv.base) + kv.v_offset,
                         .out = static_cast<char*>(io.out) + first * io.out_stride * elem,
                         .lse = io.lse ? io.lse + first * t.q_heads : nullptr,
                         .scale = params.scale,
                         .q_len = t.q_len + first,
                         .kv_len = t.kv_len + first,
                         .q_offsets = q_offsets,
                         .out_offsets = out_offsets,
                         .lse_offsets = t.lse_offsets,
                         .pages = t.pages + first * t.pitch,
                         .workspace = p.workspace};
    const Status status = graphs_->run(*piece.graph, args, stream);
    if (!status.ok()) return stream.fail(status.with_context("attention backend cudnn"));
  }
}

}  // namespace

std::unique_ptr<Backend> create(device::Device& device) {
  return std::make_unique<CudnnBackend>(device);
}

}  // namespace attune::attention::cudnn
