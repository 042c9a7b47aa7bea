// What the resolver decides for the route, as plain data: in which order backends are tried for a
// phase, and what decides an MLA sequence's path.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "attention/capabilities.h"

namespace attune::attention {

// An order that was measured for batches near this size (docs/selection-rules.md, S4).
struct SizedOrder {
  int32_t sequences = 0, tokens = 0;  // of each
  std::vector<std::string> backends;  // best first

  bool operator==(const SizedOrder&) const = default;
};

struct PhaseOrder {
  std::vector<std::string> backends;  // best first
  std::vector<SizedOrder> sized;      // empty: `backends` holds for every batch

  // The order for a batch: the nearest cell's, in powers of two of both sizes, then the rest.
  std::vector<std::string> for_batch(int32_t sequences, int32_t tokens) const;

  bool operator==(const PhaseOrder&) const = default;
};

// What decides an MLA sequence's path (docs/selection-rules.md, M1 to M4). Tokens.
struct MlaPolicy {
  bool chunked_prefix = true;
  int64_t capacity = 0;      // keys up-projected at once
  int32_t absorb_below = 0;  // fewer new tokens than this on a prefix are absorbed
  bool one_path = false;     // deterministic: kAbsorbed serves every sequence (S12)

  bool operator==(const MlaPolicy&) const = default;
};

using BackendOrder = std::array<PhaseOrder, kNumPhases>;

// The cell of `orders` nearest to a batch. REQUIRES: not empty.
const SizedOrder& nearest(const std::vector<SizedOrder>& orders, int32_t sequences, int32_t tokens);
// |log2(a / b)|, of counts.
double steps_between(double a, double b);

}  // namespace attune::attention
