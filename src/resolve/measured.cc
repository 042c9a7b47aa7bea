// S4: orders that a benchmark of this build found, by shape. Nearness is in powers of two, summed
// over what differs.
#include <cmath>

#include "resolve/rules.h"

namespace attune::resolve {
namespace {

// A cell of the other type of cache counts as four powers of two away.
constexpr double kOtherType = 4;

using attention::steps_between;

int32_t page_or_preferred(const State& s) {
  return s.out.page_size > 0 ? s.out.page_size : 64;
}

double shape_distance(const State& s, const MeasuredCell& cell) {
  const ModelTraits& m = s.in.model;
  return steps_between(cell.q_heads, m.q_heads) + steps_between(cell.kv_heads, m.kv_heads) +
         steps_between(cell.head_dim, m.head.qk) +
         steps_between(cell.page_size, page_or_preferred(s)) +
         (cell.kv_dtype == s.out.kv_dtype ? 0 : kOtherType);
}

}  // namespace

std::vector<SizedOrder> measured_orders(const State& s, attention::Phase phase) {
  if (s.in.device.simulated) return {};  // a table belongs to the machine and build that made it
  auto mine = [&](const MeasuredCell& c) {
    return c.arch == s.in.device.arch && c.kind == s.in.model.kind && c.phase == phase;
  };
  double nearest_shape = INFINITY;
  for (const MeasuredCell& c : s.in.preferences.measured)
    if (mine(c)) nearest_shape = std::min(nearest_shape, shape_distance(s, c));
  std::vector<SizedOrder> orders;
  for (const MeasuredCell& c : s.in.preferences.measured)
    if (mine(c) && shape_distance(s, c) == nearest_shape)
      orders.push_back({c.sequences, c.tokens, c.order});
  return orders;
}

}  // namespace attune::resolve
