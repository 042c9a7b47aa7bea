#include "bench/attention_report.h"

#include <algorithm>
#include <cstdio>

#include "attention/arch.h"
#include "base/log.h"
#include "bench/attention_peers.h"

namespace attune::bench {
namespace {

using attention::Phase;
using base::cat;

// A backend whose Hopper kernels are this project's.
bool is_ours(const std::string& backend) {
  return backend == "fa3" || backend == "trtllm_mla";
}

// Seconds at `speed` of what takes `seconds` at `than`, or by the row's work; 0: unknown.
double at_speed(const AttentionRow& row, double speed, double than, double seconds) {
  if (speed <= 0) return 0;
  if (seconds > 0) return seconds * than / speed;
  if (row.what.phase != Phase::kPrefill) return 0;  // speeds of small batches are bare reciprocals
  return row.flops / (speed * 1e12);
}

Comparison compare_case(const AttentionRow& ours, const std::vector<AttentionRow>& rows) {
  Comparison c{.ours = ours};
  double flashinfer = 0;
  const std::string name = case_name(ours.what);
  for (const AttentionRow& row : rows) {
    if (row.seconds <= 0 || is_ours(row.backend) || case_name(row.what) != name) continue;
    if (row.backend == "flashinfer") flashinfer = row.seconds;
    if (c.other_seconds > 0 && row.seconds >= c.other_seconds) continue;
    c.other = row.backend;
    c.other_seconds = row.seconds;
  }
  const PeerSpeeds peers = find_peers(ours.what);
  c.fa3_seconds = at_speed(ours, peers.fa3, peers.flashinfer, flashinfer);
  c.contiguous_seconds = at_speed(ours, peers.contiguous, peers.flashinfer, flashinfer);
  c.other_page = peers.other_page;
  return c;
}

// "248.1", "-" for none.
std::string microseconds(double seconds, const char* mark = "") {
  if (seconds <= 0) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%s%.1f", mark, seconds * 1e6);
  return text;
}

std::string rate(const AttentionRow& row) {
  char text[48];
  if (row.what.phase == Phase::kPrefill) {
    std::snprintf(text, sizeof text, "%.0f TFLOP/s", row.flops / row.seconds / 1e12);
  } else {
    std::snprintf(text, sizeof text, "%.0f GB/s", double(row.kv_bytes) / row.seconds / 1e9);
  }
  return text;
}

std::string ratio(double value) {
  if (value <= 0) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", value);
  return text;
}

}  // namespace

std::string to_json(const AttentionRow& r, const device::DeviceInfo& device) {
  const AttentionCase& c = r.what;
  const bool mla = c.heads.mla || c.dense_rows();
  char figures[256];
  std::snprintf(figures, sizeof figures,
                "\"us\":%.2f,\"read_us\":%.2f,\"gb_per_s\":%.1f,\"tflop_per_s\":%.2f",
                r.seconds * 1e6, r.read_seconds * 1e6, double(r.kv_bytes) / r.seconds / 1e9,
                r.flops / r.seconds / 1e12);
  return cat("{\"device\":\"", device.name, "\",\"arch\":\"",
             attention::arch_name(attention::arch_of(device)), "\",\"backend\":\"", r.backend,
             "\",\"kind\":\"", mla ? "mla" : "mha", "\",\"phase\":\"",
             attention::phase_name(c.phase), "\",\"timing\":\"",
             r.timing == Timing::kStep ? "step" : "alone", "\",\"q_heads\":", c.heads.q,
             ",\"kv_heads\":", c.heads.kv, ",\"qk_dim\":", c.heads.qk_dim,
             ",\"v_dim\":", c.heads.v_dim, ",\"kv_dtype\":\"", tensor::dtype_name(c.kv_dtype),
             "\",\"page_size\":", c.page_size, ",\"seqs\":", c.seqs, ",\"q_len\":", c.q_len,
             ",\"kv_len\":", c.kv_len, ",\"ragged\":", c.ragged ? "true" : "false",
             ",\"tree\":", c.tree ? "true" : "false", ",", figures, "}");
}

std::string attention_header() {
  char line[160];
  std::snprintf(line, sizeof line, "%-52s %-14s %9s %8s %9s %10s", "case", "backend", "us", "GB/s",
                "TFLOP/s", "of a read");
  return line;
}

std::string to_line(const AttentionRow& r) {
  char line[160];
  std::snprintf(line, sizeof line, "%-52s %-14s ", case_name(r.what).c_str(), r.backend.c_str());
  if (!r.refused.empty()) return cat(line, r.refused);
  char figures[128];
  std::snprintf(figures, sizeof figures, "%9.1f %8.1f %9.3f %10.3f", r.seconds * 1e6,
                double(r.kv_bytes) / r.seconds / 1e9, r.flops / r.seconds / 1e12,
                r.read_seconds / r.seconds);
  return cat(line, figures);
}

double Comparison::ahead() const {
  double best = 0;
  for (const double seconds : {other_seconds, fa3_seconds})
    if (seconds > 0 && (best == 0 || seconds < best)) best = seconds;
  return best / ours.seconds;
}

std::vector<Comparison> compare(const std::vector<AttentionRow>& rows) {
  std::vector<Comparison> all;
  for (const AttentionRow& row : rows)
    if (is_ours(row.backend) && row.seconds > 0) all.push_back(compare_case(row, rows));
  return all;
}

std::string summary(const std::vector<Comparison>& all) {
  if (all.empty()) return "";
  constexpr const char* kFormat = "%-52s %-12s %9s %12s %10s  %-12s %9s %9s %10s %7s\n";
  char line[256];
  std::string out = cat(
      "Ours against the best of the others. FA3: what FlashAttention-3 would take, by its ratio to "
      "FlashInfer (",
      kPeersMeasured,
      "; ~: that of pages of 64); contiguous: the best of all on such keys, likewise. ahead: what "
      "the best of them, but for contiguous, takes over ours.\n");
  std::snprintf(line, sizeof line, kFormat, "case", "ours", "us", "rate", "of a read", "best other",
                "us", "FA3 us", "contiguous", "ahead");
  out += line;
  for (const Comparison& c : all) {
    const char* mark = c.other_page ? "~" : "";
    std::snprintf(line, sizeof line, kFormat, case_name(c.ours.what).c_str(),
                  c.ours.backend.c_str(), microseconds(c.ours.seconds).c_str(),
                  rate(c.ours).c_str(), ratio(c.ours.read_seconds / c.ours.seconds).c_str(),
                  c.other.empty() ? "-" : c.other.c_str(), microseconds(c.other_seconds).c_str(),
                  microseconds(c.fa3_seconds, mark).c_str(),
                  microseconds(c.contiguous_seconds, mark).c_str(), ratio(c.ahead()).c_str());
    out += line;
  }
  return out;
}

}  // namespace attune::bench
