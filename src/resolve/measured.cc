// S4: orders that a benchmark of this build found, by shape. Nearness is in powers of two, summed
// over what differs.
#include <cmath>

#include "resolve/rules.h"

namespace attune::resolve {
namespace {

// A cell of the other type of cache counts as four powers of two away.
constexpr double kOtherType = 4;

double steps(double a, double b) {
  return std::abs(std::log2(std::max(a, 1.0) / std::max(b, 1.0)));
}

int32_t page_or_preferred(const State& s) {
  return s.out.page_size > 0 ? s.out.page_size : 64;
}

double shape_distance(const State& s, const MeasuredCell& cell) {
  const ModelTraits& m = s.in.model;
  return steps(cell.q_heads, m.q_heads) + steps(cell.kv_heads, m.kv_heads) +
         steps(cell.head_dim, m.head.qk) + steps(cell.page_size, page_or_preferred(s)) +
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

const SizedOrder& nearest(const std::vector<SizedOrder>& orders, int32_t sequences,
                          int32_t tokens) {
  auto distance = [&](const SizedOrder& o) {
    return steps(o.sequences, sequences) + steps(o.tokens, tokens);
  };
  return *std::min_element(
      orders.begin(), orders.end(),
      [&](const SizedOrder& a, const SizedOrder& b) { return distance(a) < distance(b); });
}

}  // namespace attune::resolve
