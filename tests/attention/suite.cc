#include "suite.h"

#include <algorithm>
#include <thread>

#include "attention/arch.h"

namespace attune::attention::test {
namespace {

using tensor::DType;

template <typename T>
bool holds(const std::vector<T>& list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

AttentionKind kind_of(const Shape& s) {
  return s.path == Path::kPaged ? AttentionKind::kMha : AttentionKind::kMla;
}

const std::vector<HeadDims>& dims_of(const Capabilities& c, const Shape& s) {
  return reads_rows(s.path) ? c.ragged_dims : c.head_dims;
}

bool serves_dims(const Capabilities& c, const Shape& s) {
  const auto& dims = dims_of(c, s);
  if (!dims.empty()) return holds(dims, {s.qk_dim, s.v_dim});
  return std::max(s.qk_dim, s.v_dim) <= c.max_head_dim;
}

}  // namespace

void PrintTo(const Target& target, std::ostream* out) {
  *out << target.backend << "_" << target.isa;
}

std::string missing(const Capabilities& c, const Shape& s, Phase phase, const LayerParams& layer,
                    bool tree) {
  const bool mla = kind_of(s) == AttentionKind::kMla;
  if (!holds(c.kinds, kind_of(s))) return kind_name(kind_of(s));
  if (!holds(c.phases, phase)) return phase_name(phase);
  if (mla && phase == Phase::kPrefill && !holds(c.extend_paths, s.path)) return path_name(s.path);
  if (!serves_dims(c, s)) return "head dims " + text("", s.qk_dim) + text("/", s.v_dim);
  if (!holds(c.q_dtypes, s.q_dtype)) return "the query type";
  if (!holds(c.kv_dtypes, s.kv_dtype) || (c.kv_as_q && s.kv_dtype != s.q_dtype))
    return "the KV type";
  if (!reads_rows(s.path) && !c.page_sizes.empty() && !holds(c.page_sizes, s.page_size))
    return text("page size ", s.page_size);
  if (layer.window > 0 && !c.window) return "windows";
  if (layer.soft_cap > 0 && !c.soft_cap) return "soft caps";
  if (layer.sinks && !c.sinks) return "sinks";
  if (tree && !c.tree_mask) return "tree masks";
  return {};
}

namespace {

// One for the CPU, at most, where the GPU that a target names is not there: the test is skipped.
Target usable(const Target& target) {
  if (target.isa == kCuda && !gpu_missing().empty()) return {"reference", "auto"};
  return target;
}

// Two are enough to see races, and what a small machine has; beside a GPU the reference may hurry.
int reference_threads(const Target& target) {
  return target.isa == kCuda ? static_cast<int>(std::max(2u, std::thread::hardware_concurrency()))
                             : 2;
}

}  // namespace

Suite::Suite()
    : runner_(usable(GetParam()).backend, usable(GetParam()).isa, 2),
      reference_("reference", "auto", reference_threads(GetParam())) {}

void Suite::SetUp() {
  if (GetParam().isa == kCuda && !gpu_missing().empty()) GTEST_SKIP() << gpu_missing();
  const Arch arch = arch_of(runner_.device().info());
  if (!holds(caps().archs, arch)) GTEST_SKIP() << "does not declare " << arch_name(arch);
  const Support support = runner_.backend().supports({});  // its library may be missing here
  if (!support.ok()) GTEST_SKIP() << support.reasons.front();
}

void Suite::expect_same(const Output& got, const Output& want, const Shape& shape,
                        const std::string& what) const {
  if (caps().batch_invariant) return expect_same_bits(got, want, what);
  expect_close(got, want, tolerance(shape), tolerance(shape), what);
}

void Suite::skip_undeclared(const std::string& what) {
  ran_ = 0;
  missing_ = what;
}

void Suite::TearDown() {
  if (ran_ == 0 && !missing_.empty()) GTEST_SKIP() << "does not declare " << missing_;
}

Shape Suite::adapt(Shape s) const {
  const Capabilities& c = caps();
  // Kernels for 16 bits want both of one type, where the cache is not narrower.
  if (!holds(c.q_dtypes, s.q_dtype))
    s.q_dtype = holds(c.q_dtypes, s.kv_dtype) ? s.kv_dtype : c.q_dtypes.front();
  if (!holds(c.kv_dtypes, s.kv_dtype))
    s.kv_dtype = holds(c.kv_dtypes, s.q_dtype) ? s.q_dtype : c.kv_dtypes.front();
  if (!serves_page(s.page_size)) s.page_size = c.page_sizes.front();
  const auto& dims = dims_of(c, s);
  if (!dims.empty() && !holds(dims, {s.qk_dim, s.v_dim})) {
    s.qk_dim = dims.front().qk;
    s.v_dim = dims.front().v;
  }
  s.reads_past_end = c.reads_past_end;
  return s;
}

bool Suite::serves_page(int32_t page_size) const {
  return caps().page_sizes.empty() || holds(caps().page_sizes, page_size);
}

bool Suite::serves(const Shape& shape, Phase phase, const LayerParams& layer, bool tree) {
  const std::string lacks = missing(caps(), shape, phase, layer, tree);
  if (lacks.empty()) {
    ++ran_;
  } else {
    missing_ = lacks;
  }
  return lacks.empty();
}

bool Suite::serves(const Shape& shape, Phase phase) {
  return serves(shape, phase, LayerParams{});
}

// Queries, keys and values are rounded to their types before either side reads them, products and
// sums are float32: on tensor cores what is left is the weights' rounding to the queries' type,
// before they meet the values (of a sum of weights 1 at most a unit roundoff of the largest value),
// and the output's own, relative.
double Suite::tolerance(const Shape& shape) const {
  constexpr double kLargest = 3.4642;  // of Problem::values
  if (!runner_.on_gpu() || shape.q_dtype == DType::kF32) return 2e-5;
  return kLargest * (shape.q_dtype == DType::kF16 ? 0x1p-11 : 0x1p-8);
}

double Suite::tolerance(const Shape& shape, double least) const {
  return runner_.on_gpu() ? std::max(tolerance(shape), least) : least;
}

void Suite::check(const Shape& wanted, const std::vector<Seq>& seqs, const std::string& what,
                  Phase phase, const LayerParams* params, const std::vector<uint64_t>& tree) {
  const Shape shape = adapt(wanted);
  Problem clean(shape, seqs, Fill::kZero);
  const LayerParams layer = params ? *params : clean.layer();
  if (!serves(shape, phase, layer, !tree.empty())) return;
  clean.set_tree(tree);
  if (!takes(clean, phase)) {
    std::vector<Seq> with_keys;
    for (const Seq& s : seqs)
      if (s.q_len <= s.kv_len) with_keys.push_back(s);
    if (with_keys.size() < seqs.size() && tree.empty())
      check(wanted, with_keys, what, phase, params);
    return;
  }
  const Output want = reference_.run(clean, phase, layer);
  uint32_t page_seed = 2;
  const auto run = [&](Fill fill, bool deterministic, const char* how) {
    Problem poisoned(shape, seqs, fill, page_seed++);
    poisoned.set_tree(tree);
    poisoned.set_deterministic(deterministic);
    expect_close(runner_.run(poisoned, phase, layer), want, tolerance(shape), tolerance(shape),
                 what + how);
  };
  run(Fill::kNaN, true, " (NaN)");
  run(Fill::kInf, true, " (Inf)");
  // Where that makes a difference there may be other kernels for it.
  if (runner_.on_gpu() && caps().batch_invariant) run(Fill::kNaN, false, " (not deterministic)");
}

std::string text(const char* name, int64_t value) {
  return name + std::to_string(value);
}

}  // namespace attune::attention::test
