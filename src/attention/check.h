// What every backend refuses in the same words, before anything is launched.
#pragma once

#include "attention/backend.h"

namespace attune::attention {

// invalid_argument, with sequence and field: indptr not rising or not ending at the counts, lengths
// below 0, more than the limits, fewer pages than kv_len needs, a page slot outside [0, num_slots),
// key rows outside those there are, a tree of more than 64 tokens. Costs a pass over the page
// table, some microseconds for thousands of pages: always on.
Status check_batch(const Batch& batch, const Limits& limits);

// On a GPU: invalid_argument naming an array that the host has and on_device has not.
Status check_on_device(const Batch& batch);

}  // namespace attune::attention
