#include "resolve/resolve.h"

#include <algorithm>

#include "base/log.h"
#include "base/quote.h"

namespace attune::resolve {

using attention::Capabilities;
using attention::Phase;
using base::cat;
using base::json_quote;
using tensor::DType;

namespace {

constexpr Phase kPhases[] = {Phase::kPrefill, Phase::kDecode, Phase::kVerify, Phase::kDraftExtend};

template <typename T>
bool has(const std::vector<T>& list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

template <typename T, typename Print>
std::string join(const std::vector<T>& list, Print print) {
  std::string out;
  for (const T& item : list) out += (out.empty() ? "" : ", ") + cat(print(item));
  return out.empty() ? "none" : out;
}

class Resolver {
 public:
  Resolver(const ModelTraits& model, const DeviceTraits& device, const Options& options,
           const std::vector<Descriptor>& backends)
      : model_(model), device_(device), options_(options), backends_(backends) {}

  Resolution run() {
    out_.device = device_.name;
    choose_dtypes();
    out_.page_size = options_.page_size;
    for (Phase phase : kPhases) choose(phase);
    choose_page_size();
    const auto& prefill = out_.of(Phase::kPrefill);
    const auto& decode = out_.of(Phase::kDecode);
    if (!prefill.empty() && !decode.empty() && prefill[0].backend != decode[0].backend) {
      out_.hybrid = true;
      reason("S3", cat("prefill runs on ", prefill[0].backend, ", decode on ", decode[0].backend));
    }
    out_.kv_layout = "head_major";
    return std::move(out_);
  }

 private:
  void reason(const char* rule, std::string text) {
    out_.reasons.push_back({rule, std::move(text)});
  }
  void conflict(std::vector<std::string> flags, std::string text, std::string mend) {
    out_.conflicts.push_back({std::move(flags), std::move(text), std::move(mend)});
  }

  void choose_dtypes() {
    const std::string& dtype = options_.dtype;
    if (dtype == "auto") {
      out_.activation_dtype = device_.fast_bf16 ? DType::kBF16 : DType::kF32;
      reason("dtype", device_.fast_bf16
                          ? "bfloat16: the device's bf16 products beat its float32 ones"
                      : device_.bf16_products ? "float32: this CPU's bf16 products are no faster"
                                              : "float32: this CPU has no bf16 products");
    } else if (dtype == "bfloat16" && !device_.bf16_products) {
      conflict({"--dtype"}, "--dtype bfloat16 needs bf16 products, which this CPU does not have",
               "use --dtype float32 or auto");
    } else if (dtype == "float16") {
      conflict({"--dtype"}, "--dtype float16: no float16 products on the CPU",
               "use --dtype float32 or auto");
    } else {
      out_.activation_dtype = dtype == "bfloat16" ? DType::kBF16 : DType::kF32;
    }
    if (options_.kv_cache_dtype == "auto") {
      out_.kv_dtype = out_.activation_dtype;
    } else {
      out_.kv_dtype = tensor::parse_dtype(options_.kv_cache_dtype).value_or(DType::kF32);
    }
  }

  // S1: a phase's own flag wins over --attention-backend; verify and draft extend follow prefill.
  std::pair<std::string, std::string> named(Phase phase) const {
    const std::string& own = phase == Phase::kDecode ? options_.decode_attention_backend
                                                     : options_.prefill_attention_backend;
    const char* flag =
        phase == Phase::kDecode ? "--decode-attention-backend" : "--prefill-attention-backend";
    if (!own.empty()) return {own, flag};
    return {options_.attention_backend, "--attention-backend"};
  }

  const Descriptor* find(const std::string& name) const {
    for (const Descriptor& d : backends_)
      if (d.capabilities.name == name) return &d;
    return nullptr;
  }

  // S8: everything that can be known at start.
  std::string why_not(const Descriptor& d, Phase phase) const {
    const Capabilities& c = d.capabilities;
    if (!d.unavailable.empty()) return d.unavailable;
    if (!has(c.archs, device_.arch)) return "does not run on this device";
    if (!has(c.kinds, model_.kind)) return "does not serve this kind of attention";
    if (!has(c.phases, phase)) return cat("does not serve ", attention::phase_name(phase));
    if (!c.head_dims.empty() && !has(c.head_dims, model_.head))
      return cat("has no kernels for head size ", model_.head.qk);
    if (c.max_head_dim > 0 && std::max(model_.head.qk, model_.head.v) > c.max_head_dim)
      return cat("serves head sizes up to ", c.max_head_dim, ", the model has ", model_.head.qk);
    if (c.max_gqa_group > 0 && model_.kv_heads > 0 &&
        model_.q_heads / model_.kv_heads > c.max_gqa_group)
      return cat("serves up to ", c.max_gqa_group, " query heads per KV head");
    if (!has(c.kv_dtypes, out_.kv_dtype))
      return cat("offers KV types ", join(c.kv_dtypes, tensor::dtype_name), ", not ",
                 tensor::dtype_name(out_.kv_dtype));
    if (options_.page_size > 0 && !c.page_sizes.empty() && !has(c.page_sizes, options_.page_size))
      return cat("offers page sizes ", join(c.page_sizes, [](int32_t p) { return p; }), ", not ",
                 options_.page_size);
    if (model_.window && !c.window) return "has no sliding window";
    if (model_.soft_cap && !c.soft_cap) return "has no soft cap";
    if (model_.sinks && !c.sinks) return "has no attention sinks";
    if (options_.enable_deterministic_inference && !c.batch_invariant)
      return "is not batch-invariant, which --enable-deterministic-inference asks for";
    return "";
  }

  void choose(Phase phase) {
    auto& list = out_.candidates[static_cast<size_t>(phase)];
    const auto [name, flag] = named(phase);
    const bool flag_names_phase = phase == Phase::kPrefill || phase == Phase::kDecode;
    if (!name.empty()) {
      const Descriptor* d = find(name);
      const std::string why = d ? why_not(*d, phase) : "is not a backend of this build";
      if (why.empty()) {
        list.push_back({name, cat("named by ", flag)});
      } else if (flag_names_phase) {
        std::vector<std::string> could;
        for (const Descriptor& other : backends_)
          if (why_not(other, phase).empty()) could.push_back(other.capabilities.name);
        conflict({flag}, cat(flag, " ", name, ": it ", why),
                 cat("for ", attention::phase_name(phase),
                     " choose from: ", join(could, [](const std::string& s) { return s; })));
        return;
      } else {
        out_.refused.push_back({name, phase, why});
      }
      if (options_.no_attention_fallback) return;
    }
    for (const std::string& preferred : preferred_order(device_.arch, model_.kind)) {
      if (preferred == name) continue;
      const Descriptor* d = find(preferred);
      const std::string why = d ? why_not(*d, phase) : "is not in this build";
      if (why.empty()) {
        list.push_back({preferred, list.empty() ? "first of the preferred order" : "fallback"});
      } else {
        out_.refused.push_back({preferred, phase, why});
      }
    }
    if (list.empty() && flag_names_phase)
      conflict(
          {"--attention-backend"},
          cat("no backend serves ", attention::phase_name(phase), " for this model and device"),
          "see the refused backends and their reasons");
  }

  // S9: a size that the first candidates share, 16 preferred on the CPU and 64 elsewhere.
  void choose_page_size() {
    if (options_.page_size > 0) return;
    const int32_t preferred = device_.arch == attention::Arch::kCpu ? 16 : 64;
    for (int32_t size : {preferred, 64, 32, 16, 128, 1}) {
      bool all = true;
      for (Phase phase : {Phase::kPrefill, Phase::kDecode}) {
        if (out_.of(phase).empty()) continue;
        const Descriptor* d = find(out_.of(phase)[0].backend);
        all &= d->capabilities.page_sizes.empty() || has(d->capabilities.page_sizes, size);
      }
      if (!all) continue;
      out_.page_size = size;
      reason("S9", cat("page size ", size, ": the first candidates share it"));
      return;
    }
    conflict({"--prefill-attention-backend", "--decode-attention-backend"},
             "the first candidates share no page size", "name backends that share one");
  }

  const ModelTraits& model_;
  const DeviceTraits& device_;
  const Options& options_;
  const std::vector<Descriptor>& backends_;
  Resolution out_;
};

}  // namespace

Resolution resolve(const ModelTraits& model, const DeviceTraits& device, const Options& options,
                   const std::vector<Descriptor>& backends) {
  return Resolver(model, device, options, backends).run();
}

std::string to_json(const Resolution& r) {
  std::string out =
      cat("{\"device\":", json_quote(r.device), ",\"hybrid\":", r.hybrid ? "true" : "false");
  for (Phase phase : kPhases) {
    out += cat(",\"", attention::phase_name(phase), "\":{\"candidates\":[");
    const auto& list = r.of(phase);
    for (size_t i = 0; i < list.size(); ++i) out += (i ? "," : "") + json_quote(list[i].backend);
    out += "]}";
  }
  out += cat(",\"page_size\":", r.page_size,
             ",\"dtype\":", json_quote(tensor::dtype_name(r.activation_dtype)),
             ",\"kv_cache_dtype\":", json_quote(tensor::dtype_name(r.kv_dtype)),
             ",\"kv_layout\":", json_quote(r.kv_layout), ",\"refused\":[");
  for (size_t i = 0; i < r.refused.size(); ++i)
    out += cat(i ? "," : "", "{\"backend\":", json_quote(r.refused[i].backend),
               ",\"phase\":", json_quote(attention::phase_name(r.refused[i].phase)),
               ",\"why\":", json_quote(r.refused[i].why), "}");
  out += "],\"reasons\":[";
  for (size_t i = 0; i < r.reasons.size(); ++i)
    out += cat(i ? "," : "", "{\"rule\":", json_quote(r.reasons[i].rule),
               ",\"text\":", json_quote(r.reasons[i].text), "}");
  out += "],\"conflicts\":[";
  for (size_t i = 0; i < r.conflicts.size(); ++i) {
    const Conflict& c = r.conflicts[i];
    out += cat(i ? "," : "", "{\"flags\":[");
    for (size_t k = 0; k < c.flags.size(); ++k) out += (k ? "," : "") + json_quote(c.flags[k]);
    out += cat("],\"text\":", json_quote(c.text), ",\"mend\":", json_quote(c.mend), "}");
  }
  return out + "]}";
}

std::string to_table(const Resolution& r) {
  std::string out;
  auto line = [&](std::string key, const std::string& value) {
    key.resize(16, ' ');
    out += "  " + key + value + "\n";
  };
  line("device", r.device);
  for (Phase phase : kPhases) {
    std::string value;
    for (const Candidate& c : r.of(phase))
      value += (value.empty() ? "" : ", then ") + c.backend + " (" + c.reason + ")";
    line(attention::phase_name(phase), value.empty() ? "none" : value);
  }
  line("page size", cat(r.page_size, " tokens"));
  line("dtype", cat(tensor::dtype_name(r.activation_dtype), ", KV ", tensor::dtype_name(r.kv_dtype),
                    ", ", r.kv_layout));
  for (const Reason& reason : r.reasons) line(reason.rule, reason.text);
  for (const Refusal& f : r.refused)
    line("refused", cat(f.backend, " for ", attention::phase_name(f.phase), ": ", f.why));
  for (const Conflict& c : r.conflicts) line("conflict", c.text + "; " + c.mend);
  return out;
}

}  // namespace attune::resolve
