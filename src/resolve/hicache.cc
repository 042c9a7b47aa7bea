// HiCache: who copies pages between device and host, in which order they lie there, how many. From
// effective backends, page size and piece alone, each decided once.
#include "kv/layout/layout.h"
#include "resolve/rules.h"

namespace attune::resolve {

using attention::Phase;
using base::cat;

namespace {

// Pieces from this size on go by the copy engine: measured on an H200 with PCIe 5
// (docs/selection-rules.md, H1).
constexpr int64_t kCrossover = 256 << 10;
constexpr double kLargestRatio = 2;
constexpr double kLeastRate = 0.01;  // GB/s: a copy of a MiB, which nothing cuts off, takes 0.1 s

// GB/s of the copy engine from device to host beside a kernel that reads at full rate, by piece;
// H200, PCIe 5.
struct Rate {
  int64_t piece;
  double gb_per_s;
};
constexpr Rate kDirectRates[] = {
    {16 << 10, 14.5}, {32 << 10, 24.1}, {64 << 10, 31.8}, {128 << 10, 37.2}, {256 << 10, 44.3}};

double direct_rate(int64_t piece) {
  double rate = kDirectRates[0].gb_per_s;
  for (const Rate& r : kDirectRates)
    if (piece >= r.piece) rate = r.gb_per_s;
  return rate;
}

std::string kib(int64_t bytes) {
  return bytes % 1024 == 0 ? cat(bytes / 1024, " KiB") : cat(bytes, " bytes");
}
std::string gib(double bytes) {
  return cat(static_cast<int64_t>(bytes / (1 << 20)) / 1024.0, " GiB");
}

bool on(const State& s) {
  return s.set().enable_hierarchical_cache;
}
bool io_set(const State& s) {
  return s.set().hicache_io_backend != "auto";
}
bool layout_set(const State& s) {
  return s.set().hicache_mem_layout != "auto";
}
bool page_first_set(const State& s) {
  return s.set().hicache_mem_layout == "page_first";
}
bool by_kernel(const State& s) {
  return on(s) && s.out.hicache->io_backend == "kernel";
}

kv::KvGeometry geometry(const State& s) {
  const ModelTraits& m = s.in.model;
  return {.layer = {.kv_heads = m.kv_heads,
                    .k_dim = m.head.qk,
                    .v_dim = m.head.v,
                    .dtype = s.out.kv_dtype,
                    .v_in_k = s.mla()},
          .layers = m.layers,
          .page_size = s.out.page_size};
}

void begin(State& s, const char* id) {
  HiCacheChoice h;
  h.piece_bytes = geometry(s).piece_bytes();
  h.write_policy = s.set().hicache_write_policy;
  h.storage_backend = s.set().hicache_storage_backend;
  h.storage_prefetch_policy = s.set().hicache_storage_prefetch_policy;
  s.reason(id, "a piece, one page of ", s.out.page_size, " tokens in one layer, is ", h.piece_bytes,
           " bytes");
  s.out.hicache = std::move(h);
}

// Bytes of the device pool, 0 if unknown.
int64_t device_pool(const State& s) {
  const kv::KvGeometry g = geometry(s);
  const int64_t token_bytes = g.page_bytes() / g.page_size;
  if (s.set().max_total_tokens > 0) return s.set().max_total_tokens * token_bytes;
  const DeviceInfo& d = s.in.device;
  return d.kv_token_cap > 0 ? std::min(d.kv_budget, d.kv_token_cap * token_bytes) : d.kv_budget;
}

void needs_radix(State& s, const char* id) {
  s.conflict(
      id, {"--enable-hierarchical-cache", "--disable-radix-cache"},
      "--enable-hierarchical-cache with --disable-radix-cache: without kept prefixes there is "
      "nothing to keep in host memory",
      "drop one of the two");
}

void one_size(State& s, const char* id) {
  s.conflict(id, {"--hicache-ratio", "--hicache-size"},
             cat("--hicache-ratio ", s.set().hicache_ratio, " and --hicache-size ",
                 s.set().hicache_size, ": both set the host pool's size"),
             "set one of the two");
}

// H8 on a simulated device: what was asked, memory is not checked.
void size_unchecked(State& s, const char* id) {
  HiCacheChoice& h = *s.out.hicache;
  h.host_bytes = static_cast<int64_t>(s.set().hicache_size * 1e9);
  const bool by_size = h.host_bytes > 0;
  h.ratio = s.set().hicache_ratio > 0 ? s.set().hicache_ratio : by_size ? 0 : kLargestRatio;
  if (by_size)
    s.reason(id, "host pool of ", s.set().hicache_size, " GB: --hicache-size");
  else
    s.reason(id, "host pool of ", h.ratio, " times the device pool: ",
             s.set().hicache_ratio > 0 ? "--hicache-ratio" : "the largest ratio, if it fits");
}

// A device pool that leaves this memory room for a host pool of kLargestRatio times its size.
int64_t tokens_that_fit(const State& s) {
  const kv::KvGeometry g = geometry(s);
  const double pools = s.gpu() ? kLargestRatio : kLargestRatio + 1;  // in that memory
  const auto pages = static_cast<int64_t>(static_cast<double>(s.in.host.pinnable) / pools /
                                          static_cast<double>(g.page_bytes()));
  return pages * g.page_size;
}

void size_checked(State& s, const char* id) {
  HiCacheChoice& h = *s.out.hicache;
  const double pool = static_cast<double>(device_pool(s));
  // A CPU's device pool lies in the same memory.
  const double pinnable =
      std::max(0.0, static_cast<double>(s.in.host.pinnable) - (s.gpu() ? 0 : pool));
  const bool by_size = s.set().hicache_size > 0, by_ratio = s.set().hicache_ratio > 0;
  const double wanted = by_size    ? s.set().hicache_size * 1e9
                        : by_ratio ? s.set().hicache_ratio * pool
                                   : std::min(kLargestRatio * pool, pinnable);
  h.host_bytes = static_cast<int64_t>(wanted);
  h.ratio = pool > 0 ? wanted / pool : 0;
  const std::string flag = by_size ? "--hicache-size" : by_ratio ? "--hicache-ratio" : "";
  const std::string asked = by_size    ? cat(flag, " ", s.set().hicache_size)
                            : by_ratio ? cat(flag, " ", s.set().hicache_ratio)
                                       : "--enable-hierarchical-cache";
  const std::vector<std::string> flags = {flag.empty() ? asked : flag};
  if (pinnable <= pool) {
    s.conflict(id, flags,
               cat(asked, ": this machine (or control group) can pin ", gib(pinnable),
                   s.gpu() ? "" : " beside the device pool", ", and the device pool has ",
                   gib(pool), ": only a host pool above that keeps anything more"),
               cat("make the device pool smaller (--max-total-tokens ", tokens_that_fit(s),
                   " leaves room for twice as much in the host), free memory, or start without "
                   "--enable-hierarchical-cache"));
  } else if (wanted > pinnable) {
    s.conflict(id, flags,
               cat(asked, ": a host pool of ", gib(wanted), " is more than the ", gib(pinnable),
                   s.gpu() ? " that can be pinned" : " that can be pinned beside the device pool"),
               cat("lower it, or leave it unset for the largest that fits"));
  } else if (wanted <= pool) {
    s.conflict(id, flags,
               cat(asked, ": a host pool of ", gib(wanted), " is not above the device pool of ",
                   gib(pool), ", so it would keep nothing more"),
               "raise it, or make the device pool smaller with --max-total-tokens");
  } else {
    s.reason(id, "host pool of ", gib(wanted), ", ", h.ratio,
             " times the device pool: ", flag.empty() ? "the largest that fits, 2 at most" : flag);
  }
}

void page_first_is_by_kernel(State& s, const char* id) {
  s.conflict(id, {"--hicache-mem-layout", "--hicache-io-backend"},
             "--hicache-mem-layout page_first with --hicache-io-backend direct: in this layout the "
             "copy engine would move single tokens",
             "use --hicache-io-backend kernel, or --hicache-mem-layout page_first_direct");
}

void io_follows_layout(State& s, const char* id) {
  s.out.hicache->io_backend = "kernel";
  s.reason(id, "IO kernel: --hicache-mem-layout page_first needs it");
}

void io_as_set(State& s, const char* id) {
  s.out.hicache->io_backend = s.set().hicache_io_backend;
  s.reason(id, "IO ", s.set().hicache_io_backend, ": --hicache-io-backend");
}

void io_by_piece(State& s, const char* id) {
  HiCacheChoice& h = *s.out.hicache;
  const bool direct = h.piece_bytes >= kCrossover;
  h.io_backend = direct ? "direct" : "kernel";
  s.reason(id, "IO ", h.io_backend, ": a piece of ", kib(h.piece_bytes), " is ",
           direct ? "not below " : "below ", kib(kCrossover),
           ", from where the copy engine is the faster");
}

// The first decode candidates that do not tolerate SM-side host copies.
std::vector<std::string> intolerant(const State& s) {
  std::vector<std::string> names;
  for (const Descriptor* d : s.first_candidates(Phase::kDecode))
    if (!d->capabilities.tolerates_host_copies) names.push_back(d->capabilities.name);
  return names;
}

bool decodes_beside_copies(const State& s, const std::string& name) {
  const Descriptor* d = s.find(name);
  return d && d->capabilities.tolerates_host_copies &&
         !objection(s, d->capabilities, Phase::kDecode);
}

std::string safe_decode(const State& s) {
  for (const SafeDecodeRow& row : s.in.preferences.safe_decode) {
    if (row.kind != s.in.model.kind || !has(row.archs, s.in.device.arch)) continue;
    for (const std::string& name : row.order)
      if (decodes_beside_copies(s, name)) return name;
  }
  return "";
}

// Whom a user might name instead: of the safe order, else anyone who can.
std::string decode_to_name(const State& s) {
  std::string name = safe_decode(s);
  for (const Descriptor& d : s.backends)
    if (name.empty() && decodes_beside_copies(s, d.capabilities.name)) name = d.capabilities.name;
  return name;
}

bool endangered(const State& s) {
  return by_kernel(s) && !intolerant(s).empty();
}

bool can_move(const State& s) {
  return endangered(s) && !s.named_for(Phase::kDecode).flag && !safe_decode(s).empty();
}

void move_decode(State& s, const char* id) {
  const std::string before = join(intolerant(s));
  s.moved_decode = safe_decode(s);
  list_candidates(s, Phase::kDecode);
  s.reason(
      id, "decode moves from ", before, " to ", s.moved_decode, ": ", before,
      " does not tolerate SM-side host copies beside it, and no flag names the decode backend");
}

std::string why_stuck(const State& s) {
  const Named& named = s.named_for(Phase::kDecode);
  if (named.flag) return cat(named.flag, " names it");
  return cat("no backend of the safe order that does can decode here, in pages of ",
             s.out.page_size);
}

bool io_is_free(const State& s) {
  return endangered(s) && !io_set(s) && !page_first_set(s);
}

void copy_directly(State& s, const char* id) {
  HiCacheChoice& h = *s.out.hicache;
  s.reason(id, "IO direct instead of kernel: ", join(intolerant(s)),
           " decodes and does not tolerate SM-side host copies, and ", why_stuck(s),
           "; at pieces of ", kib(h.piece_bytes), " the copy engine moves about ",
           direct_rate(h.piece_bytes), " GB/s from device to host beside decode");
  h.io_backend = "direct";
}

void refuse_kernel(State& s, const char* id) {
  const Named& named = s.named_for(Phase::kDecode);
  const bool io = io_set(s);
  const std::string asked =
      io ? "--hicache-io-backend kernel" : "--hicache-mem-layout page_first, which needs IO kernel";
  std::vector<std::string> flags;
  if (io) flags.emplace_back("--hicache-io-backend");
  if (page_first_set(s)) flags.emplace_back("--hicache-mem-layout");
  if (named.flag) flags.emplace_back(named.flag);
  const std::string other = decode_to_name(s);
  const std::string_view ways[] = {"--hicache-io-backend direct",
                                   "--hicache-mem-layout page_first_direct"};
  s.conflict(
      id, flags,
      cat(asked, ": ", join(intolerant(s)),
          " decodes and does not tolerate SM-side host copies, and ", why_stuck(s)),
      cat("use ", io && page_first_set(s) ? cat(ways[0], " with ", ways[1]) : ways[io ? 0 : 1],
          ", or decode by a backend that tolerates them",
          other.empty() ? " (none is built that serves this)"
                        : ": --decode-attention-backend " + other));
}

void layout_as_set(State& s, const char* id) {
  s.out.hicache->mem_layout = s.set().hicache_mem_layout;
  s.reason(id, "host layout ", s.set().hicache_mem_layout, ": --hicache-mem-layout");
}

void layout_by_storage(State& s, const char* id) {
  HiCacheChoice& h = *s.out.hicache;
  const bool storage = h.storage_backend != "none";
  h.mem_layout = !storage                   ? "layer_first"
                 : h.io_backend == "direct" ? "page_first_direct"
                                            : "page_first";
  s.reason(
      id, "host layout ", h.mem_layout,
      storage ? cat(": storage is on, IO is ", h.io_backend) : std::string(": no storage below"));
}

// Who may run beside a kernel copy and does not tolerate it, decode's head apart (H2 to H4).
std::vector<std::string> to_hold(const State& s) {
  std::vector<std::string> names;
  for (const auto& list : s.out.candidates)
    for (const Candidate& c : list) {
      const Descriptor* d = s.find(c.backend);
      if (d && !d->capabilities.tolerates_host_copies && !has(names, c.backend))
        names.push_back(c.backend);
    }
  return names;
}

void hold(State& s, const char* id) {
  s.out.hicache->held_beside = to_hold(s);
  s.reason(id, "kernel copies are held while a step of ", join(to_hold(s)),
           " runs, which does not tolerate them: one event each way");
}

// The budget of storage: what was set, or a part of the disk that leaves room to others.
void storage_budget(State& s, const char* id) {
  HiCacheChoice& h = *s.out.hicache;
  const HostInfo& host = s.in.host;
  const double set = s.set().hicache_storage_size;
  h.storage_bytes = set > 0 ? std::max<int64_t>(1, static_cast<int64_t>(set * 1e9)) : 0;
  if (set > 0) {
    s.reason(id, "storage holds ", set, " GB at most: --hicache-storage-size");
    if (h.storage_backend == "file" && host.storage > 0 && h.storage_bytes > host.storage)
      s.conflict(id, {"--hicache-storage-size"},
                 cat("--hicache-storage-size ", set, ": the disk under --hicache-storage-dir has ",
                     gib(static_cast<double>(host.storage)), " in all"),
                 "lower it, or name a folder on a larger disk");
  } else if (h.storage_backend == "redis") {
    s.reason(id,
             "storage holds what the Redis server takes (its maxmemory): "
             "--hicache-storage-size sets a bound of this server's own");
  } else {
    h.storage_bytes = std::min(host.storage / 10, host.storage_free / 2);
    s.reason(id, "storage holds ",
             h.storage_bytes > 0 ? gib(static_cast<double>(h.storage_bytes)) + " at most: " : "",
             "a tenth of the disk, and at most half of what is free on it");
  }
}

// A flag of the storage tier, and when it has an effect.
struct StorageFlag {
  const char* name;
  bool (*set)(const Options& o, const Options& defaults);
  bool (*used)(const Options& o);
};
bool any_storage(const Options& o) {
  return o.hicache_storage_backend != "none";
}
bool waits_for_a_time(const Options& o) {
  return any_storage(o) && o.hicache_storage_prefetch_policy == "timeout";
}
template <auto Options::*member>
bool differs(const Options& o, const Options& defaults) {
  return o.*member != defaults.*member;
}
constexpr StorageFlag kStorageFlags[] = {
    {"--hicache-storage-dir", differs<&Options::hicache_storage_dir>,
     [](const Options& o) { return o.hicache_storage_backend == "file"; }},
    {"--hicache-storage-url", differs<&Options::hicache_storage_url>,
     [](const Options& o) { return o.hicache_storage_backend == "redis"; }},
    {"--hicache-storage-size", differs<&Options::hicache_storage_size>, any_storage},
    {"--hicache-storage-prefetch-policy", differs<&Options::hicache_storage_prefetch_policy>,
     any_storage},
    {"--hicache-storage-prefetch-threshold", differs<&Options::hicache_storage_prefetch_threshold>,
     any_storage},
    {"--hicache-storage-prefetch-timeout", differs<&Options::hicache_storage_prefetch_timeout>,
     waits_for_a_time},
    {"--hicache-storage-prefetch-timeout-per-ki-token",
     differs<&Options::hicache_storage_prefetch_timeout_per_ki_token>, waits_for_a_time},
    {"--hicache-storage-prefetch-timeout-max",
     differs<&Options::hicache_storage_prefetch_timeout_max>, waits_for_a_time},
};

// Those that are set; with `idle` only those that have no effect.
std::vector<std::string> storage_flags(const State& s, bool idle) {
  std::vector<std::string> names;
  for (const StorageFlag& flag : kStorageFlags)
    if (flag.set(s.set(), Options()) && !(idle && flag.used(s.set())))
      names.emplace_back(flag.name);
  return names;
}

bool has_hicache_flag(const State& s) {
  const Options d;
  const Options& o = s.set();
  return !on(s) && (io_set(s) || layout_set(s) || o.hicache_ratio != d.hicache_ratio ||
                    o.hicache_size != d.hicache_size || o.hicache_io_rate != d.hicache_io_rate ||
                    o.hicache_write_policy != d.hicache_write_policy ||
                    o.hicache_load_back != d.hicache_load_back ||
                    o.hicache_storage_backend != d.hicache_storage_backend ||
                    !storage_flags(s, false).empty());
}

void no_effect(State& s, const char* id) {
  s.warning(id, "--hicache-... flags have no effect without --enable-hierarchical-cache");
}

bool rate_too_low(const State& s) {
  return on(s) && s.set().hicache_io_rate > 0 && s.set().hicache_io_rate < kLeastRate;
}
void rate_is_too_low(State& s, const char* id) {
  s.conflict(id, {"--hicache-io-rate"},
             cat("--hicache-io-rate ", s.set().hicache_io_rate, ": GB/s, at least ", kLeastRate,
                 ", since copies under way have to end before a step or a stop"),
             "raise it; 0 is no limit");
}

void storage_no_effect(State& s, const char* id) {
  const bool any = any_storage(s.set());
  s.warning(
      id, "no effect with --hicache-storage-backend ", s.set().hicache_storage_backend,
      any ? cat(" and --hicache-storage-prefetch-policy ", s.set().hicache_storage_prefetch_policy)
          : std::string(),
      ": ", join(storage_flags(s, true)));
}

constexpr Rule kRules[] = {
    {"hicache", has_hicache_flag, no_effect},
    {"hicache", [](const State& s) { return on(s) && !storage_flags(s, true).empty(); },
     storage_no_effect},
    {"hicache", rate_too_low, rate_is_too_low},
    {"H1", on, begin},
    {"H8", [](const State& s) { return on(s) && s.set().disable_radix_cache; }, needs_radix},
    {"H8",
     [](const State& s) { return on(s) && s.set().hicache_ratio > 0 && s.set().hicache_size > 0; },
     one_size},
    {"H8", [](const State& s) { return on(s) && s.in.device.simulated; }, size_unchecked},
    {"H8", [](const State& s) { return on(s) && !s.in.device.simulated; }, size_checked},
    {"storage", [](const State& s) { return on(s) && any_storage(s.set()); }, storage_budget},
    {"H6",
     [](const State& s) {
       return on(s) && page_first_set(s) && s.set().hicache_io_backend == "direct";
     },
     page_first_is_by_kernel},
    {"H6", [](const State& s) { return on(s) && page_first_set(s) && !io_set(s); },
     io_follows_layout},
    {"H1", [](const State& s) { return on(s) && io_set(s); }, io_as_set},
    {"H1", [](const State& s) { return on(s) && !io_set(s) && !page_first_set(s); }, io_by_piece},
    {"H2", can_move, move_decode},
    {"H3", io_is_free, copy_directly},
    {"H4", endangered, refuse_kernel},
    {"H7", [](const State& s) { return on(s) && layout_set(s); }, layout_as_set},
    {"H7", [](const State& s) { return on(s) && !layout_set(s); }, layout_by_storage},
};

constexpr Rule kHoldRules[] = {
    {"H5", [](const State& s) { return by_kernel(s) && !endangered(s) && !to_hold(s).empty(); },
     hold},
};

}  // namespace

std::span<const Rule> hicache_rules() {
  return kRules;
}
std::span<const Rule> hold_rules() {
  return kHoldRules;
}

}  // namespace attune::resolve
