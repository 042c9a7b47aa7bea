#include "base/foreign_flags.h"

#include <algorithm>
#include <string>

namespace attune::base {
namespace {

constexpr std::string_view kOneDevice =
    "a model runs on a single device: there is no parallelism over several";
constexpr std::string_view kNoHub =
    "nothing is downloaded from a hub: fetch the files first, and give their folder as --model";

// clang-format off
constexpr ForeignFlag kForeignFlags[] = {
    {"-m", "model", ""},
    {"-a --alias", "served-model-name", ""},
    {"-hf --hf-repo -hfr --hf-file --download-dir --revision", "", kNoHub},
    {"-c --ctx-size --n-ctx --max-model-len --max-seq-len", "context-length", ""},
    {"-t -tb --threads-batch", "threads", ""},
    {"--gpu-memory-utilization", "mem-fraction-static", ""},
    {"-np --parallel --max-num-seqs", "max-running-requests", ""},
    {"-b -ub --batch-size --ubatch-size", "chunked-prefill-size", ""},
    {"--max-num-batched-tokens", "max-prefill-tokens", ""},
    {"--enable-chunked-prefill", "chunked-prefill-size", "it is on by default; -1 turns it off"},
    {"--enable-prefix-caching", "disable-radix-cache", "prefixes are kept unless this is given"},
    {"--block-size", "page-size", ""},
    {"-ctk -ctv --cache-type-k --cache-type-v", "kv-cache-dtype", "keys and values have one type"},
    {"--tp --tp-size --tensor-parallel-size --pp --pp-size --pipeline-parallel-size --dp --dp-size --data-parallel-size --ep --ep-size --enable-expert-parallel", "", kOneDevice},
    {"-ngl --gpu-layers --n-gpu-layers", "", "a model runs whole on one device (--device)"},
    {"-q --quantization", "", "weights are used as the file has them: give a quantised GGUF file"},
    {"--trust-remote-code", "", "no code of a model's is ever run: leave it out"},
    {"--disable-log-requests", "log-requests", "requests are not logged unless this is given"},
    {"-v --verbose", "log-level", "--log-level debug tells most"},
    {"-p", "prompt", ""},
    {"-f --file", "prompt-file", ""},
    {"-n --predict --n-predict --max-tokens", "max-new-tokens", ""},
    {"-s", "seed", ""},
};
// clang-format on

}  // namespace

const ForeignFlag* find_foreign_flag(std::string_view spelled) {
  std::string wanted(spelled);
  std::replace(wanted.begin(), wanted.end(), '_', '-');
  if (wanted.empty() || wanted.find(' ') != std::string::npos) return nullptr;
  const std::string padded = " " + wanted + " ";
  for (const ForeignFlag& row : kForeignFlags) {
    if ((" " + std::string(row.names) + " ").find(padded) != std::string::npos) return &row;
  }
  return nullptr;
}

}  // namespace attune::base
