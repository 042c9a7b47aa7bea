// A random attention problem over a paged pool, and what a backend makes of it. The values of a
// sequence depend on its seed and positions alone, so that the same sequence can be put into other
// batches, pages and chunks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/registry.h"
#include "base/check.h"

namespace attune::attention::test {

struct Shape {
  int32_t q_heads = 4, kv_heads = 2, qk_dim = 32, v_dim = 32, page_size = 16;
  tensor::DType kv_dtype = tensor::DType::kF32;
  kv::PageOrder order = kv::PageOrder::kHeadMajor;
  bool causal = true;
};

// Queries stand at the last q_len of kv_len positions.
struct Seq {
  int32_t q_len = 1, kv_len = 1;
  uint32_t seed = 1;
};

struct Output {
  std::vector<float> out;  // [tokens, q_heads, v_dim]
  std::vector<float> lse;  // [tokens, q_heads]
};

// What fills every slot, and every position of a last page, that no sequence owns.
enum class Fill { kZero, kNaN, kInf };

class Problem {
 public:
  Problem(const Shape& shape, std::vector<Seq> seqs, Fill fill = Fill::kNaN,
          uint32_t page_seed = 1);

  Batch batch(Phase phase) const;
  Limits limits(int threads) const;
  LayerParams layer() const;  // scale 1/sqrt(qk_dim), nothing else
  const kv::PagedKvView& view() const { return view_; }
  const std::vector<float>& q() const { return q_; }
  const Shape& shape() const { return shape_; }
  int32_t tokens() const { return q_indptr_.back(); }
  void set_tree(std::vector<uint64_t> words) { tree_ = std::move(words); }
  void set_q(std::vector<float> q) { q_ = std::move(q); }
  // K and V of a sequence, dense [kv_len, kv_heads, dim], before rounding to the pool's type.
  static std::vector<float> values(uint32_t seed, int what, int64_t rows, int64_t width);
  // Overwrites one element of a sequence's K (v_part: V).
  void poke(int32_t seq, int32_t position, int32_t kv_head, int32_t d, bool v_part, float value);
  std::vector<int32_t>& page_slots() { return page_slots_; }
  std::vector<int32_t>& kv_lens() { return kv_len_; }

 private:
  char* element(int32_t seq, int32_t position, int32_t kv_head, int32_t d, bool v_part);
  void write(char* at, float value);

  Shape shape_;
  std::vector<Seq> seqs_;
  std::vector<int32_t> q_indptr_{0}, kv_len_, page_indptr_{0}, page_slots_;
  std::vector<float> q_;
  std::vector<uint64_t> tree_;
  std::vector<char> pool_;
  kv::PagedKvView view_;
  int32_t num_slots_ = 0;
};

// A backend on a device of some level and threads.
class Runner {
 public:
  Runner(const std::string& backend, const std::string& isa, int threads);
  // Plans and runs one layer. Rows of the output lie apart, and the gaps between them are checked
  // to be untouched; the workspace is full of NaN.
  Output run(const Problem& problem, Phase phase, const LayerParams& layer,
             tensor::DType out_dtype = tensor::DType::kF32) const;
  Output run(const Problem& problem, Phase phase = Phase::kPrefill) const {
    return run(problem, phase, problem.layer());
  }
  Status plan_only(const Problem& problem, Phase phase) const;
  const Backend& backend() const { return *backend_; }

 private:
  int threads_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<Backend> backend_;
};

// Names of the ISA levels this machine has.
std::vector<std::string> isa_levels();

// Fails with the first element further apart than atol + rtol * |want|; infinities must agree.
void expect_close(const Output& got, const Output& want, double atol, double rtol,
                  const std::string& what);
// Fails unless all bits agree.
void expect_same_bits(const Output& got, const Output& want, const std::string& what);

}  // namespace attune::attention::test
