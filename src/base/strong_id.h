// Ids of different kinds are different types, so that a logical page can never index a physical
// pool.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace attune::base {

template <typename Tag, typename Rep = int32_t>
struct StrongId {
  using rep = Rep;
  Rep value = Rep(-1);  // -1: none
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep v) : value(v) {}
  constexpr bool valid() const { return value >= 0; }
  constexpr auto operator<=>(const StrongId&) const = default;
};

}  // namespace attune::base

template <typename Tag, typename Rep>
struct std::hash<attune::base::StrongId<Tag, Rep>> {
  size_t operator()(attune::base::StrongId<Tag, Rep> id) const noexcept {
    return std::hash<Rep>()(id.value);
  }
};
