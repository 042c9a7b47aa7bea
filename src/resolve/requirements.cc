// What a model, a device and the settings ask of a backend, against what it declares: static
// capability, checked once at start (S8). A row is one requirement.
#include "resolve/rules.h"

namespace attune::resolve {

using attention::AttentionKind;
using attention::Capabilities;
using attention::HeadDims;
using attention::Path;
using attention::Phase;
using base::cat;
using tensor::DType;

namespace {

struct Requirement {
  const char* rule;
  // `why` stays empty if the backend meets it.
  void (*check)(const State& s, const Capabilities& c, Phase phase, Objection& o);
};

std::string dims_text(const HeadDims& d) {
  return d.qk == d.v ? cat(d.qk) : cat(d.qk, "/", d.v);
}

std::string arch_text(attention::Arch arch) {
  return arch == attention::Arch::kCpu ? "a CPU" : attention::arch_name(arch);
}

std::string dtypes_text(const std::vector<DType>& list) {
  return join(list, tensor::dtype_name);
}

void built(const State& s, const Capabilities& c, Phase, Objection& o) {
  const Descriptor* d = s.find(c.name);
  const bool elsewhere = !has(c.archs, s.in.device.arch);
  // The device is the better reason, as another build would not help; both are told.
  if (elsewhere)
    o.why =
        cat("needs ", join(c.archs, arch_text), ", this device is ", arch_text(s.in.device.arch));
  if (d && !d->unavailable.empty()) o.why += cat(elsewhere ? "; " : "", d->unavailable);
}

void kind(const State& s, const Capabilities& c, Phase, Objection& o) {
  if (!has(c.kinds, s.in.model.kind))
    o.why = cat("serves ", join(c.kinds, attention::kind_name), " alone, this model has ",
                attention::kind_name(s.in.model.kind));
}

void phases(const State&, const Capabilities& c, Phase phase, Objection& o) {
  if (has(c.phases, phase)) return;
  o.why = cat("does not serve ", attention::phase_name(phase), ", only ",
              join(c.phases, attention::phase_name));
  if (phase == Phase::kPrefill && has(c.phases, Phase::kDecode))
    o.mend = cat("name it for decode alone: --decode-attention-backend ", c.name);
  if (phase == Phase::kDecode && has(c.phases, Phase::kPrefill))
    o.mend = cat("name it for prefill alone: --prefill-attention-backend ", c.name);
}

// Follows a refusal of something that the source has, and another build would serve.
std::string other_build(const Capabilities& c, bool has_it) {
  return has_it ? cat(": a build with ", c.unbuilt.option, " serves it") : "";
}

void check_dims(const Capabilities& c, const std::vector<HeadDims>& offered, const HeadDims& wanted,
                Objection& o) {
  const int32_t max = c.max_head_dim;
  if (!offered.empty() && !has(offered, wanted)) {
    o.why = cat("has kernels for heads of ", join(offered, dims_text), ", not of ",
                dims_text(wanted), other_build(c, has(c.unbuilt.head_dims, wanted)));
  } else if (max > 0 && std::max(wanted.qk, wanted.v) > max) {
    o.why = cat("serves heads up to ", max, ", the model's are of ", dims_text(wanted));
  }
}

void heads(const State& s, const Capabilities& c, Phase phase, Objection& o) {
  const bool rows =
      std::any_of(c.extend_paths.begin(), c.extend_paths.end(), attention::reads_rows);
  check_dims(c, c.head_dims, s.in.model.head, o);
  if (o.why.empty() && s.mla() && phase == Phase::kPrefill && rows)
    check_dims(c, c.ragged_dims, s.in.model.ragged, o);
}

void q_dtype(const State& s, const Capabilities& c, Phase, Objection& o) {
  if (has(c.q_dtypes, s.out.activation_dtype)) return;
  o.why = cat("computes in ", dtypes_text(c.q_dtypes), ", not in ",
              tensor::dtype_name(s.out.activation_dtype));
  if (s.set().dtype != "auto") o.asked = "--dtype " + s.set().dtype;
  if (!c.q_dtypes.empty()) o.mend = cat("use --dtype ", tensor::dtype_name(c.q_dtypes[0]));
}

bool is_fp8(DType dtype) {
  return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2;
}

void kv_dtype(const State& s, const Capabilities& c, bool fp8, Objection& o) {
  const DType wanted = s.out.kv_dtype, act = s.out.activation_dtype;
  if (is_fp8(wanted) != fp8) return;
  const std::string asked =
      s.set().kv_cache_dtype == "auto" ? "" : "--kv-cache-dtype " + s.set().kv_cache_dtype;
  if (has(c.kv_dtypes, wanted)) {
    if (!c.kv_as_q || wanted == act) return;
    o.why = cat("reads KV of its queries' type, ", tensor::dtype_name(act), ", not ",
                tensor::dtype_name(wanted));
    o.asked = asked;
    o.mend = cat("use --kv-cache-dtype ", tensor::dtype_name(act));
    return;
  }
  std::vector<DType> alike;
  for (DType d : c.kv_dtypes)
    if (is_fp8(d) == fp8) alike.push_back(d);
  const bool some = !alike.empty();
  o.why = cat("has only ", dtypes_text(some ? alike : c.kv_dtypes), " KV, not ",
              tensor::dtype_name(wanted), other_build(c, has(c.unbuilt.kv_dtypes, wanted)));
  o.asked = asked;
  if (some)
    o.mend = cat("use --kv-cache-dtype ",
                 tensor::dtype_name(c.kv_as_q && has(alike, act) ? act : alike[0]));
}
void plain_kv_dtype(const State& s, const Capabilities& c, Phase, Objection& o) {
  kv_dtype(s, c, false, o);
}
void fp8_kv_dtype(const State& s, const Capabilities& c, Phase, Objection& o) {
  kv_dtype(s, c, true, o);
}

void page(const State& s, const Capabilities& c, Phase, Objection& o) {
  const int32_t size = s.out.page_size;
  // What is no page size at all is a conflict of its own (types.cc).
  if (size == 0 || !is_page_size(size) || serves_page(c, size)) return;
  o.why =
      cat("offers page sizes ", join(c.page_sizes, [](int32_t p) { return p; }), ", not ", size);
  if (s.set().page_size == 0) return;
  int32_t nearest = c.page_sizes[0];
  for (int32_t p : c.page_sizes)
    if (std::abs(p - s.set().page_size) < std::abs(nearest - s.set().page_size)) nearest = p;
  o.asked = cat("--page-size ", s.set().page_size);
  o.mend = cat("use --page-size ", nearest);
}

void masks(const State& s, const Capabilities& c, Phase, Objection& o) {
  if (s.in.model.window && !c.window) o.why = "has no sliding window, which the model needs";
  if (s.in.model.soft_cap && !c.soft_cap) o.why = "has no soft cap, which the model needs";
  if (s.in.model.sinks && !c.sinks) o.why = "has no attention sinks, which the model needs";
}

void tree(const State& s, const Capabilities& c, Phase phase, Objection& o) {
  if (phase != Phase::kVerify || s.set().speculative_eagle_topk <= 1 || c.tree_mask) return;
  o.why = "has no tree mask";
  o.asked = cat("--speculative-eagle-topk ", s.set().speculative_eagle_topk);
  o.mend = "use --speculative-eagle-topk 1";
}

void deterministic(const State& s, const Capabilities& c, Phase phase, Objection& o) {
  if (!s.set().enable_deterministic_inference) return;
  if (!c.batch_invariant) {
    o.why = "is not batch-invariant: a row's bits depend on what else is in its batch";
  } else if (s.mla() && phase == Phase::kPrefill && !attention::takes_path(c, Path::kAbsorbed)) {
    o.why = "has no absorbed extend, the one path that serves every prompt deterministically";
  } else {
    return;
  }
  o.asked = "--enable-deterministic-inference";
  o.mend = "drop --enable-deterministic-inference";
}

void graphs(const State& s, const Capabilities& c, Phase phase, Objection& o) {
  if (phase != Phase::kDecode || !s.gpu() || s.set().disable_cuda_graph || c.graph_safe) return;
  o.why = "is not graph-safe, and CUDA graphs are on";
  o.mend = "use --disable-cuda-graph";
}

// The first that objects gives the reason.
constexpr Requirement kRequirements[] = {
    {"S8", built},   {"S8", kind},           {"S8", phases},         {"S8", heads},
    {"S8", q_dtype}, {"S8", plain_kv_dtype}, {"S10", fp8_kv_dtype},  {"S9", page},
    {"S8", masks},   {"S11", tree},          {"S12", deterministic}, {"S13", graphs},
};

}  // namespace

Objection objection(const State& s, const Capabilities& c, Phase phase) {
  for (const Requirement& row : kRequirements) {
    Objection o;
    row.check(s, c, phase, o);
    if (o.why.empty()) continue;
    o.rule = row.rule;
    return o;
  }
  return {};
}

bool serves_page(const Capabilities& c, int32_t page_size) {
  return c.page_sizes.empty() || has(c.page_sizes, page_size);
}

}  // namespace attune::resolve
