// What `attune bench serving` asks for: prompts and how many tokens to generate, made from a seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attune/request.h"
#include "attune/status.h"

namespace attune::bench {

struct PromptWork {
  std::vector<TokenId> ids;
  std::string text;        // of the ids, for backends that take no ids
  int32_t output_len = 0;  // tokens to generate
  int32_t turn = 0;        // of a chat, from 0
  // The place of the chat's next turn, a later one in the workload; -1: none. That turn waits for
  // this one's answer, and its prompt is this one's, the answer's ids and then its own ids.
  int32_t next = -1;
};

struct WorkloadConfig {
  // random, random-ids: ids and lengths drawn evenly; generated-shared-prefix: groups of prompts
  // that begin alike; lengths-file: lengths as a file lists them; multi-turn: chats that grow.
  std::string dataset = "random";
  int32_t num_prompts = 1000;  // lengths-file: at most
  int32_t input_len = 1024, output_len = 1024;
  double range_ratio = 0;          // lengths are drawn from [ratio * length, length]
  int32_t token_id_range = 10000;  // ids are drawn from [0, this)
  int32_t gsp_groups = 64, gsp_prompts_per_group = 16, gsp_system_len = 2048,
          gsp_question_len = 128, gsp_output_len = 256;
  // multi-turn: a user's turn asks with the whole history and so many new ids.
  int32_t num_users = 64, num_turns = 8, turn_input_len = 512, turn_output_len = 64,
          shared_system_len = 0;  // in front of every user's first turn
  std::string path;               // lengths-file: {"input_lens": [...], "output_lens": [...]}
  uint64_t seed = 1;
};

// The prompts in the order in which they are sent; later turns of a chat go to the end of the line
// when they may be sent. `text` stays empty. Errors: invalid_argument, not_found and data_loss for
// the lengths file, by the option's name.
Result<std::vector<PromptWork>> make_workload(const WorkloadConfig& config);

// One more prompt of `input_len` ids that shares no prefix with a workload of the same seed.
std::vector<TokenId> warmup_prompt(const WorkloadConfig& config, int32_t input_len, uint64_t index);

}  // namespace attune::bench
