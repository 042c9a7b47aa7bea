// Text that remembers which of its bytes the template wrote. UTF-8 throughout, always valid;
// positions and lengths are in bytes unless a name says `chars`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace attune::text::jinja {

class Text {
 public:
  Text() = default;
  Text(std::string bytes, bool trusted) : bytes_(std::move(bytes)), first_trusted_(trusted) {}

  const std::string& bytes() const { return bytes_; }
  std::string_view view() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  bool uniform() const { return flips_.empty(); }

  void append(std::string_view bytes, bool trusted);
  void append(const Text& other) { append(other, 0, other.size()); }
  void append(const Text& other, size_t begin,
              size_t end);  // REQUIRES: begin <= end <= other.size()
  Text slice(size_t begin, size_t end) const;
  // Takes over the bytes of `other` as well as its origin when this is still empty.
  void append(Text&& other);

  // Calls visit(begin, end, trusted) for every stretch of one origin, in order.
  template <typename Visit>
  void for_each_run(size_t begin, size_t end, Visit visit) const;
  bool trusted_at(size_t byte) const;
  size_t memory() const { return bytes_.capacity() + flips_.capacity() * sizeof(size_t); }

 private:
  std::string bytes_;
  bool first_trusted_ = false;
  std::vector<size_t> flips_;  // ascending, inside (0, size): where the origin changes
  bool last_trusted() const { return first_trusted_ != (flips_.size() % 2 == 1); }
};

template <typename Visit>
void Text::for_each_run(size_t begin, size_t end, Visit visit) const {
  bool trusted = first_trusted_;
  size_t at = 0;
  for (size_t i = 0; i <= flips_.size() && at < end; ++i) {
    const size_t stop = i < flips_.size() ? flips_[i] : bytes_.size();
    const size_t from = at > begin ? at : begin;
    const size_t to = stop < end ? stop : end;
    if (from < to) visit(from, to, trusted);
    at = stop;
    trusted = !trusted;
  }
}

// The code point at `pos`, which moves past it. Bytes that are no UTF-8 give U+FFFD and one byte.
char32_t next_char(std::string_view text, size_t& pos);
void append_char(std::string& out, char32_t c);
size_t count_chars(std::string_view text);
// The byte at which character `index` starts; text.size() when there are fewer.
size_t byte_of_char(std::string_view text, size_t index);
// The start of the character that ends at `pos`. REQUIRES: pos > 0
size_t previous_char(std::string_view text, size_t pos);
// The text with every invalid byte replaced by U+FFFD.
std::string valid_utf8(std::string_view text);

// As Python's str methods see a code point (Unicode 14 and later agree on all that templates use).
bool is_space(char32_t c);
bool is_line_break(char32_t c);
bool is_upper(char32_t c);
bool is_lower(char32_t c);
inline bool is_cased(char32_t c) {
  return is_upper(c) || is_lower(c);
}
bool is_word(
    char32_t c);  // letters, digits, underscore; every code point above U+00FF that isn't space
std::string to_upper(char32_t c);
std::string to_lower(char32_t c);

}  // namespace attune::text::jinja
