#include "attention/order.h"

#include <algorithm>
#include <cmath>

namespace attune::attention {

double steps_between(double a, double b) {
  return std::abs(std::log2(std::max(a, 1.0) / std::max(b, 1.0)));
}

const SizedOrder& nearest(const std::vector<SizedOrder>& orders, int32_t sequences,
                          int32_t tokens) {
  auto distance = [&](const SizedOrder& o) {
    return steps_between(o.sequences, sequences) + steps_between(o.tokens, tokens);
  };
  return *std::min_element(
      orders.begin(), orders.end(),
      [&](const SizedOrder& a, const SizedOrder& b) { return distance(a) < distance(b); });
}

std::vector<std::string> PhaseOrder::for_batch(int32_t sequences, int32_t tokens) const {
  if (sized.empty()) return backends;
  std::vector<std::string> order = nearest(sized, sequences, tokens).backends;
  for (const std::string& name : backends)
    if (std::find(order.begin(), order.end(), name) == order.end()) order.push_back(name);
  return order;
}

}  // namespace attune::attention
