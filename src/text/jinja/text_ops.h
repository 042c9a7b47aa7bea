// Python's string operations on Text; every character keeps its origin. Counts are in characters.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/jinja/text.h"
#include "text/jinja/value.h"

namespace attune::text::jinja {

enum class Side : uint8_t { kBoth, kLeft, kRight };

// Without `chars` (null): white space.
Text strip(const Text& text, const std::string_view* chars, Side side = Side::kBoth);
// At most `count` times from the left; below zero: all. An empty `from` matches between characters.
Text replace(const Text& text, std::string_view from, const Text& to, int64_t count, Meter& meter);
// Without a separator (null): runs of white space. At most `max` cuts, below zero: all.
std::vector<Text> split(const Text& text, const std::string_view* separator, int64_t max);
std::vector<Text> rsplit(const Text& text, const std::string_view* separator, int64_t max);
std::vector<Text> split_lines(const Text& text, bool keep_ends);
Text join(const Text& separator, const std::vector<Text>& parts, Meter& meter);

Text escape_html(const Text& text);
Text upper(const Text& text);
Text lower(const Text& text);
Text swap_case(const Text& text);
Text capitalize(const Text& text);
// str.title(): a capital after every character that has no case. The filter `title`: after white
// space, hyphens and opening brackets.
Text title(const Text& text);
Text title_words(const Text& text);
Text reversed(const Text& text);
// `fill` must be one character.
Text pad(const Text& text, int64_t width, std::string_view fill, Side text_side, Meter& meter);
Text zero_fill(const Text& text, int64_t width, Meter& meter);

bool all_chars(std::string_view text, bool (*predicate)(char32_t));  // false for an empty text
bool is_upper_text(std::string_view text);
bool is_lower_text(std::string_view text);

}  // namespace attune::text::jinja
