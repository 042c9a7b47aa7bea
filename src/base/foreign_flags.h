// Flags of other engines, for those who come from them: what a refusal says to use instead.
#pragma once

#include <string_view>

namespace attune::base {

struct ForeignFlag {
  std::string_view names;   // "-c --ctx-size": as other engines spell it, separated by blanks
  std::string_view flag;    // ours, "context-length"; empty: there is none
  std::string_view remark;  // what there is to say beside it
};

// The row that has `spelled` ("--max-model-len"; _ is -), or null.
const ForeignFlag* find_foreign_flag(std::string_view spelled);

}  // namespace attune::base
