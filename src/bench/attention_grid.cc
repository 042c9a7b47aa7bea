// Which shapes there are, their names, and which of them are asked for.
#include <algorithm>

#include "base/flags.h"
#include "base/log.h"
#include "bench/attention.h"

namespace attune::bench {
namespace {

using attention::Phase;
using base::cat;
using tensor::DType;

constexpr Phase kDecode = Phase::kDecode, kPrefill = Phase::kPrefill, kVerify = Phase::kVerify;
constexpr AttentionHeads kGqa{32, 8, 128, 128}, kWideGqa{64, 8, 128, 128},
    kWidestGqa{64, 4, 128, 128}, kMha{32, 32, 128, 128}, kSmall{9, 3, 64, 64},
    kMla16{16, 1, 576, 512, true}, kMla128{128, 1, 576, 512, true},
    // DeepSeek's, up-projected: head sizes of keys and values differ.
    kUpProjected{16, 16, 192, 128};
constexpr int32_t kDraft = 8, kPrefix = 2048;  // tokens of a verify batch's sequences

void add(std::vector<AttentionCase>& all, const AttentionHeads& heads,
         std::vector<AttentionCase> loads) {
  for (AttentionCase& load : loads) {
    load.heads = heads;
    all.push_back(load);
  }
}

AttentionCase load(Phase phase, int32_t seqs, int32_t q_len, int32_t kv_len, bool ragged = false) {
  return {.phase = phase, .seqs = seqs, .q_len = q_len, .kv_len = kv_len, .ragged = ragged};
}

AttentionCase verify(int32_t seqs, bool tree) {
  AttentionCase c = load(kVerify, seqs, kDraft, kPrefix + kDraft);
  c.tree = tree;
  return c;
}

std::vector<AttentionCase> gpu_shapes() {
  std::vector<AttentionCase> all;
  add(all, kGqa,
      {load(kDecode, 1, 1, 1024), load(kDecode, 1, 1, 8192), load(kDecode, 1, 1, 32768),
       load(kDecode, 4, 1, 1024), load(kDecode, 8, 1, 4096), load(kDecode, 16, 1, 2048),
       load(kDecode, 64, 1, 4096), load(kDecode, 128, 1, 2048), load(kDecode, 256, 1, 1024),
       // As schedulers make them: no multiple of what a GPU does at once.
       load(kDecode, 64, 1, 8192, true), load(kDecode, 17, 1, 1024), load(kDecode, 20, 1, 4096)});
  add(all, kWideGqa, {load(kDecode, 64, 1, 4096)});
  add(all, kWidestGqa, {load(kDecode, 64, 1, 4096)});
  add(all, kMha, {load(kDecode, 64, 1, 2048)});
  add(all, kSmall, {load(kDecode, 64, 1, 1024)});
  add(all, kGqa,
      {load(kPrefill, 16, 1024, 1024), load(kPrefill, 4, 4096, 4096),
       load(kPrefill, 1, 16384, 16384), load(kPrefill, 8, 512, 8704), verify(16, false),
       verify(16, true), verify(64, false), verify(64, true)});
  for (const AttentionHeads& h : {kMla16, kMla128})
    add(all, h,
        {load(kDecode, 1, 1, 8192), load(kDecode, 16, 1, 4096), load(kDecode, 64, 1, 4096),
         load(kDecode, 128, 1, 2048), load(kPrefill, 8, 128, 2176)});
  return all;
}

std::vector<AttentionCase> cpu_shapes() {
  std::vector<AttentionCase> all;
  for (const AttentionHeads& h : {kSmall, kGqa})
    add(all, h,
        {load(kDecode, 1, 1, 1024), load(kDecode, 8, 1, 1024), load(kDecode, 32, 1, 512),
         load(kPrefill, 1, 512, 512), load(kPrefill, 1, 256, 2048)});
  add(all, kMla16, {load(kDecode, 8, 1, 1024)});
  return all;
}

// Those whose times with a cache of 8 bits are told unasked.
bool is_fp8_shape(const AttentionCase& c) {
  return c.heads == kGqa && c.phase == kDecode && !c.ragged &&
         ((c.seqs == 1 && c.kv_len == 8192) || (c.seqs == 64 && c.kv_len == 4096));
}

std::string batch_name(const AttentionCase& c) {
  if (c.q_len == 1) return cat(c.seqs, "x", c.ragged ? "1.." : "", c.kv_len);
  return cat(c.seqs, "x", c.q_len, c.kv_len > c.q_len ? cat("+", c.kv_len - c.q_len) : "");
}

template <typename T>
bool has(const std::vector<T>& all, const T& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

Status check_names(const AttentionConfig& config) {
  const std::vector<std::string> phases = {"decode", "prefill", "verify"};
  for (const std::string& phase : config.phases)
    if (!has(phases, phase))
      return invalid_argument(cat("--phases: '", phase, "' is none of decode, prefill, verify",
                                  base::did_you_mean(phase, phases)));
  for (const std::string& dtype : config.kv_dtypes)
    if (!tensor::parse_dtype(dtype) || tensor::dtype_info(*tensor::parse_dtype(dtype)).quantized)
      return invalid_argument(cat("--kv-dtypes: '", dtype, "' is no type of a cache, such as ",
                                  "float32, float16, bfloat16, fp8_e4m3"));
  for (const int32_t size : config.page_sizes)
    if (size < 1) return invalid_argument(cat("--page-sizes: ", size, ": a page has tokens"));
  return {};
}

bool is_wanted(const AttentionConfig& config, const AttentionCase& c) {
  if (c.heads.mla && !config.mla) return false;
  if (!config.phases.empty() && !has(config.phases, std::string(attention::phase_name(c.phase))))
    return false;
  const std::string name = case_name(c);
  return config.cases.empty() ||
         std::any_of(config.cases.begin(), config.cases.end(),
                     [&](const std::string& text) { return name.find(text) != std::string::npos; });
}

}  // namespace

std::string shape_name(const AttentionCase& c) {
  const AttentionHeads& h = c.heads;
  return cat(attention::phase_name(c.phase), " ", h.q, "/", h.kv, " ", h.qk_dim, "/", h.v_dim, " ",
             batch_name(c));
}

std::string case_name(const AttentionCase& c) {
  return cat(shape_name(c), c.dense_rows() ? std::string(" rows") : cat(" page ", c.page_size), " ",
             tensor::dtype_name(c.kv_dtype), c.tree ? " tree" : "");
}

Result<std::vector<AttentionCase>> attention_grid(const AttentionConfig& config,
                                                  const device::DeviceInfo& device) {
  ATTUNE_RETURN_IF_ERROR(check_names(config));
  const bool gpu = device.kind == device::Kind::kCuda;
  const DType usual = gpu ? DType::kBF16 : DType::kF32;
  std::vector<DType> dtypes;
  for (const std::string& dtype : config.kv_dtypes) dtypes.push_back(*tensor::parse_dtype(dtype));
  std::vector<AttentionCase> grid;
  const auto take = [&](AttentionCase c, DType dtype, int32_t page_size) {
    c.kv_dtype = dtype;
    c.page_size = page_size;
    if (is_wanted(config, c)) grid.push_back(c);
  };
  for (const int32_t page : config.page_sizes)
    for (const AttentionCase& c : gpu ? gpu_shapes() : cpu_shapes()) {
      for (const DType dtype : dtypes) take(c, dtype, page);
      if (!dtypes.empty()) continue;
      take(c, usual, page);
      if (gpu && is_fp8_shape(c)) take(c, DType::kF8E4M3, page);
    }
  AttentionCase rows = load(kPrefill, 4, 4096, 4096);
  rows.heads = kUpProjected;
  if (gpu && config.mla && (dtypes.empty() || has(dtypes, usual))) take(rows, usual, 0);
  if (grid.empty())
    return invalid_argument(cat("no case is left of those that this device has (",
                                gpu ? "decode, prefill, verify" : "decode, prefill",
                                "; --cases takes parts of names as they are printed, such as '",
                                shape_name((gpu ? gpu_shapes() : cpu_shapes()).front()),
                                "'): leave out some of --phases, "
                                "--cases, --kv-dtypes"));
  return grid;
}

}  // namespace attune::bench
