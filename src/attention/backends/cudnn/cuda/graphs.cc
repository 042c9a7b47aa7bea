#include "attention/backends/cudnn/cuda/graphs.h"

#include <cuda_runtime.h>
#include <cudnn_frontend.h>

#include <unordered_map>
#include <utility>
#include <vector>

#include "attention/backends/cudnn/cuda/cudnn_api.h"
#include "base/log.h"

namespace attune::attention::cudnn {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;

namespace {

enum Uid : int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLse,
  kScale,
  kQLen,
  kKvLen,
  kQOffsets,
  kOutOffsets,
  kLseOffsets,
  kKPages,
  kVPages
};

Status to_status(fe::error_t error, const char* what) {
  if (error.is_good()) return {};
  return unsupported(base::cat("cuDNN: ", what, ": ", error.get_message()));
}

// The frontend throws where a descriptor of its own cannot be made.
template <typename Fn>
Status caught(Fn&& fn) {
  try {
    return fn();
  } catch (const std::exception& e) {
    return unsupported(base::cat("cuDNN: ", e.what()));
  }
}

}  // namespace

class Graph {
 public:
  explicit Graph(const GraphShape& shape) : s_(shape) {}
  Status build(cudnnHandle_t handle);
  const GraphShape& shape() const { return s_; }
  int64_t workspace() const { return workspace_; }
  Status execute(cudnnHandle_t handle, const GraphArgs& args) const;

 private:
  Tensor tensor(const char* name, Uid uid, std::vector<int64_t> dim, std::vector<int64_t> stride) {
    return graph_.tensor(
        Tensor_attributes().set_name(name).set_uid(uid).set_dim(dim).set_stride(stride));
  }
  Tensor integers(const char* name, Uid uid, int64_t rows, int64_t columns) {
    Tensor t = tensor(name, uid, {rows, 1, columns, 1}, {columns, columns, 1, 1});
    t->set_data_type(fe::DataType_t::INT32);
    return t;
  }
  fe::graph::SDPA_attributes options();

  const GraphShape s_;
  fe::graph::Graph graph_;
  int64_t workspace_ = 0;
};

fe::graph::SDPA_attributes Graph::options() {
  Tensor scale = graph_.tensor(Tensor_attributes()
                                   .set_name("scale")
                                   .set_uid(kScale)
                                   .set_dim({1, 1, 1, 1})
                                   .set_stride({1, 1, 1, 1})
                                   .set_is_pass_by_value(true)
                                   .set_data_type(fe::DataType_t::FLOAT));
  auto o = fe::graph::SDPA_attributes()
               .set_name("attention")
               .set_generate_stats(s_.lse)
               .set_attn_scale(scale)
               .set_padding_mask(true)
               .set_seq_len_q(integers("q_len", kQLen, s_.seqs, 1))
               .set_seq_len_kv(integers("kv_len", kKvLen, s_.seqs, 1))
               .set_paged_attention_k_table(integers("k_pages", kKPages, s_.seqs, s_.pages()))
               .set_paged_attention_v_table(integers("v_pages", kVPages, s_.seqs, s_.pages()))
               .set_paged_attention_max_seq_len_kv(s_.pages() * s_.page_size);
  // One query is the sequence's last token: nothing is after it.
  const bool causal = s_.causal && s_.q_len > 1;
  if (causal || s_.window > 0) o.set_diagonal_alignment(fe::DiagonalAlignment_t::BOTTOM_RIGHT);
  if (causal) o.set_diagonal_band_right_bound(0);
  if (s_.window > 0) o.set_diagonal_band_left_bound(s_.window);
  return o;
}

Status Graph::build(cudnnHandle_t handle) {
  const int64_t h = s_.q_heads, d = s_.dim;
  graph_
      .set_io_data_type(s_.dtype == tensor::DType::kF16 ? fe::DataType_t::HALF
                                                        : fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  // Rows lie token by token.
  const std::vector<int64_t> rows = {s_.seqs, h, s_.q_len, d};
  const auto strides_of = [&](int64_t row) {
    return std::vector<int64_t>{s_.q_len * row, d, row, 1};
  };
  Tensor q = tensor("q", kQ, rows, strides_of(s_.q_stride));
  if (!s_.dense()) q->set_ragged_offset(integers("q_offsets", kQOffsets, s_.seqs + 1, 1));
  const std::vector<int64_t> pool = {s_.num_slots, s_.kv_heads, s_.page_size, d},
                             strides = {s_.page_stride, s_.head_stride, s_.token_stride, 1};
  const Tensor k = tensor("k", kK, pool, strides), v = tensor("v", kV, pool, strides);
  auto [out, lse] = graph_.sdpa(q, k, v, options());
  out->set_output(true).set_uid(kOut).set_dim(rows).set_stride(strides_of(s_.out_stride));
  if (!s_.dense()) out->set_ragged_offset(integers("out_offsets", kOutOffsets, s_.seqs + 1, 1));
  if (s_.lse) {
    lse->set_output(true)
        .set_uid(kLse)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({s_.seqs, h, s_.q_len, 1})
        .set_stride({s_.q_len * h, 1, h, 1});
    if (!s_.dense()) lse->set_ragged_offset(integers("lse_offsets", kLseOffsets, s_.seqs + 1, 1));
  }
  ATTUNE_RETURN_IF_ERROR(to_status(graph_.validate(), "validate"));
  ATTUNE_RETURN_IF_ERROR(to_status(graph_.build_operation_graph(handle), "operation graph"));
  ATTUNE_RETURN_IF_ERROR(
      to_status(graph_.create_execution_plans({fe::HeurMode_t::A}), "execution plans"));
  ATTUNE_RETURN_IF_ERROR(to_status(graph_.check_support(handle), "support"));
  ATTUNE_RETURN_IF_ERROR(to_status(graph_.build_plans(handle), "plan"));
  return to_status(graph_.get_workspace_size(workspace_), "workspace");
}

Status Graph::execute(cudnnHandle_t handle, const GraphArgs& a) const {
  float scale = a.scale;
  const auto mutable_of = [](const void* p) { return const_cast<void*>(p); };
  std::unordered_map<int64_t, void*> pack = {{kQ, mutable_of(a.q)},
                                             {kK, mutable_of(a.k)},
                                             {kV, mutable_of(a.v)},
                                             {kOut, a.out},
                                             {kScale, &scale},
                                             {kQLen, mutable_of(a.q_len)},
                                             {kKvLen, mutable_of(a.kv_len)},
                                             {kKPages, mutable_of(a.pages)},
                                             {kVPages, mutable_of(a.pages)}};
  if (!s_.dense()) {
    pack[kQOffsets] = mutable_of(a.q_offsets);
    pack[kOutOffsets] = mutable_of(a.out_offsets);
  }
  if (s_.lse) {
    pack[kLse] = a.lse;
    if (!s_.dense()) pack[kLseOffsets] = mutable_of(a.lse_offsets);
  }
  return to_status(graph_.execute(handle, pack, a.workspace), "execute");
}

struct Graphs::Handle {
  ~Handle() { cudnnDestroy(handle); }
  cudnnHandle_t handle = nullptr;
};

Graphs::Graphs(std::unique_ptr<Handle> handle) : handle_(std::move(handle)) {}
Graphs::~Graphs() = default;

Result<std::unique_ptr<Graphs>> Graphs::create(const device::DeviceInfo& info) {
  ATTUNE_RETURN_IF_ERROR(open_cudnn(info.libraries));
  cudaSetDevice(info.index);
  auto handle = std::make_unique<Handle>();
  if (const cudnnStatus_t status = cudnnCreate(&handle->handle); status != CUDNN_STATUS_SUCCESS)
    return unavailable(base::cat("cuDNN does not start: ", cudnnGetErrorString(status)));
  return std::unique_ptr<Graphs>(new Graphs(std::move(handle)));
}

Result<const Graph*> Graphs::get(const GraphShape& shape) {
  auto it = graphs_.find(shape);
  if (it == graphs_.end()) {
    auto graph = std::make_unique<Graph>(shape);
    const Status built = caught([&] { return graph->build(handle_->handle); });
    it = graphs_
             .emplace(shape, built.ok() ? Result<std::unique_ptr<Graph>>(std::move(graph))
                                        : Result<std::unique_ptr<Graph>>(built))
             .first;
  }
  if (!it->second.ok()) return it->second.status();
  return static_cast<const Graph*>(it->second->get());
}

bool Graphs::is_captured(device::Stream& stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(static_cast<cudaStream_t>(stream.native()), &status);
  return status != cudaStreamCaptureStatusNone;
}

int64_t Graphs::workspace_bytes(const Graph& graph) {
  return graph.workspace();
}

Status Graphs::run(const Graph& graph, const GraphArgs& args, device::Stream& stream) {
  const GraphShape& s = graph.shape();
  stream.record_launch("cudnn_attention", {0, 0, 0}, {0, 0, 0},
                       {{"seqs", s.seqs}, {"q_len", s.q_len}, {"kv_len", s.kv_len}});
  cudnnSetStream(handle_->handle, static_cast<cudaStream_t>(stream.native()));
  return caught([&] { return graph.execute(handle_->handle, args); });
}

}  // namespace attune::attention::cudnn
