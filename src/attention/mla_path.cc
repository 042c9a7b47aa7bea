// The rows of docs/selection-rules.md that choose an MLA sequence's path.
#include <algorithm>

#include "attention/route.h"
#include "base/check.h"

namespace attune::attention {

Path mla_path(int32_t new_tokens, int32_t prefix, const MlaPolicy& policy) {
  ATTUNE_CHECK(new_tokens > 0);
  if (policy.one_path) return Path::kAbsorbed;                                             // S12
  if (prefix == 0) return Path::kRagged;                                                   // M1
  if (!policy.chunked_prefix || new_tokens < policy.absorb_below) return Path::kAbsorbed;  // M4
  return int64_t{prefix} + new_tokens > policy.capacity ? Path::kChunked                   // M2
                                                        : Path::kOneShot;                  // M3
}

std::vector<ExtendPart> split_extend(const std::vector<ExtendSeq>& seqs, const MlaPolicy& policy) {
  std::vector<ExtendPart> parts;
  for (Path path : {Path::kRagged, Path::kOneShot, Path::kChunked, Path::kAbsorbed}) {
    int64_t keys = 0;  // of the part that is being filled
    bool open = false;
    for (size_t i = 0; i < seqs.size(); ++i) {
      const ExtendSeq& s = seqs[i];
      if (mla_path(s.new_tokens, s.prefix, policy) != path) continue;
      const int64_t more = int64_t{s.prefix} + s.new_tokens;
      if (!open || (path == Path::kOneShot && keys + more > policy.capacity)) {
        parts.push_back({path, {}});
        keys = 0;
        open = true;
      }
      parts.back().seqs.push_back(static_cast<int32_t>(i));
      keys += more;
    }
  }
  return parts;
}

std::vector<PrefixChunk> chunk_prefixes(const std::vector<int32_t>& prefixes, int64_t capacity) {
  ATTUNE_CHECK(capacity > 0);
  std::vector<PrefixChunk> chunks;
  int64_t room = 0;
  for (size_t s = 0; s < prefixes.size(); ++s) {
    for (int32_t at = 0; at < prefixes[s];) {
      if (room == 0) {
        chunks.emplace_back();
        room = capacity;
      }
      const auto n = static_cast<int32_t>(std::min<int64_t>(room, prefixes[s] - at));
      chunks.back().ranges.push_back({static_cast<int32_t>(s), at, at + n});
      at += n;
      room -= n;
    }
  }
  return chunks;
}

}  // namespace attune::attention
