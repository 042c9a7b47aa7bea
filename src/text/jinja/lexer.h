// A template's text as tokens, with the whitespace control that transformers sets: trim_blocks and
// lstrip_blocks are on, one trailing newline is dropped, \r\n and \r read as \n.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace attune::text::jinja {

enum class Tok : uint8_t {
  kData,
  kPrintBegin,
  kPrintEnd,
  kTagBegin,
  kTagEnd,
  kName,
  kString,
  kInt,
  kFloat,
  kOp,
  kEnd
};

struct Token {
  Tok kind;
  int line;
  std::string text;  // data, name, unescaped string, operator
  int64_t integer = 0;
  double real = 0;
};

// Throws RenderError with the line.
std::vector<Token> tokenize(std::string_view source);
// "name 'x'", "end of print statement": for messages.
std::string describe(const Token& token);

}  // namespace attune::text::jinja
