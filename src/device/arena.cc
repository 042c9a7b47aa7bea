#include "device/arena.h"

#include "base/log.h"

namespace attune::device {

Result<Arena> Arena::create(Device& device, int64_t budget, std::string what) {
  if (budget <= 0)
    return invalid_argument(base::cat(what, ": a budget of ", budget, " bytes: give more than 0"));
  ATTUNE_ASSIGN_OR_RETURN(Buffer memory, device.allocate(budget, what));
  return Arena(std::move(memory), std::move(what));
}

Result<void*> Arena::take(int64_t bytes, const std::string& what) {
  if (bytes < 0) return invalid_argument(base::cat(what, ": ", bytes, " bytes of memory"));
  if (bytes == 0) return static_cast<void*>(nullptr);
  if (bytes > left())
    return resource_exhausted(
        base::cat(what, " needs ", bytes, " bytes of ", what_, ", which holds ", describe()));
  void* piece = memory_.as<char>() + used_;
  pieces_.push_back({what, bytes});
  const int64_t padded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  used_ = padded < left() ? used_ + padded : budget();
  return piece;
}

std::string Arena::describe() const {
  std::string text;
  for (const Piece& piece : pieces_)
    text += base::cat(text.empty() ? "" : ", ", piece.what, " ", piece.bytes, " bytes");
  return base::cat(text.empty() ? "nothing" : text, "; ", left(), " of ", budget(),
                   " bytes are left");
}

}  // namespace attune::device
