// What `attune bench attention` tells: rows as JSON and as lines of a table, and a summary of our
// Hopper kernels against all others.
#pragma once

#include <string>
#include <vector>

#include "bench/attention.h"
#include "device/device.h"

namespace attune::bench {

std::string to_json(const AttentionRow& row, const device::DeviceInfo& device);  // one line
std::string attention_header();
std::string to_line(const AttentionRow& row);  // of a table

// One case that a backend of ours (fa3; trtllm_mla) was timed on. Seconds; 0: there is none.
struct Comparison {
  AttentionRow ours;
  std::string other;  // the best of the others
  double other_seconds = 0;
  // What FlashAttention-3 would take by its ratio to FlashInfer (attention_peers.h), by its speed
  // where FlashInfer was not timed; and the best of all on contiguous keys likewise.
  double fa3_seconds = 0, contiguous_seconds = 0;
  bool other_page = false;  // that ratio is one of pages of 64

  // How much longer the best of the others takes, FlashAttention-3 included; 0: there is none.
  double ahead() const;
};

// In the order of the rows; a case without a row of ours has none.
std::vector<Comparison> compare(const std::vector<AttentionRow>& rows);
// A table with what its columns mean; "" if there is nothing to compare.
std::string summary(const std::vector<Comparison>& all);

}  // namespace attune::bench
