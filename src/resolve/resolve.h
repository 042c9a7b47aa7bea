// Which attention backend runs, on what pages and types, and why: a pure function from plain data
// to a Resolution. The rules are rows of docs/selection-rules.md. It knows no backend
// by name: the preferred orders stand in preferences.cc. What a user set is never rewritten; a
// contradiction is a conflict that says what to change.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "attention/capabilities.h"
#include "attune/options.h"
#include "tensor/dtype.h"

namespace attune::resolve {

// What a model asks of attention.
struct ModelTraits {
  attention::AttentionKind kind = attention::AttentionKind::kMha;
  int32_t q_heads = 0, kv_heads = 0;
  attention::HeadDims head;
  bool window = false, soft_cap = false, sinks = false;
};

struct DeviceTraits {
  std::string name;  // for people: "AMD EPYC ..., avx2, 2 threads"
  attention::Arch arch = attention::Arch::kCpu;
  bool bf16_products = false;  // the CPU has bf16 dot products, or this is a GPU
  bool fast_bf16 = false;      // and they beat float32 ones
};

// A backend's capabilities, and whether this build can run it.
struct Descriptor {
  attention::Capabilities capabilities;
  std::string unavailable;  // empty: can run; else why not
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
};
struct Conflict {
  std::vector<std::string> flags;
  std::string text, mend;
};

struct Resolution {
  std::string device;                                                    // DeviceTraits::name
  std::array<std::vector<Candidate>, attention::kNumPhases> candidates;  // by Phase, best first
  bool hybrid = false;                                                   // S3
  int32_t page_size = 0;
  tensor::DType activation_dtype = tensor::DType::kF32;
  tensor::DType kv_dtype = tensor::DType::kF32;
  std::string kv_layout;  // "head_major"
  std::vector<Refusal> refused;
  std::vector<Reason> reasons;
  std::vector<Conflict> conflicts;  // not empty: nothing may start

  const std::vector<Candidate>& of(attention::Phase phase) const {
    return candidates[static_cast<size_t>(phase)];
  }
  // Names only, as attention::Router takes them.
  std::array<std::vector<std::string>, attention::kNumPhases> candidate_names() const {
    std::array<std::vector<std::string>, attention::kNumPhases> names;
    for (size_t p = 0; p < names.size(); ++p)
      for (const Candidate& c : candidates[p]) names[p].push_back(c.backend);
    return names;
  }
};

Resolution resolve(const ModelTraits& model, const DeviceTraits& device, const Options& options,
                   const std::vector<Descriptor>& backends);

// The preferred order of backends of a device class, best first (S7).
const std::vector<std::string>& preferred_order(attention::Arch arch,
                                                attention::AttentionKind kind);

std::string to_json(const Resolution& resolution);
std::string to_table(const Resolution& resolution);

}  // namespace attune::resolve
