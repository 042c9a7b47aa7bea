#include "attention/check.h"

#include "base/log.h"

namespace attune::attention {
namespace {

using base::cat;

// INDPTR[s + 1] - INDPTR[s], or -1 with `why` set.
int64_t span_of(const char* field, const int32_t* indptr, int32_t s, std::string* why) {
  const int64_t n = int64_t{indptr[s + 1]} - indptr[s];
  if (n < 0)
    *why = cat("sequence ", s, ": ", field, " falls from ", indptr[s], " to ", indptr[s + 1]);
  return n;
}

std::string check_sequence(const Batch& b, const Limits& limits, int32_t s) {
  std::string why;
  const int64_t q_len = span_of("q_indptr", b.q_indptr, s, &why);
  const int64_t pages = reads_rows(b.path) ? 0 : span_of("page_indptr", b.page_indptr, s, &why);
  if (!why.empty()) return why;
  const int64_t kv_len = b.kv_len[s];
  if (kv_len < 0 || kv_len > limits.max_kv_len || kv_len > b.max_kv_len)
    return cat("sequence ", s, ": kv_len ", kv_len, " is not in [0, ",
               limits.max_kv_len < b.max_kv_len ? limits.max_kv_len : b.max_kv_len, "]");
  if (q_len > b.max_q_len)
    return cat("sequence ", s, ": ", q_len, " queries, but max_q_len is ", b.max_q_len);
  if (b.tree_mask && q_len > 64)
    return cat("sequence ", s, ": a token tree of ", q_len, " tokens; a mask has 64 bits");
  if (reads_rows(b.path)) {
    const int64_t start = b.kv_start[s];
    if (start < 0 || start + kv_len > limits.page_size)
      return cat("sequence ", s, ": key rows [", start, ", ", start + kv_len,
                 ") are not within the ", limits.page_size, " there are");
    return {};
  }
  if (pages * b.page_size < kv_len)
    return cat("sequence ", s, ": ", pages, " pages of ", b.page_size, " cannot hold kv_len ",
               kv_len);
  for (int64_t i = 0; i < pages; ++i) {
    const int32_t slot = b.page_slots[b.page_indptr[s] + i];
    if (slot < 0 || slot >= limits.num_slots)
      return cat("sequence ", s, ": page ", i, " names slot ", slot, ", outside [0, ",
                 limits.num_slots, ")");
  }
  return {};
}

}  // namespace

Status check_batch(const Batch& b, const Limits& limits) {
  if (b.num_seqs < 0 || b.num_seqs > limits.max_seqs || b.num_tokens < 0 ||
      b.num_tokens > limits.max_tokens)
    return invalid_argument(cat("attention batch: ", b.num_seqs, " sequences with ", b.num_tokens,
                                " tokens exceed the limits of ", limits.max_seqs, " and ",
                                limits.max_tokens));
  if (!reads_rows(b.path) && (b.page_size != limits.page_size || b.page_size <= 0))
    return invalid_argument(
        cat("attention batch: page_size ", b.page_size, ", but the pool's is ", limits.page_size));
  if (b.num_seqs == 0) {
    if (b.num_tokens == 0) return {};
    return invalid_argument(cat("attention batch: ", b.num_tokens, " tokens of no sequence"));
  }
  if (reads_rows(b.path) && !b.kv_start)
    return invalid_argument(cat("attention batch: no kv_start on the path ", path_name(b.path)));
  if (b.q_indptr[0] != 0 || (!reads_rows(b.path) && b.page_indptr[0] != 0))
    return invalid_argument("attention batch: q_indptr and page_indptr must begin with 0");
  for (int32_t s = 0; s < b.num_seqs; ++s) {
    const std::string why = check_sequence(b, limits, s);
    if (!why.empty()) return invalid_argument("attention batch: " + why);
  }
  if (b.q_indptr[b.num_seqs] != b.num_tokens)
    return invalid_argument(cat("attention batch: q_indptr ends at ", b.q_indptr[b.num_seqs],
                                ", but there are ", b.num_tokens, " tokens"));
  return {};
}

Status check_on_device(const Batch& b) {
  if (b.num_seqs == 0) return {};
  const bool rows = reads_rows(b.path);
  const Batch::Arrays& at = b.on_device;
  const char* lacks = !at.q_indptr                   ? "q_indptr"
                      : !at.kv_len                   ? "kv_len"
                      : rows && !at.kv_start         ? "kv_start"
                      : !rows && !at.page_indptr     ? "page_indptr"
                      : !rows && !at.page_slots      ? "page_slots"
                      : b.tree_mask && !at.tree_mask ? "tree_mask"
                                                     : nullptr;
  if (!lacks) return {};
  return invalid_argument(cat("attention batch: ", lacks, " is not in device memory"));
}

}  // namespace attune::attention
