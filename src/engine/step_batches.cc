#include "engine/step_batches.h"

#include <algorithm>

#include "base/check.h"

namespace attune::engine {

using attention::Path;
using attention::Phase;
using sched::RowKind;
using sched::StepRow;

namespace {

int32_t end_of(const StepRow& row) {
  return row.start + row.num_tokens;
}

// Where a token of a sequence lies in the pool.
int64_t pool_position(const StepRow& row, int32_t position, int32_t page_size) {
  return int64_t{row.pages[position / page_size].value} * page_size + position % page_size;
}

}  // namespace

Result<std::unique_ptr<attention::Plan>> PlanMaker::make(const attention::Choice& choice,
                                                         bool rows) {
  std::vector<device::Buffer>& all = scratch_[rows];
  if (all.size() <= static_cast<size_t>(choice.index)) all.resize(choice.index + 1);
  device::Buffer& scratch = all[choice.index];
  const int64_t bytes = choice.backend->workspace_bytes(limits_[rows]);
  if (scratch.bytes() < bytes) {
    ATTUNE_ASSIGN_OR_RETURN(scratch, device_.allocate(bytes, "attention scratch"));
  }
  return choice.backend->make_plan(limits_[rows], scratch.data());
}

void StepBatches::Call::clear() {
  q_indptr.assign(1, 0);
  page_indptr.assign(1, 0);
  kv_len.clear();
  page_slots.clear();
  kv_start.clear();
  gather.clear();
  gather_on_device = nullptr;
  first_token = 0;
  batch = {};
}

void StepBatches::Call::add_sequence(int32_t q_len, int32_t kv) {
  q_indptr.push_back(q_indptr.back() + q_len);
  kv_len.push_back(kv);
  batch.max_q_len = std::max(batch.max_q_len, q_len);
  batch.max_kv_len = std::max(batch.max_kv_len, kv);
}

Status StepBatches::Call::plan_for(const attention::Choice& choice, PlanMaker& maker,
                                   device::Stream& stream) {
  const bool rows = attention::reads_rows(batch.path);
  auto& known = plans[rows];
  if (known.size() <= static_cast<size_t>(choice.index)) known.resize(choice.index + 1);
  std::unique_ptr<attention::Plan>& mine = known[choice.index];
  if (!mine) {
    ATTUNE_ASSIGN_OR_RETURN(mine, maker.make(choice, rows));
  }
  plan = mine.get();
  return choice.backend->plan(batch, *plan, stream);
}

StepBatches::Call& StepBatches::Group::next_call() {
  if (num_calls == calls.size()) calls.emplace_back();
  Call& call = calls[num_calls++];
  call.clear();
  return call;
}

void StepBatches::fill(const sched::StepPlan& plan, int32_t decode_rows) {
  ids.clear();
  positions.clear();
  slot_mapping.clear();
  num_groups_ = 0;
  Rows prefill, decode;
  std::vector<attention::ExtendSeq> extend;
  for (const StepRow& row : plan.rows) {
    ATTUNE_CHECK(static_cast<int64_t>(row.pages.size()) * config_.page_size >= end_of(row));
    (row.kind == RowKind::kPrefill ? prefill : decode).push_back(&row);
    if (row.kind == RowKind::kPrefill) extend.push_back({row.num_tokens, row.start});
  }
  first_token.assign(plan.rows.size(), 0);
  first_row_ = plan.rows.data();
  if (config_.mla) {
    for (const attention::ExtendPart& part : attention::split_extend(extend, config_.mla_policy)) {
      Rows rows;
      for (int32_t seq : part.seqs) rows.push_back(prefill[seq]);
      add_group(Phase::kPrefill, part.path, rows);
    }
  } else {
    add_group(Phase::kPrefill, Path::kPaged, prefill);
  }
  add_group(Phase::kDecode, config_.mla ? Path::kAbsorbed : Path::kPaged, decode);
  if (prefill.empty()) add_padding(decode_rows - static_cast<int32_t>(decode.size()));
}

void StepBatches::add_padding(int32_t rows) {
  if (rows <= 0) return;
  Group& group = groups_[0];
  Call& call = group.calls[0];
  for (int32_t i = 0; i < rows; ++i) {
    ids.push_back(0);
    positions.push_back(0);
    slot_mapping.push_back(-1);
    call.page_slots.push_back(kv::kPaddingSlot.value);
    call.page_indptr.push_back(static_cast<int32_t>(call.page_slots.size()));
    call.add_sequence(1, 1);
  }
  group.num_tokens += rows;
  finish(group, call, true);
}

void StepBatches::add_group(Phase phase, Path path, const Rows& rows) {
  if (rows.empty()) return;
  if (num_groups_ == groups_.size()) groups_.emplace_back();
  Group& group = groups_[num_groups_++];
  group.phase = phase;
  group.path = path;
  group.first_token = static_cast<int32_t>(ids.size());
  group.num_calls = 0;
  for (const StepRow* row : rows) add_tokens(*row);
  group.num_tokens = static_cast<int32_t>(ids.size()) - group.first_token;
  if (!attention::reads_rows(path)) return add_paged_call(group, rows);
  add_new_call(group, rows, path == Path::kOneShot);
  if (path == Path::kChunked) add_prefix_calls(group, rows);
}

void StepBatches::add_tokens(const StepRow& row) {
  first_token[&row - first_row_] = static_cast<int32_t>(ids.size());
  for (int32_t i = 0; i < row.num_tokens; ++i) {
    const int32_t position = row.start + i;
    ids.push_back(row.kind == RowKind::kPrefill ? row.tokens[i] : -1 - row.place.value);
    positions.push_back(position);
    slot_mapping.push_back(pool_position(row, position, config_.page_size));
  }
}

void StepBatches::add_paged_call(Group& group, const Rows& rows) const {
  Call& call = group.next_call();
  for (const StepRow* row : rows) {
    const int32_t used = (end_of(*row) + config_.page_size - 1) / config_.page_size;
    for (int32_t i = 0; i < used; ++i) call.page_slots.push_back(row->pages[i].value);
    call.page_indptr.push_back(static_cast<int32_t>(call.page_slots.size()));
    call.add_sequence(row->num_tokens, end_of(*row));
  }
  finish(group, call, true);
}

// All sequences' new tokens against themselves, or against their prefixes too.
void StepBatches::add_new_call(Group& group, const Rows& rows, bool with_prefix) const {
  Call& call = group.next_call();
  int32_t key_row = 0;
  for (const StepRow* row : rows) {
    const int32_t keys = with_prefix ? end_of(*row) : row->num_tokens;
    if (with_prefix) gather(call, *row, 0, keys);
    call.kv_start.push_back(key_row);
    call.add_sequence(row->num_tokens, keys);
    key_row += keys;
  }
  finish(group, call, true);
}

// The same tokens against their prefixes, a chunk at a time. A chunk's sequences are neighbours, so
// their query rows are too.
void StepBatches::add_prefix_calls(Group& group, const Rows& rows) const {
  std::vector<int32_t> prefixes;
  for (const StepRow* row : rows) prefixes.push_back(row->start);
  for (const attention::PrefixChunk& chunk :
       attention::chunk_prefixes(prefixes, config_.mla_policy.capacity)) {
    Call& call = group.next_call();
    for (int32_t seq = 0; seq < chunk.ranges[0].seq; ++seq)
      call.first_token += rows[seq]->num_tokens;
    int32_t key_row = 0;
    for (const attention::PrefixChunk::Range& r : chunk.ranges) {
      gather(call, *rows[r.seq], r.begin, r.end);
      call.kv_start.push_back(key_row);
      call.add_sequence(rows[r.seq]->num_tokens, r.end - r.begin);
      key_row += r.end - r.begin;
    }
    finish(group, call, false);
  }
}

void StepBatches::gather(Call& call, const StepRow& row, int32_t begin, int32_t end) const {
  for (int32_t p = begin; p < end; ++p)
    call.gather.push_back(pool_position(row, p, config_.page_size));
}

void StepBatches::finish(const Group& group, Call& call, bool causal) const {
  attention::Batch& b = call.batch;
  b.phase = group.phase;
  b.path = group.path;
  b.num_seqs = static_cast<int32_t>(call.kv_len.size());
  b.num_tokens = call.q_indptr.back();
  b.q_indptr = call.q_indptr.data();
  b.kv_len = call.kv_len.data();
  b.causal = causal;
  b.deterministic = config_.deterministic;
  if (attention::reads_rows(group.path)) {
    b.kv_start = call.kv_start.data();
    return;
  }
  b.page_indptr = call.page_indptr.data();
  b.page_slots = call.page_slots.data();
  b.page_size = config_.page_size;
}

void StepBatches::stage(Staging& staging) {
  for (size_t g = 0; g < num_groups_; ++g) {
    for (size_t c = 0; c < groups_[g].num_calls; ++c) {
      Call& call = groups_[g].calls[c];
      attention::Batch::Arrays& to = call.batch.on_device;
      to.q_indptr = staging.add(call.q_indptr);
      to.kv_len = staging.add(call.kv_len);
      to.kv_start = staging.add(call.kv_start);
      to.page_indptr = staging.add(call.page_indptr);
      call.gather_on_device = staging.add(call.gather);
      to.page_slots = staging.add(call.page_slots);  // last: its length varies from step to step
    }
  }
}

// One choice for all calls of a group: what serves the new tokens serves their prefixes.
Status StepBatches::route(attention::Router& router, PlanMaker& maker, device::Stream& stream) {
  for (size_t g = 0; g < num_groups_; ++g) {
    Group& group = groups_[g];
    const auto plan = [&](const attention::Choice& choice) -> Status {
      for (size_t c = 0; c < group.num_calls; ++c)
        ATTUNE_RETURN_IF_ERROR(group.calls[c].plan_for(choice, maker, stream));
      return {};
    };
    ATTUNE_ASSIGN_OR_RETURN(group.choice, router.route(group.calls[0].batch, plan));
  }
  return {};
}

std::vector<model::AttentionGroup> StepBatches::plan_on(device::Stream& stream) {
  std::vector<model::AttentionGroup> out;
  for (size_t g = 0; g < num_groups_; ++g) {
    Group& group = groups_[g];
    group.pieces.clear();
    for (size_t c = 0; c < group.num_calls; ++c) {
      Call& call = group.calls[c];
      group.choice.backend->plan_on(*call.plan, stream);
      const int64_t* gather = call.gather_on_device ? call.gather_on_device : call.gather.data();
      group.pieces.push_back(
          {call.plan, call.first_token, call.batch.num_tokens, {gather, call.gather.size()}});
    }
    out.push_back({.backend = group.choice.backend,
                   .plan = group.calls[0].plan,
                   .first_token = group.first_token,
                   .num_tokens = group.num_tokens,
                   .path = group.path});
    if (attention::reads_rows(group.path)) out.back().pieces = group.pieces;
  }
  return out;
}

bool StepBatches::runs_any_of(std::span<const std::string> backends) const {
  return std::any_of(groups_.begin(), groups_.begin() + static_cast<ptrdiff_t>(num_groups_),
                     [&](const Group& group) {
                       return std::ranges::find(backends,
                                                group.choice.backend->capabilities().name) !=
                              backends.end();
                     });
}

}  // namespace attune::engine
