// CUDA graphs.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <string>

#include "device/cuda/stream.h"
#include "device/device.h"

namespace attune::device {

class CudaGraph final : public Graph {
 public:
  static Result<std::unique_ptr<Graph>> create(CudaStream& stream, const std::string& what,
                                               const std::function<void()>& fn);
  ~CudaGraph() override;
  void launch(Stream& stream) override;
  Result<GraphUpdate> update(Stream& stream, const std::function<void()>& fn) override;
  int64_t nodes() const override { return nodes_; }

 private:
  explicit CudaGraph(std::string what) : what_(std::move(what)) {}
  // Takes the place of what there was; after a failure that is still there.
  Status instantiate(CudaStream& stream, cudaGraph_t graph);

  std::string what_;
  cudaGraphExec_t exec_ = nullptr;
  int64_t nodes_ = 0;
};

}  // namespace attune::device
