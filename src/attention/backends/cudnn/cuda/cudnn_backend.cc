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

// Graphs take up to half a second to be built, so they are for powers of two, from `least` on.
int32_t bucket(int32_t n, int32_t least) {
  return static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(std::max(n, least))));
}
constexpr int32_t kLeastSeqs = 8, kLeastRows = 128, kLeastKeys = 1024;

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
          .kv_len = bucket(l.max_kv_len, kLeastKeys),
          .q_heads = l.q_heads,
          .kv_heads = l.kv_heads,
          .dim = l.qk_dim,
          .page_size = l.page_size,
          .num_slots = bucket(l.num_slots, kLeastKeys),
          .page_stride = layer.page_stride,
          .head_stride = layer.head_stride,
          .token_stride = layer.token_stride,
          .q_stride = layer.q_stride,
          .out_stride = layer.out_stride,
          .window = layer.window,
          .causal = causal,
          .lse = layer.lse};
}

struct CudnnPlan final : Plan {
  Limits limits;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  device::Buffer memory;  // of tables
  Tables tables{};        // for the largest batch
  // Offsets of rows that do not lie side by side.
  int32_t *q_offsets = nullptr, *out_offsets = nullptr;
  Batch batch;
  bool dense = false;              // the batch
  std::vector<LayerShape> layers;  // that were run
};

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
  void run(Plan& plan, const LayerParams& layer, const kv::PagedKvView& kv, const Io& io,
           device::Stream& stream) const override;

 private:
  Result<const Graph*> graph_of(const CudnnPlan& p, const LayerShape& layer) const;

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
  const int64_t ints = 6 * (int64_t{rows} + 1) + rows * pitch;
  auto memory = device_.allocate(ints * 4, "cudnn's page tables");
  if (!memory.ok()) return p;  // plan() says so
  p->memory = std::move(*memory);
  auto* at = p->memory.as<int32_t>();
  p->tables = {.q_len = at,
               .kv_len = at + (rows + 1),
               .q_offsets = at + 2 * (rows + 1),
               .lse_offsets = at + 3 * (rows + 1),
               .pages = at + 6 * (rows + 1),
               .rows = rows,
               .pitch = static_cast<int32_t>(pitch),
               .q_width = l.q_heads * l.qk_dim,
               .q_heads = l.q_heads};
  p->q_offsets = at + 4 * (rows + 1);
  p->out_offsets = at + 5 * (rows + 1);
  return p;
}

// By rows where the batch has one row a sequence and cuDNN such a graph; else by offsets.
Result<const Graph*> CudnnBackend::graph_of(const CudnnPlan& p, const LayerShape& layer) const {
  const Batch& b = p.batch;
  const auto fits = [&](const Result<const Graph*>& graph) {
    return graph.ok() && Graphs::workspace_bytes(**graph) <= p.workspace_bytes;
  };
  if (p.dense) {
    auto graph = graphs_->get(graph_shape(p.limits, b.num_seqs, 1, b.causal, layer));
    if (fits(graph)) return graph;
  }
  auto graph = graphs_->get(graph_shape(p.limits, bucket(b.num_seqs, kLeastSeqs),
                                        bucket(b.max_q_len, kLeastRows), b.causal, layer));
  if (!graph.ok() || fits(graph)) return graph;
  return resource_exhausted(base::cat("a graph needs ", Graphs::workspace_bytes(**graph),
                                      " bytes of workspace, more than the ", p.workspace_bytes,
                                      " there are"));
}

Status CudnnBackend::plan(const Batch& batch, Plan& plan, device::Stream&) const {
  auto& p = static_cast<CudnnPlan&>(plan);
  p.batch = {};
  if (!graphs_) return unavailable(absent_);
  if (!p.memory.data()) return resource_exhausted("cudnn: no memory for its page tables");
  ATTUNE_RETURN_IF_ERROR(check_batch(batch, p.limits));
  ATTUNE_RETURN_IF_ERROR(check_on_device(batch));
  if (int64_t{batch.num_tokens} * p.tables.q_width > std::numeric_limits<int32_t>::max())
    return unsupported(base::cat("cudnn: offsets of ", batch.num_tokens, " rows of ",
                                 p.tables.q_width, " elements need more than 32 bits"));
  const Support support = supports(batch);
  if (!support.ok()) return invalid_argument(support.reasons.front());
  p.dense = is_dense(batch);
  p.batch = batch;
  // So that no step builds what run() would have to.
  for (const LayerShape& layer : p.layers) {
    const auto graph = graph_of(p, layer);
    if (!graph.ok()) {
      p.batch = {};
      return graph.status();
    }
  }
  return {};
}

void CudnnBackend::plan_on(Plan& plan, device::Stream& stream) const {
  const auto& p = static_cast<CudnnPlan&>(plan);
  if (p.batch.num_seqs == 0) return;
  fill_tables(p.batch.on_device, p.batch.num_seqs, p.limits.page_size, p.tables, stream);
}

void CudnnBackend::run(Plan& plan, const LayerParams& layer, const kv::PagedKvView& kv,
                       const Io& io, device::Stream& stream) const {
  auto& p = static_cast<CudnnPlan&>(plan);
  if (p.batch.num_tokens == 0) return;
  const int64_t width = p.tables.q_width;
  ATTUNE_CHECK(p.batch.num_tokens * std::max(io.q_stride, io.out_stride) <=
               std::numeric_limits<int32_t>::max());
  ATTUNE_CHECK(io.q_dtype == kv.dtype && io.out_dtype == kv.dtype);
  const LayerShape shape = layer_shape(kv, io, layer.window);
  if (std::find(p.layers.begin(), p.layers.end(), shape) == p.layers.end())
    p.layers.push_back(shape);
  const auto graph = graph_of(p, shape);
  if (!graph.ok()) base::log_error("attention backend cudnn: ", graph.status().message());
  ATTUNE_CHECK(graph.ok());
  const Tables& t = p.tables;
  const auto offsets = [&](int64_t stride, int32_t* own) {
    if (stride == width) return t.q_offsets;
    fill_offsets(p.batch.on_device.q_indptr, p.batch.num_seqs, t.rows, stride, own, stream);
    return own;
  };
  const GraphArgs args{.q = io.q,
                       .k = kv.base,
                       .v = static_cast<const char*>(kv.base) + kv.v_offset,
                       .out = io.out,
                       .lse = io.lse,
                       .scale = layer.scale,
                       .q_len = t.q_len,
                       .kv_len = t.kv_len,
                       .q_offsets = offsets(io.q_stride, p.q_offsets),
                       .out_offsets = offsets(io.out_stride, p.out_offsets),
                       .lse_offsets = t.lse_offsets,
                       .pages = t.pages,
                       .workspace = p.workspace};
  const Status status = graphs_->run(**graph, args, stream);
  if (!status.ok()) base::log_error("attention backend cudnn: ", status.message());
  ATTUNE_CHECK(status.ok());
}

}  // namespace

std::unique_ptr<Backend> create(device::Device& device) {
  return std::make_unique<CudnnBackend>(device);
}

}  // namespace attune::attention::cudnn
