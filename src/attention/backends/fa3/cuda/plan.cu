#include "attention/backends/fa3/cuda/plan.cuh"
#include "attention/backends/fa3/launches.h"

namespace attune::attention::fa3 {

void launch_plan(device::Stream& stream, const PlanArgs& args) {
  device::launch_kernel(
      stream, "fa3_plan",
      {.grid = {static_cast<uint32_t>(kPlanCtas), static_cast<uint32_t>(args.num_windows)},
       .block = kPlanThreads},
      {{"seqs", args.num_seqs},
       {"block_rows", args.block_rows},
       {"heads", args.heads},
       {"splits", args.cut.num_splits},
       {"fixed", args.cut.fixed}},
      plan_kernel, args);
}

}  // namespace attune::attention::fa3
