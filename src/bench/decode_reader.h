// Decode attention as what copies stand beside: 64 sequences of 4,096 tokens, GQA 32/8, pages
// of 64.
#pragma once

#include <memory>
#include <string>

#include "bench/attention_timer.h"

namespace attune::bench {

class DecodeReader {
 public:
  // By the backend of that name. Errors: invalid_argument: there is none; unsupported: it does not
  // run here; resource_exhausted.
  static Result<std::unique_ptr<DecodeReader>> create(const std::string& backend,
                                                      device::Device& device);
  // So many calls, and waits for them.
  int run();
  int64_t bytes() const { return timer_->kv_bytes(); }  // that a call reads

 private:
  std::unique_ptr<attention::Backend> backend_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<SharedMemory> memory_;
  std::unique_ptr<AttentionTimer> timer_;
  AttentionChain chain_;
};

}  // namespace attune::bench
