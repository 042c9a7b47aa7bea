// One step of the engine as plain data: made by Scheduler::plan, run by the model runner, answered
// by a StepResult. Printable, recordable (one JSON line each) and replayable without a device.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attune/request.h"
#include "attune/status.h"
#include "base/strong_id.h"
#include "kv/layout/host_layout.h"

namespace attune::sched {

// Where the device keeps a running sequence's own state: its last sampled token, its penalty
// counts, its sampling parameters. A place is given at admission and kept until the sequence leaves
// the device.
using SeqPlace = base::StrongId<struct SeqPlaceTag>;

enum class RowKind : uint8_t {
  kPrefill,  // `tokens` are given; attends to what is cached before `start`
  kDecode,   // one token: the last one sampled at this place, which the host need not know yet
};

// What one sequence does in this step.
struct StepRow {
  RequestId request = 0;
  SeqPlace place;
  RowKind kind = RowKind::kDecode;
  int32_t start = 0;            // position of the first new token = tokens in the cache before
  int32_t num_tokens = 1;       // new tokens of this step
  std::vector<TokenId> tokens;  // [num_tokens] for kPrefill, empty for kDecode
  std::vector<kv::DeviceSlot> pages;  // all pages of the sequence that hold [0, start + num_tokens)
  bool sample =
      true;  // draw the next token from the last position (false: a chunk that is not the last)
  // kPrefill, -1: none. Log-probabilities are wanted of the prompt ids at positions
  // [max(prompt_logprob_start, start + 1), start + num_tokens + 1) so far as the prompt has them:
  // the logits of position p - 1 give that of the id at p. `next_token` is the prompt id at start +
  // num_tokens, or -1.
  int32_t prompt_logprob_start = -1;
  TokenId next_token = -1;

  bool operator==(const StepRow&) const = default;
};

// A sequence enters the device (first time, or again after a retraction) before its first row.
struct Admission {
  RequestId request = 0;
  SeqPlace place;
  SamplingParams sampling;  // with the seed filled in
  std::vector<TokenId>
      history;  // prompt and what was generated before a retraction: for the penalties
  int32_t prompt_tokens = 0;  // how many of `history` are the prompt's

  bool operator==(const Admission&) const = default;
};

struct StepPlan {
  uint64_t id = 0;  // counts from 1
  std::vector<Admission> admissions;
  std::vector<kv::PageCopy> loads;  // host to device; rows of this step read these pages
  std::vector<StepRow> rows;        // prefill rows first, then decode rows
  int32_t num_tokens = 0;           // of all rows

  bool empty() const { return rows.empty(); }
  bool operator==(const StepPlan&) const = default;
  std::string to_json() const;  // one line
};
// invalid_argument with the field's name.
Result<StepPlan> parse_step_plan(std::string_view json_line);

struct RowResult {
  TokenId token = -1;    // the one drawn; -1 when the row did not sample
  LogprobEntry logprob;  // when the request asked for it
  std::vector<LogprobEntry> prompt_logprobs;
  int32_t prompt_logprobs_first = 0;  // position of the first entry
  std::string error;  // not empty: this request fails (e.g. logits not finite), others go on
};

struct StepResult {
  uint64_t id = 0;
  std::string load_error;       // not empty: not all of the plan's loads came
  std::vector<RowResult> rows;  // one per row of the plan, in order
};

}  // namespace attune::sched
