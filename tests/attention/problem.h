// A random attention problem over pages or dense rows. The values of a sequence depend on its seed
// and positions alone, so that the same sequence can be put into other batches, pages and chunks.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "attention/backend.h"

namespace attune::attention::test {

struct Shape {
  int32_t q_heads = 4, kv_heads = 2, qk_dim = 32, v_dim = 32, page_size = 16;
  tensor::DType kv_dtype = tensor::DType::kF32;
  kv::PageOrder order = kv::PageOrder::kHeadMajor;
  bool causal = true;
  Path path = Path::kPaged;
  bool v_in_k = false;  // V is the head of K
  tensor::DType q_dtype = tensor::DType::kF32;
  bool reads_past_end = false;  // the backend: Fill's poison is then large and finite
};
// MLA's: one KV head whose rows are latent and rope part; V is the latent.
Shape absorbed(int32_t heads, int32_t latent, int32_t rope);
// Rows of K and V for every head.
Shape ragged(int32_t heads, int32_t qk_dim, int32_t v_dim, Path path = Path::kRagged);

// Queries stand at the last q_len of kv_len positions.
struct Seq {
  int32_t q_len = 1, kv_len = 1;
  uint32_t seed = 1;
};

// What fills every slot, and every position of a last page, that no sequence owns.
enum class Fill { kZero, kNaN, kInf };

class Problem {
 public:
  Problem(const Shape& shape, std::vector<Seq> seqs, Fill fill = Fill::kNaN,
          uint32_t page_seed = 1);
  Problem(Problem&&) = default;  // not copied: the view points into the pool

  Batch batch(Phase phase) const;
  Limits limits(int threads) const;
  LayerParams layer() const;  // scale 1/sqrt(qk_dim), nothing else
  const kv::PagedKvView& view() const { return view_; }
  const std::vector<float>& q() const { return q_; }
  const Shape& shape() const { return shape_; }
  const std::vector<char>& pool() const { return pool_; }
  int32_t tokens() const { return q_indptr_.back(); }
  // One word for each token.
  void set_tree(std::vector<uint64_t> words) { tree_ = std::move(words); }
  void set_q(std::vector<float> q) { q_ = std::move(q); }
  void set_deterministic(bool on) { deterministic_ = on; }
  // Of paths that read rows: every sequence sees keys [first, second) of its own only.
  void set_keys(const std::vector<std::pair<int32_t, int32_t>>& ranges, bool causal);
  // Rows [first_row, + rows) of K (what 0), V (1) or q (2) of a sequence, dense, before rounding to
  // the pool's type.
  static std::vector<float> values(uint32_t seed, int what, int64_t rows, int64_t width,
                                   int64_t first_row = 0);
  // Overwrites one element of a sequence's K (v_part: V).
  void poke(int32_t seq, int32_t position, int32_t kv_head, int32_t d, bool v_part, float value);
  std::vector<int32_t>& page_slots() { return page_slots_; }
  std::vector<int32_t>& kv_lens() { return kv_len_; }
  std::vector<int32_t>& kv_starts() { return kv_start_; }

 private:
  void lay_pages(uint32_t page_seed);
  void lay_rows(uint32_t page_seed);
  void fill_in(const Seq& seq, int32_t s);
  char* element(int32_t seq, int32_t position, int32_t kv_head, int32_t d, bool v_part);
  void write(char* at, float value);

  Shape shape_;
  std::vector<Seq> seqs_;
  std::vector<int32_t> q_indptr_{0}, kv_len_, page_indptr_{0}, page_slots_;
  std::vector<int32_t> row_of_, kv_start_;  // where a sequence's rows begin, and what it sees
  std::vector<float> q_;
  std::vector<uint64_t> tree_;
  bool deterministic_ = true;
  std::vector<char> pool_;
  kv::PagedKvView view_;
};

// The value that `dtype` holds for it.
float rounded(float value, tensor::DType dtype);

// A token tree by its nodes' parents (-1: the root): a node sees its ancestors and itself.
std::vector<uint64_t> tree_words(const std::vector<int>& parents);

}  // namespace attune::attention::test
