// Which attention backend runs, on what pages and types, and why: a pure function from plain data
// to a Resolution. The rules are the rows of docs/selection-rules.md, in rules.h. It knows no
// backend by name: names stand in preferences.cc. What a user set is never rewritten; a
// contradiction is a conflict that says what to change.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attention/capabilities.h"
#include "attention/order.h"
#include "attune/options.h"
#include "resolve/preferences.h"
#include "tensor/dtype.h"

namespace attune::resolve {

// What a model asks of attention.
struct ModelTraits {
  attention::AttentionKind kind = attention::AttentionKind::kMha;
  int32_t q_heads = 0, kv_heads = 0;  // kv_heads: as the pool holds them, 1 for MLA
  attention::HeadDims head;    // as the pool holds them; MLA: {latent + rope, latent}, {576, 512}
  attention::HeadDims ragged;  // MLA: of up-projected keys and values, {192, 128}
  int32_t layers = 0;
  bool window = false, soft_cap = false, sinks = false;
};

struct DeviceInfo {
  std::string name;  // for people: "AMD EPYC ..., avx2, 2 threads"
  attention::Arch arch = attention::Arch::kCpu;
  // Not this machine's: every backend that has kernels is taken as built and as tolerant of host
  // copies, memory is not checked, measured orders do not hold.
  bool simulated = false;
  bool bf16_products = false;  // the CPU has bf16 dot products, or this is a GPU
  bool fast_bf16 = false;      // and they beat float32 ones
  bool f16_products = false;
  std::vector<tensor::DType> kv_dtypes;  // that its cache writes
  // What the KV pool takes when its size is not set: bytes at most, tokens at most; 0: unknown.
  int64_t kv_budget = 0, kv_token_cap = 0;
  int64_t memory = 0;  // bytes; 0: unknown
};

struct HostInfo {
  int64_t memory = 0;    // bytes; 0: unknown, as are the next ones
  int64_t pinnable = 0;  // what a host pool may take; on a CPU the device pool is part of it
  // The disk under --hicache-storage-dir.
  int64_t storage = 0, storage_free = 0;
};

// How the build in question differs from this one.
struct BuildInfo {
  std::vector<std::string> without;  // names of backends that it lacks
  // "NAME:capability=on|off": what it is assumed to declare; on a real device only off.
  std::vector<std::string> assume;
};

// A backend's capabilities, and whether this build can run it.
struct Descriptor {
  attention::Capabilities capabilities;
  std::string unavailable;  // empty: can run; else why not
};

struct Inputs {
  ModelTraits model;
  DeviceInfo device;
  HostInfo host;
  BuildInfo build;
  Options settings;
  std::vector<Descriptor> backends;
  Preferences preferences = default_preferences();
};

struct Candidate {
  std::string backend;
  std::string reason;
};
struct Refusal {
  std::string backend;
  attention::Phase phase;
  std::string why;
};
struct Reason {
  std::string rule;  // "S7"
  std::string text;
  bool warning = false;  // a flag that was set does nothing, or costs much
};
struct Conflict {
  std::string rule;
  std::vector<std::string> flags;
  std::string text, mend;
};

using attention::SizedOrder;

struct Graphs {
  bool enabled = false;
  int32_t max_bs = 0;  // largest batch that is captured
};

struct MlaChoice {
  std::vector<attention::Path> paths;  // that extend batches may take
  attention::MlaPolicy policy;
};

struct HiCacheChoice {
  std::string io_backend, mem_layout;
  int64_t piece_bytes = 0;  // one page in one layer
  double ratio = 0;         // host pool over device pool; 0: unknown, a size was given
  int64_t host_bytes = 0;   // 0: unknown, the device pool's size is
  std::string write_policy, storage_backend, storage_prefetch_policy;
  int64_t storage_bytes = 0;             // most that storage holds; 0: no bound of ours, or unknown
  std::vector<std::string> held_beside;  // H5: kernel copies wait while a step of these runs
};

struct Resolution {
  std::string device;                                                    // DeviceInfo::name
  std::array<std::vector<Candidate>, attention::kNumPhases> candidates;  // by Phase, best first
  // Of each phase, if orders were measured; the route takes that nearest to its batch. Else empty.
  std::array<std::vector<SizedOrder>, attention::kNumPhases> sized;
  bool hybrid = false;  // S3
  int32_t page_size = 0;
  tensor::DType activation_dtype = tensor::DType::kF32;
  tensor::DType kv_dtype = tensor::DType::kF32;
  std::string kv_layout;  // "head_major"
  Graphs graphs;
  attention::Tuning tuning;
  std::optional<MlaChoice> mla;          // of MLA models
  std::optional<HiCacheChoice> hicache;  // with --enable-hierarchical-cache
  std::vector<Refusal> refused;
  std::vector<Reason> reasons;
  std::vector<Conflict> conflicts;  // not empty: nothing may start

  const std::vector<Candidate>& of(attention::Phase phase) const {
    return candidates[static_cast<size_t>(phase)];
  }
  // Names only, as attention::Router takes them.
  attention::BackendOrder order() const;
};

Resolution resolve(const Inputs& inputs);

// "sm90" and so on as a device of no particular machine; nullopt: no such name.
std::optional<DeviceInfo> simulated_device(std::string_view name);
const std::vector<std::string>& simulated_device_names();
// "llama3-8b" and so on: what well-known models ask; nullopt: no such name.
std::optional<ModelTraits> model_preset(std::string_view name);
const std::vector<std::string>& model_preset_names();

std::string to_json(const Resolution& resolution);
std::string to_table(const Resolution& resolution);

}  // namespace attune::resolve
