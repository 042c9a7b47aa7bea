#include "bench/attention.h"
#include "base/flags.h"

#include <algorithm>
#include <memory>

#include "attention/arch.h"
#include "attention/registry.h"
#include "base/log.h"
#include "bench/attention_timer.h"

namespace attune::bench {
namespace {

using attention::arch_of;
using attention::Backend;
using attention::BackendEntry;
using attention::Capabilities;
using attention::Path;
using attention::Phase;
using base::cat;

template <typename T>
bool has(const std::vector<T>& all, const T& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

struct Candidate {
  const BackendEntry* entry;
  std::unique_ptr<Backend> backend;
};

Result<std::vector<Candidate>> candidates(const AttentionConfig& config, device::Device& device) {
  std::vector<std::string> names;
  for (const BackendEntry& entry : attention::backends()) names.push_back(entry.capabilities.name);
  for (const std::string& name : config.backends)
    if (!attention::find_backend(name))
      return invalid_argument(
          cat("--backends: there is no backend '", name, "'", base::did_you_mean(name, names)));
  std::vector<Candidate> out;
  for (const BackendEntry& entry : attention::backends()) {
    const std::string& name = entry.capabilities.name;
    const bool named = has(config.backends, name);
    // The oracle is a hundred times slower: only on request.
    if (config.backends.empty() ? entry.capabilities.oracle : !named) continue;
    const bool here = has(entry.capabilities.archs, arch_of(device.info()));
    if (named && (!entry.create || !here))
      return unsupported(cat("--backends ", name, ": ",
                             entry.create ? "it does not run on this device" : entry.unavailable));
    if (entry.create && here) out.push_back({&entry, entry.create(device)});
  }
  return out;
}

// What of `tuning` a backend does not take; "": it takes all.
std::string not_taken(const Capabilities& c, const attention::Tuning& tuning) {
  if (tuning.num_splits > 0 && !c.num_splits) return "takes no --num-splits";
  if (tuning.pack_gqa != attention::Toggle::kAuto && !c.pack_gqa) return "takes no --pack-gqa";
  return "";
}

// Of a backend that may be asked.
void time_row(const Candidate& candidate, AttentionTimer& timer, int repeats, AttentionRow& row) {
  const attention::Support support = candidate.backend->supports(timer.batch());
  if (!support.ok()) {
    row.refused = support.reasons[0];
    return;
  }
  const auto seconds = timer.time_backend(*candidate.backend, repeats);
  if (seconds.ok()) row.seconds = *seconds;
  if (!seconds.ok()) row.refused = seconds.status().message();
}

}  // namespace

bool serves_kind(const Capabilities& c, const AttentionCase& a) {
  const bool mla = a.heads.mla || a.dense_rows();
  return has(c.kinds, mla ? attention::AttentionKind::kMla : attention::AttentionKind::kMha);
}

std::string why_not(const Capabilities& c, const AttentionCase& a, const device::DeviceInfo& info) {
  const attention::HeadDims dims{a.heads.qk_dim, a.heads.v_dim};
  const auto& its_dims = a.dense_rows() ? c.ragged_dims : c.head_dims;
  const tensor::DType act = activations_on(info);
  if (!has(c.archs, arch_of(info))) return "not for this device";
  if (!has(c.phases, a.phase)) return cat("not for ", attention::phase_name(a.phase));
  if (a.dense_rows() && !attention::takes_path(c, Path::kRagged)) return "takes no dense rows";
  if (!its_dims.empty() && !has(its_dims, dims)) return "not these head sizes";
  if (!has(c.kv_dtypes, a.kv_dtype)) return cat("no ", tensor::dtype_name(a.kv_dtype), " cache");
  if (c.kv_as_q && a.kv_dtype != act) return "KV of the queries' type alone";
  if (!has(c.q_dtypes, act)) return cat("no ", tensor::dtype_name(act), " queries");
  if (a.tree && !c.tree_mask) return "no tree mask";
  if (!a.dense_rows() && !c.page_sizes.empty() && !has(c.page_sizes, a.page_size))
    return "not this page size";
  if (a.heads.mla && a.phase == Phase::kPrefill && !attention::takes_path(c, Path::kAbsorbed))
    return "does not take the absorbed path";
  return "";
}

Status run_attention(const AttentionConfig& config, device::Device& device,
                     const std::function<void(const AttentionRow&)>& told) {
  ATTUNE_ASSIGN_OR_RETURN(const auto grid, attention_grid(config, device.info()));
  ATTUNE_ASSIGN_OR_RETURN(const std::vector<Candidate> all, candidates(config, device));
  const std::unique_ptr<device::Stream> stream = device.create_stream();
  ATTUNE_RETURN_IF_ERROR(stream->status());
  stream->set_pdl(config.pdl);
  const bool gpu = device.info().kind == device::Kind::kCuda;
  SharedMemory shared(device, *stream);
  for (const AttentionCase& c : grid) {
    const bool in_a_step = gpu && c.phase == Phase::kDecode && !config.alone;
    const Timing timing = in_a_step ? Timing::kStep : Timing::kAlone;
    ATTUNE_ASSIGN_OR_RETURN(const auto timer, AttentionTimer::create(c, timing, shared, device,
                                                                     *stream, config.tuning));
    const auto read = timer->time_read(config.repeats);
    for (const Candidate& candidate : all) {
      if (!serves_kind(candidate.entry->capabilities, c)) continue;
      AttentionRow row{.what = c,
                       .timing = timing,
                       .backend = candidate.entry->capabilities.name,
                       .read_seconds = read.ok() ? *read : 0,
                       .kv_bytes = timer->kv_bytes(),
                       .flops = timer->flops(),
                       .refused = why_not(candidate.entry->capabilities, c, device.info())};
      if (row.refused.empty())
        row.refused = not_taken(candidate.entry->capabilities, config.tuning);
      if (row.refused.empty()) time_row(candidate, *timer, config.repeats, row);
      ATTUNE_RETURN_IF_ERROR(stream->status());
      told(row);
    }
  }
  return {};
}

}  // namespace attune::bench
