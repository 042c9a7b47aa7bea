// Case mappings beyond ASCII, each table ascending by code point.
#pragma once

#include <cstddef>
#include <cstdint>

namespace attune::text::jinja {

struct CaseRange {  // every `stride`-th code point of [first, last] maps to itself + delta
  uint32_t first, last;
  int32_t delta;
  uint32_t stride;
};
struct LongCase {  // maps to more than one code point
  uint32_t from;
  const char* to;
};

extern const CaseRange kUpperRanges[];
extern const size_t kUpperRangeCount;
extern const CaseRange kLowerRanges[];
extern const size_t kLowerRangeCount;
extern const LongCase kLongUpper[];
extern const size_t kLongUpperCount;

}  // namespace attune::text::jinja
