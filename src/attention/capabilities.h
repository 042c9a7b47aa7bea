// What an attention backend can do, as plain, printable data. The resolver reads nothing else of a
// backend.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace attune::attention {

enum class Phase : uint8_t { kPrefill, kDecode, kVerify, kDraftExtend };
inline constexpr int kNumPhases = 4;
inline constexpr Phase kAllPhases[] = {Phase::kPrefill, Phase::kDecode, Phase::kVerify,
                                       Phase::kDraftExtend};
static_assert(std::size(kAllPhases) == kNumPhases);
const char* phase_name(Phase phase);  // "prefill", "decode", "verify", "draft_extend"

// How a batch finds its keys. An MHA model has one path; an MLA model's extend batch is split by
// sequence into several (docs/selection-rules.md, M1 to M6), its other phases are absorbed.
enum class Path : uint8_t {
  kPaged,     // keys and values in the pool's pages
  kRagged,    // MLA, new tokens only: their keys and values up-projected, dense rows
  kOneShot,   // MLA: prefix and new tokens gathered and up-projected, dense rows, one call
  kChunked,   // MLA: kRagged, and the prefix in chunks, each gathered and up-projected, then merged
  kAbsorbed,  // MLA: the pool's latents as they are; one KV head, V is the head of K
};
inline constexpr int kNumPaths = 5;
const char* path_name(Path path);  // "paged", "ragged", "one_shot", "chunked", "absorbed"
// Whether the attention calls of a path read dense rows instead of pages.
constexpr bool reads_rows(Path path) {
  return path == Path::kRagged || path == Path::kOneShot || path == Path::kChunked;
}

enum class Arch : uint8_t { kCpu, kSm80, kSm89, kSm90, kSm100 };
const char* arch_name(Arch arch);  // "cpu", "sm90"
enum class AttentionKind : uint8_t { kMha /* and GQA, MQA */, kMla };
const char* kind_name(AttentionKind kind);  // "MHA", "MLA"

struct HeadDims {
  int32_t qk = 0, v = 0;
  bool operator==(const HeadDims&) const = default;
};

enum class Toggle : uint8_t { kAuto, kOn, kOff };
Toggle parse_toggle(std::string_view text);  // "on", "off"; else kAuto

// What a user may fix of a backend's own choices, for measurements and for outputs that compare
// (docs/selection-rules.md, F2 to F4). A choice changes speed and rounding, never the result.
struct Tuning {
  int32_t num_splits = 0;           // parts of a sequence's keys; 0: the backend's choice
  Toggle pack_gqa = Toggle::kAuto;  // query heads of one KV head share a tile
  Toggle pdl = Toggle::kAuto;       // programmatic dependent launch, GPU only

  bool operator==(const Tuning&) const = default;
};

// What a backend's kernels would serve if the build had them, and what to give CMake for that.
struct Unbuilt {
  std::vector<HeadDims> head_dims;
  std::vector<tensor::DType> kv_dtypes;
  std::string option;  // "-DATTUNE_CUDA_KERNELS=full"
};

// Why no build can run a backend that is only declared (BackendEntry::unavailable).
inline constexpr const char* kNoKernelYet = "has no kernel yet";

struct Capabilities {
  std::string name;  // of its folder under backends/
  std::vector<Arch> archs;
  std::vector<AttentionKind> kinds;
  std::vector<Phase> phases;
  std::vector<Path> extend_paths;     // MLA: paths of the prefill phase
  std::vector<HeadDims> head_dims;    // kPaged and kAbsorbed; empty: any up to max_head_dim
  std::vector<HeadDims> ragged_dims;  // of the paths that read rows; empty: any up to max_head_dim
  int32_t max_head_dim = 0;
  std::vector<tensor::DType> q_dtypes, kv_dtypes;
  bool kv_as_q = false;             // the cache's type is its queries'
  std::vector<int32_t> page_sizes;  // empty: any
  bool window = false, soft_cap = false, sinks = false, tree_mask = false, lse_out = false;
  bool graph_safe = true;
  // What lies past a sequence's end in its last page, and in the padding page, is multiplied by
  // weights of 0, so it has to be finite. Who runs the backend sees to it: the pool begins as zeros
  // and a page that is begun anew is cleared (ops::RopeAppendParams::clear_rest). Else it may be
  // anything.
  bool reads_past_end = false;
  // Keys whose scores are no numbers are taken for keys that are not there: outputs may look sound.
  bool hides_nan = false;
  // A row's bits do not depend on its batch mates, chunking, page size, nor on where a prefix hit
  // begins.
  bool batch_invariant = false;
  // SM-side copies to host memory may run beside it. On a GPU a property of a build, not of a name:
  // off until that build has proved it (docs/selection-rules.md, H2).
  bool tolerates_host_copies = false;
  // Plain, exact, and a hundred times slower than what else a GPU has: the last resort, never
  // chosen for what another way does without it.
  bool oracle = false;
  Unbuilt unbuilt;
  // Which of Tuning's wishes it can follow; what it cannot is left at its own choice.
  bool num_splits = false, pack_gqa = false, pdl = false;
};

// Whether extend batches may go this path by it: it has the path, and the LSE by which the parts of
// kChunked are merged.
inline bool takes_path(const Capabilities& c, Path path) {
  return std::find(c.extend_paths.begin(), c.extend_paths.end(), path) != c.extend_paths.end() &&
         (path != Path::kChunked || c.lse_out);
}

}  // namespace attune::attention
