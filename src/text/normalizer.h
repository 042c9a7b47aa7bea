// Rewritings of a text before it is cut: the normalisers of tokenizer.json, and the pre-tokenizers
// that change text.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"

namespace attune::text {

// One rewriting. Copyable.
struct Rewrite {
  enum class Kind : uint8_t {
    kNfc,
    kPrepend,       // `to` in front of a text that is not empty
    kReplace,       // each `from` becomes `to`
    kReplaceRegex,  // each match of `regex` becomes `to`
    kMetaspace,    // each space becomes `to`, and `to` goes in front unless the text begins with it
    kSpacePrefix,  // a space in front unless the text begins with one
  };
  // Where kMetaspace puts `to` in front.
  enum class Scheme : uint8_t { kAlways, kFirst, kNever };

  Kind kind = Kind::kNfc;
  std::string from = {};
  std::string to = {};
  std::shared_ptr<const Regex> regex = nullptr;
  Scheme scheme = Scheme::kAlways;
};

// How many times as long the steps can make a text, at most.
double growth(const std::vector<Rewrite>& steps);

// The text after all steps; `text` itself, uncopied, when none changes it, else a view of
// `storage`. at_start: nothing, not even a special token, stands in front. REQUIRES: valid UTF-8.
std::string_view rewrite(const std::vector<Rewrite>& steps, std::string_view text, bool at_start,
                         std::string& storage);

}  // namespace attune::text
