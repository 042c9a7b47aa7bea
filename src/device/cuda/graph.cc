#include "device/cuda/graph.h"

#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace attune::device {
namespace {

struct GraphCloser {
  cudaGraph_t graph;
  ~GraphCloser() { log_failure(cudaGraphDestroy(graph), "cudaGraphDestroy"); }
};

CudaStream& cuda(Stream& stream) {
  ATTUNE_CHECK(stream.kind() == Kind::kCuda);
  return static_cast<CudaStream&>(stream);
}

Result<int64_t> count_nodes(const CudaStream& stream, cudaGraph_t graph) {
  size_t nodes = 0;
  ATTUNE_RETURN_IF_ERROR(
      stream.explain(cudaGraphGetNodes(graph, nullptr, &nodes), "cudaGraphGetNodes"));
  return static_cast<int64_t>(nodes);
}

}  // namespace

Result<std::unique_ptr<Graph>> CudaGraph::create(CudaStream& stream, const std::string& what,
                                                 const std::function<void()>& fn) {
  ATTUNE_ASSIGN_OR_RETURN(const cudaGraph_t captured, stream.capture_graph(what, fn));
  const GraphCloser closer{captured};
  std::unique_ptr<CudaGraph> graph(new CudaGraph(what));
  ATTUNE_RETURN_IF_ERROR(graph->instantiate(stream, captured));
  return std::unique_ptr<Graph>(std::move(graph));
}

// One that still runs is freed by CUDA when it has ended.
CudaGraph::~CudaGraph() {
  if (exec_) log_failure(cudaGraphExecDestroy(exec_), "cudaGraphExecDestroy");
}

Status CudaGraph::instantiate(CudaStream& stream, cudaGraph_t graph) {
  const std::string context = "graph '" + what_ + "': ";
  ATTUNE_ASSIGN_OR_RETURN(const int64_t nodes, count_nodes(stream, graph));
  cudaGraphExec_t exec = nullptr;
  ATTUNE_RETURN_IF_ERROR(
      stream.explain(cudaGraphInstantiate(&exec, graph, 0), context + "cudaGraphInstantiate"));
  // Now, not at the first launch: that one shall allocate nothing.
  const Status uploaded =
      stream.explain(cudaGraphUpload(exec, static_cast<cudaStream_t>(stream.native())),
                     context + "cudaGraphUpload");
  if (!uploaded.ok()) {
    log_failure(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
    return uploaded;
  }
  std::swap(exec_, exec);
  nodes_ = nodes;
  if (exec) log_failure(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
  return {};
}

void CudaGraph::launch(Stream& stream) {
  cuda(stream).launch_graph(exec_, what_, nodes_);
}

Result<GraphUpdate> CudaGraph::update(Stream& stream, const std::function<void()>& fn) {
  CudaStream& s = cuda(stream);
  ATTUNE_ASSIGN_OR_RETURN(const cudaGraph_t captured, s.capture_graph(what_, fn));
  const GraphCloser closer{captured};
  cudaGraphExecUpdateResultInfo info{};
  const cudaError_t updated = cudaGraphExecUpdate(exec_, captured, &info);
  if (updated == cudaSuccess) return GraphUpdate::kInPlace;
  if (updated != cudaErrorGraphExecUpdateFailure)
    return s.explain(updated, "graph '" + what_ + "': cudaGraphExecUpdate");
  cudaGetLastError();  // not a failure: the work has another shape
  ATTUNE_RETURN_IF_ERROR(instantiate(s, captured));
  return GraphUpdate::kInstantiated;
}

}  // namespace attune::device
