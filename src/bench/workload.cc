#include "bench/workload.h"

#include <algorithm>
#include <random>

#include "base/log.h"
#include "formats/json.h"
#include "formats/text_file.h"

namespace attune::bench {
namespace {

using Random = std::mt19937_64;

constexpr size_t kMaxFileBytes = 256 << 20;
constexpr int32_t kMaxPrompts = 1 << 22;
constexpr int32_t kMaxTokens = 1 << 28;  // a gibibyte of ids

// [0, n), the same on every platform (std::uniform_int_distribution is not).
uint64_t below(Random& random, uint64_t n) {
  return random() % n;  // n is far below 2^64: the skew is immaterial
}

std::vector<TokenId> draw_ids(Random& random, int32_t range, int32_t count) {
  std::vector<TokenId> ids(static_cast<size_t>(count));
  for (TokenId& id : ids) id = static_cast<TokenId>(below(random, static_cast<uint64_t>(range)));
  return ids;
}

int32_t draw_length(Random& random, int32_t most, double ratio) {
  const int32_t least = std::max(static_cast<int32_t>(most * ratio), 1);
  return least + static_cast<int32_t>(below(random, static_cast<uint64_t>(most - least + 1)));
}

std::vector<PromptWork> draw_random(const WorkloadConfig& config, Random& random) {
  std::vector<PromptWork> work(static_cast<size_t>(config.num_prompts));
  for (PromptWork& item : work) {
    const int32_t input = draw_length(random, config.input_len, config.range_ratio);
    item.ids = draw_ids(random, config.token_id_range, input);
    item.output_len = draw_length(random, config.output_len, config.range_ratio);
  }
  return work;
}

std::vector<PromptWork> draw_shared_prefix(const WorkloadConfig& config, Random& random) {
  std::vector<PromptWork> work;
  for (int32_t group = 0; group < config.gsp_groups; ++group) {
    const auto system = draw_ids(random, config.token_id_range, config.gsp_system_len);
    for (int32_t i = 0; i < config.gsp_prompts_per_group; ++i) {
      PromptWork item{.ids = system, .output_len = config.gsp_output_len};
      const auto question = draw_ids(random, config.token_id_range, config.gsp_question_len);
      item.ids.insert(item.ids.end(), question.begin(), question.end());
      work.push_back(std::move(item));
    }
  }
  for (size_t i = work.size(); i > 1; --i) std::swap(work[i - 1], work[below(random, i)]);
  return work;
}

// All first turns, then all second ones, and so on.
std::vector<PromptWork> draw_turns(const WorkloadConfig& config, Random& random) {
  const auto system = draw_ids(random, config.token_id_range, config.shared_system_len);
  std::vector<PromptWork> work;
  for (int32_t turn = 0; turn < config.num_turns; ++turn) {
    for (int32_t user = 0; user < config.num_users; ++user) {
      PromptWork item{.output_len = config.turn_output_len, .turn = turn};
      if (turn == 0) item.ids = system;
      const auto asked = draw_ids(random, config.token_id_range, config.turn_input_len);
      item.ids.insert(item.ids.end(), asked.begin(), asked.end());
      if (turn + 1 < config.num_turns)
        item.next = static_cast<int32_t>(work.size()) + config.num_users;
      work.push_back(std::move(item));
    }
  }
  return work;
}

// REQUIRES nothing of the arguments: they may be any flags' products.
Status check_size(double prompts, double tokens) {
  if (prompts <= kMaxPrompts && tokens <= kMaxTokens) return {};
  return invalid_argument(base::cat("the prompts would be ", prompts, " with ", tokens,
                                    " tokens in all; at most ", kMaxPrompts, " with ", kMaxTokens,
                                    " are made: ask for fewer or shorter ones"));
}

// Of the datasets that flags alone describe.
Status check_drawn_size(const WorkloadConfig& c) {
  if (c.dataset == "multi-turn") {
    const double turns = double(c.num_users) * c.num_turns;
    const double turn_len = double(c.turn_input_len) + c.turn_output_len;
    return check_size(turns, double(c.num_users) * c.shared_system_len + turns * turn_len);
  }
  const bool shared = c.dataset == "generated-shared-prefix";
  const double prompts = shared ? double(c.gsp_groups) * c.gsp_prompts_per_group : c.num_prompts;
  const double length = shared ? double(c.gsp_system_len) + c.gsp_question_len : c.input_len;
  return check_size(prompts, prompts * length);
}

Result<std::vector<int32_t>> read_lengths(const formats::Json& document, const char* key) {
  const formats::Json* list = document.find(key);
  if (!list || !list->is_array()) return data_loss(base::cat("has no array '", key, "'"));
  std::vector<int32_t> lengths;
  for (const formats::Json& item : list->as_array()) {
    if (!item.is_int() || item.as_int() < 1 || item.as_int() > 1 << 24)
      return data_loss(base::cat(key, "[", lengths.size(), "] is no whole number from 1 to 2^24"));
    lengths.push_back(static_cast<int32_t>(item.as_int()));
  }
  return lengths;
}

Result<std::vector<PromptWork>> read_lengths_file(const WorkloadConfig& config, Random& random) {
  if (config.path.empty())
    return invalid_argument("--dataset-name lengths-file needs --dataset-path FILE");
  ATTUNE_ASSIGN_OR_RETURN(const std::string text,
                          formats::read_text_file(config.path, kMaxFileBytes));
  ATTUNE_ASSIGN_OR_RETURN(const formats::Json document, formats::parse_json(text));
  ATTUNE_ASSIGN_OR_RETURN(const auto inputs, read_lengths(document, "input_lens"));
  ATTUNE_ASSIGN_OR_RETURN(const auto outputs, read_lengths(document, "output_lens"));
  if (inputs.empty() || inputs.size() != outputs.size())
    return data_loss("must have as many output_lens as input_lens, and at least one");
  std::vector<PromptWork> work(std::min(inputs.size(), static_cast<size_t>(config.num_prompts)));
  double tokens = 0;
  for (size_t i = 0; i < work.size(); ++i) tokens += inputs[i];
  ATTUNE_RETURN_IF_ERROR(check_size(static_cast<double>(work.size()), tokens));
  for (size_t i = 0; i < work.size(); ++i) {
    work[i].ids = draw_ids(random, config.token_id_range, inputs[i]);
    work[i].output_len = outputs[i];
  }
  return work;
}

}  // namespace

Result<std::vector<PromptWork>> make_workload(const WorkloadConfig& config) {
  Random random(config.seed);
  if (config.dataset != "lengths-file") ATTUNE_RETURN_IF_ERROR(check_drawn_size(config));
  if (config.dataset == "generated-shared-prefix") return draw_shared_prefix(config, random);
  if (config.dataset == "multi-turn") return draw_turns(config, random);
  if (config.dataset != "lengths-file") return draw_random(config, random);
  auto work = read_lengths_file(config, random);
  if (work.ok() || config.path.empty()) return work;
  return work.status().with_context(base::cat("--dataset-path ", config.path));
}

std::vector<TokenId> warmup_prompt(const WorkloadConfig& config, int32_t input_len,
                                   uint64_t index) {
  Random random(~config.seed ^ (index << 32));
  return draw_ids(random, config.token_id_range, input_len);
}

}  // namespace attune::bench
