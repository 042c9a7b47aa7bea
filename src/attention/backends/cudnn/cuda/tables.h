// A batch's arrays as cuDNN wants them: lengths and offsets by sequence, and a dense page table.
#pragma once

#include "attention/backend.h"

namespace attune::attention::cudnn {

struct Tables {
  int32_t *q_len, *kv_len;           // [rows]
  int32_t *q_offsets, *lse_offsets;  // [rows + 1], elements: tokens * q_width, tokens * q_heads
  int32_t* pages;                    // [rows, pitch]; beyond a sequence's pages the padding slot
  int32_t* used;                     // [rows], its pages in the table now; zeros at first
  int32_t rows, pitch;
  int32_t q_width, q_heads;
};

// Sequences from `num_seqs` on are without rows and keys. A tile of keys may reach over a
// sequence's last page, and must not find another's there. Inside Stream::launch.
void fill_tables(const Batch::Arrays& from, int32_t num_seqs, int32_t page_size, const Tables& to,
                 device::Stream& stream);

// offsets[s] = where sequence s begins, in elements of rows that are `stride` apart. [rows + 1]
void fill_offsets(const int32_t* q_indptr, int32_t num_seqs, int32_t rows, int64_t stride,
                  int32_t* offsets, device::Stream& stream);

}  // namespace attune::attention::cudnn
