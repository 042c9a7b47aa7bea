// A page as storage keeps it: a header that says what it is, then the payload. Little-endian.
//
//   0 magic "ATTUNEKV" | 8 version u32 | 12 header bytes u32 | 16 fingerprint [32] | 48 key [32]
//   80 parent's key [32] | 112 payload bytes u64 | 120 tokens u32 | 124 token ids i32 [tokens]
//   then XXH3-128 [16] over all of the header before it, and the payload
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kv/layout/host_layout.h"
#include "kv/layout/page_key.h"

namespace attune::kv {

inline constexpr int64_t kRecordChecksumBytes = 16;
inline constexpr int64_t kLeastRecordBytes = 124 + kRecordChecksumBytes;  // of no tokens
// What a record takes beside its payload, where its tokens are not known yet: up to 900 of them.
inline constexpr int64_t kRecordOverhead = 4096;

// Stands for the identity string of TierConfig in every record.
PageKey record_fingerprint(std::string_view identity);

int64_t record_header_bytes(const PageIdentity& page);

// The whole header of a record with this payload; reads the payload for the checksum.
std::string make_record_header(const PageKey& fingerprint, const PageIdentity& page,
                               const PageRuns& payload);

// `header`, as read from storage, is the one that the page asked for must have, byte by byte, and
// the payload read beside it is what it was made for.
bool record_is_right(std::string_view header, const PageKey& fingerprint, const PageIdentity& page,
                     const PageRuns& payload);

// What a record says of itself: its form is right, its checksum not looked at.
struct RecordHead {
  PageKey fingerprint;
  PageIdentity page;
  int64_t header_bytes = 0, payload_bytes = 0;
};
// From a record's first bytes, of which the longest head takes kLargestRecordHead; nothing: it is
// none of this version.
inline constexpr int64_t kLargestRecordHead = 1 << 16;
std::optional<RecordHead> read_record_head(std::string_view record);

// Header and payload as one string, and back into runs; false: not this page's, or damaged.
std::string gather_record(const PageKey& fingerprint, const PageIdentity& page,
                          const PageRuns& payload);
bool scatter_record(std::string_view record, const PageKey& fingerprint, const PageIdentity& page,
                    const PageRuns& to);

}  // namespace attune::kv
