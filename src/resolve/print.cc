// A Resolution as JSON and as a table for people. Both print the resolved object alone, never what
// was asked.
#include "base/log.h"
#include "base/quote.h"
#include "resolve/resolve.h"

namespace attune::resolve {

using attention::kAllPhases;
using attention::Phase;
using attention::Toggle;
using base::cat;
using base::json_quote;

namespace {

const char* toggle_name(Toggle t) {
  return t == Toggle::kOn ? "on" : t == Toggle::kOff ? "off" : "auto";
}

template <typename T, typename Print>
std::string json_list(const std::vector<T>& list, Print print) {
  std::string out;
  for (const T& item : list) out += (out.empty() ? "" : ",") + print(item);
  return "[" + out + "]";
}

std::string quoted(const std::vector<std::string>& list) {
  return json_list(list, [](const std::string& s) { return json_quote(s); });
}

std::string phase_json(const Resolution& r, Phase phase) {
  const size_t p = static_cast<size_t>(phase);
  std::string out = cat("{\"candidates\":", quoted(r.order()[p].backends));
  if (!r.sized[p].empty())
    out += ",\"measured\":" + json_list(r.sized[p], [](const SizedOrder& o) {
             return cat("{\"sequences\":", o.sequences, ",\"tokens\":", o.tokens,
                        ",\"candidates\":", quoted(o.backends), "}");
           });
  return out + "}";
}

std::string mla_json(const MlaChoice& m) {
  const attention::MlaPolicy& p = m.policy;
  const std::string bounds = cat(",\"absorb_below\":", p.absorb_below, ",\"capacity\":", p.capacity,
                                 ",\"chunked_prefix\":", p.chunked_prefix ? "true" : "false");
  return cat("{\"paths\":",
             json_list(m.paths,
                       [](attention::Path path) { return json_quote(attention::path_name(path)); }),
             p.one_path ? "" : bounds, "}");
}

std::string hicache_json(const HiCacheChoice& h) {
  return cat("{\"io_backend\":", json_quote(h.io_backend),
             ",\"mem_layout\":", json_quote(h.mem_layout), ",\"piece_bytes\":", h.piece_bytes,
             ",\"ratio\":", h.ratio > 0 ? cat(h.ratio) : "null",
             ",\"host_bytes\":", h.host_bytes > 0 ? cat(h.host_bytes) : "null",
             ",\"write_policy\":", json_quote(h.write_policy),
             ",\"storage_backend\":", json_quote(h.storage_backend),
             ",\"storage_bytes\":", h.storage_bytes > 0 ? cat(h.storage_bytes) : "null",
             ",\"storage_prefetch_policy\":", json_quote(h.storage_prefetch_policy),
             ",\"held_beside\":", quoted(h.held_beside), "}");
}

std::string refusal_json(const Refusal& f) {
  return cat("{\"backend\":", json_quote(f.backend),
             ",\"phase\":", json_quote(attention::phase_name(f.phase)),
             ",\"why\":", json_quote(f.why), "}");
}

std::string conflict_json(const Conflict& c) {
  return cat("{\"rule\":", json_quote(c.rule), ",\"flags\":", quoted(c.flags),
             ",\"text\":", json_quote(c.text), ",\"mend\":", json_quote(c.mend), "}");
}

// Lines of a table: a key, and a value that goes on below itself.
class Table {
 public:
  void line(std::string key, const std::string& value) {
    key.resize(kKeyWidth, ' ');
    out_ += "  " + key + value + "\n";
  }
  std::string text() && { return std::move(out_); }

 private:
  static constexpr size_t kKeyWidth = 14;
  std::string out_;
};

void print_phases(const Resolution& r, Table& table) {
  for (Phase phase : kAllPhases) {
    std::string value;
    for (const Candidate& c : r.of(phase))
      value += (value.empty() ? "" : ", then ") + c.backend + " (" + c.reason + ")";
    table.line(attention::phase_name(phase), value.empty() ? "none" : value);
    for (const SizedOrder& o : r.sized[static_cast<size_t>(phase)])
      if (r.of(phase).empty() || o.backends[0] != r.of(phase)[0].backend)
        table.line("", cat(o.sequences, " sequences of ", o.tokens, " tokens: ", o.backends[0]));
  }
  table.line("hybrid", r.hybrid ? "yes" : "no");
}

// Bounds alone that choose between paths.
std::string mla_text(const MlaChoice& m) {
  const attention::MlaPolicy& p = m.policy;
  return cat(base::join(m.paths, attention::path_name),
             p.one_path ? ""
             : !p.chunked_prefix
                 ? "; chunked prefix off"
                 : cat("; absorbed below ", p.absorb_below, " new tokens on a prefix, ", p.capacity,
                       " keys at once, chunked prefix on"));
}

void print_choices(const Resolution& r, Table& table) {
  table.line("page size", cat(r.page_size, r.page_size == 1 ? " token" : " tokens"));
  table.line("types", cat(tensor::dtype_name(r.activation_dtype), ", KV ",
                          tensor::dtype_name(r.kv_dtype), ", ", r.kv_layout));
  table.line("graphs", r.graphs.enabled ? cat("up to ", r.graphs.max_bs, " sequences") : "off");
  table.line("kernels", cat("splits ", r.tuning.num_splits ? cat(r.tuning.num_splits) : "chosen",
                            ", GQA packing ", toggle_name(r.tuning.pack_gqa), ", dependent launch ",
                            toggle_name(r.tuning.pdl)));
  if (r.mla) table.line("MLA", mla_text(*r.mla));
  if (r.hicache) {
    const HiCacheChoice& h = *r.hicache;
    table.line("hicache", cat("IO ", h.io_backend, ", ", h.mem_layout, ", pieces of ",
                              h.piece_bytes, " bytes, host pool ",
                              h.ratio > 0 ? cat(h.ratio, " times the device pool")
                                          : cat(h.host_bytes, " bytes"),
                              ", ", h.write_policy, ", storage ", h.storage_backend,
                              h.storage_bytes > 0 ? cat(" of ", h.storage_bytes, " bytes") : ""));
  }
}

// One line for a backend and its reason, whatever phases it is refused for.
void print_refusals(const Resolution& r, Table& table) {
  struct Group {
    const Refusal* first;
    std::vector<Phase> phases;
  };
  std::vector<Group> groups;
  for (const Refusal& f : r.refused) {
    Group* same = nullptr;
    for (Group& g : groups)
      if (g.first->backend == f.backend && g.first->why == f.why) same = &g;
    if (!same) same = &groups.emplace_back(Group{&f, {}});
    same->phases.push_back(f.phase);
  }
  for (const Group& g : groups) {
    const std::string phases = g.phases.size() == std::size(kAllPhases)
                                   ? "every phase"
                                   : base::join(g.phases, attention::phase_name);
    table.line("refused", cat(g.first->backend, " for ", phases, ": ", g.first->why));
  }
}

}  // namespace

std::string to_json(const Resolution& r) {
  std::string out =
      cat("{\"device\":", json_quote(r.device), ",\"hybrid\":", r.hybrid ? "true" : "false");
  for (Phase phase : kAllPhases)
    out += cat(",\"", attention::phase_name(phase), "\":", phase_json(r, phase));
  out += cat(",\"page_size\":", r.page_size,
             ",\"dtype\":", json_quote(tensor::dtype_name(r.activation_dtype)),
             ",\"kv_cache_dtype\":", json_quote(tensor::dtype_name(r.kv_dtype)),
             ",\"kv_layout\":", json_quote(r.kv_layout));
  out += cat(",\"graphs\":{\"enabled\":", r.graphs.enabled ? "true" : "false",
             ",\"max_bs\":", r.graphs.max_bs, "},\"num_splits\":", r.tuning.num_splits,
             ",\"pack_gqa\":", json_quote(toggle_name(r.tuning.pack_gqa)),
             ",\"pdl\":", json_quote(toggle_name(r.tuning.pdl)),
             ",\"mla\":", r.mla ? mla_json(*r.mla) : "null",
             ",\"hicache\":", r.hicache ? hicache_json(*r.hicache) : "null");
  out += ",\"refused\":" + json_list(r.refused, refusal_json);
  out += ",\"reasons\":" + json_list(r.reasons, [](const Reason& reason) {
           return cat("{\"rule\":", json_quote(reason.rule), ",\"text\":", json_quote(reason.text),
                      "}");
         });
  return out + ",\"conflicts\":" + json_list(r.conflicts, conflict_json) + "}";
}

std::string to_table(const Resolution& r) {
  Table table;
  for (const Conflict& c : r.conflicts) {
    table.line("conflict", c.text);
    table.line("", "mend: " + c.mend);
  }
  if (r.device.empty() && !r.conflicts.empty()) return std::move(table).text();
  if (!r.conflicts.empty()) table.line("without", "what conflicts, as far as it can be told:");
  table.line("device", r.device);
  print_phases(r, table);
  print_choices(r, table);
  for (const Reason& reason : r.reasons) table.line(reason.rule, reason.text);
  print_refusals(r, table);
  return std::move(table).text();
}

}  // namespace attune::resolve
