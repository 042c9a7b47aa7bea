#include "kv/tier/record.h"

#include <bit>
#include <cstring>

#define XXH_INLINE_ALL  // this unit's vector width, not the library's
#include <xxhash.h>

#include "kv/index/page_key.h"

namespace attune::kv {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kMagic = "ATTUNEKV";
constexpr uint32_t kVersion = 1;
constexpr int64_t kFixedBytes = kLeastRecordBytes - kRecordChecksumBytes;

template <typename T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put(std::string& out, const PageKey& key) {
  out.append(reinterpret_cast<const char*>(key.bytes.data()), key.bytes.size());
}

// Everything but the checksum.
std::string header_without_checksum(const PageKey& fingerprint, const PageIdentity& page,
                                    int64_t payload_bytes) {
  std::string out(kMagic);
  out.reserve(static_cast<size_t>(record_header_bytes(page)));
  put(out, kVersion);
  put(out, static_cast<uint32_t>(record_header_bytes(page)));
  put(out, fingerprint);
  put(out, page.key);
  put(out, page.parent);
  put(out, static_cast<uint64_t>(payload_bytes));
  put(out, static_cast<uint32_t>(page.tokens.size()));
  for (TokenId token : page.tokens) put(out, static_cast<int32_t>(token));
  return out;
}

// XXH3-128 (github.com/Cyan4973/xxHash), seed 0, in its canonical (big-endian) form.
std::string checksum(std::string_view header, const PageRuns& payload) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  XXH3_128bits_update(&state, header.data(), header.size());
  for (int32_t run = 0; run < payload.count; ++run)
    XXH3_128bits_update(&state, payload.first + run * payload.stride,
                        static_cast<size_t>(payload.bytes));
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
  static_assert(sizeof canonical.digest == kRecordChecksumBytes);
  return {reinterpret_cast<const char*>(canonical.digest), sizeof canonical.digest};
}

}  // namespace

PageKey record_fingerprint(std::string_view identity) {
  return root_key(identity, "record");
}

int64_t record_header_bytes(const PageIdentity& page) {
  return kFixedBytes + 4 * static_cast<int64_t>(page.tokens.size()) + kRecordChecksumBytes;
}

std::string make_record_header(const PageKey& fingerprint, const PageIdentity& page,
                               const PageRuns& payload) {
  std::string header = header_without_checksum(fingerprint, page, payload.total());
  header += checksum(header, payload);
  return header;
}

bool record_is_right(std::string_view header, const PageKey& fingerprint, const PageIdentity& page,
                     const PageRuns& payload) {
  const std::string wanted = header_without_checksum(fingerprint, page, payload.total());
  if (header.size() != wanted.size() + kRecordChecksumBytes) return false;
  if (header.substr(0, wanted.size()) != wanted) return false;
  return header.substr(wanted.size()) == checksum(wanted, payload);
}

std::optional<RecordHead> read_record_head(std::string_view record) {
  if (!record.starts_with(kMagic) || record.size() < static_cast<size_t>(kFixedBytes))
    return std::nullopt;
  size_t at = kMagic.size();
  const auto take = [&](auto& value) {
    std::memcpy(&value, record.data() + at, sizeof value);
    at += sizeof value;
  };
  RecordHead head;
  uint32_t version = 0, header_bytes = 0, tokens = 0;
  uint64_t payload_bytes = 0;
  take(version);
  take(header_bytes);
  take(head.fingerprint.bytes);
  take(head.page.key.bytes);
  take(head.page.parent.bytes);
  take(payload_bytes);
  take(tokens);
  if (version != kVersion || payload_bytes > static_cast<uint64_t>(INT64_MAX) - record.size() ||
      header_bytes > record.size() ||
      header_bytes != kFixedBytes + 4ull * tokens + kRecordChecksumBytes)
    return std::nullopt;
  head.page.tokens.resize(tokens);
  std::memcpy(head.page.tokens.data(), record.data() + at, 4ull * tokens);
  head.header_bytes = header_bytes;
  head.payload_bytes = static_cast<int64_t>(payload_bytes);
  return head;
}

std::string gather_record(const PageKey& fingerprint, const PageIdentity& page,
                          const PageRuns& payload) {
  std::string record = make_record_header(fingerprint, page, payload);
  record.reserve(record.size() + static_cast<size_t>(payload.total()));
  for (int32_t run = 0; run < payload.count; ++run)
    record.append(payload.first + run * payload.stride, static_cast<size_t>(payload.bytes));
  return record;
}

bool scatter_record(std::string_view record, const PageKey& fingerprint, const PageIdentity& page,
                    const PageRuns& to) {
  const int64_t header = record_header_bytes(page);
  if (static_cast<int64_t>(record.size()) != header + to.total()) return false;
  const char* from = record.data() + header;
  for (int32_t run = 0; run < to.count; ++run, from += to.bytes)
    std::memcpy(to.first + run * to.stride, from, static_cast<size_t>(to.bytes));
  return record_is_right(record.substr(0, static_cast<size_t>(header)), fingerprint, page, to);
}

}  // namespace attune::kv
