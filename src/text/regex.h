// A PCRE2 pattern as the `tokenizers` package's regular expressions mean it.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "attune/status.h"
#include "text/tokenizer.h"

namespace attune::text {

// Thread-safe once compiled. Patterns come from a model's files, so compiling reports what is
// wrong; matching runs over users' text, so it is bounded: a match that needs too much time or
// memory counts as none.
class Regex {
 public:
  // Errors: data_loss with PCRE2's message and the offset; unsupported for what differs from
  // Oniguruma.
  static Result<std::shared_ptr<const Regex>> compile(const std::string& pattern);
  ~Regex();

  // The matching state of one thread.
  class Matcher {
   public:
    explicit Matcher(const Regex& regex);
    ~Matcher();
    // The first match that begins at or after `from`. REQUIRES: valid UTF-8, `from` at a character.
    std::optional<ByteRange> find(std::string_view text, size_t from);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

  const std::string& pattern() const { return pattern_; }

 private:
  friend class Matcher;
  struct Code;
  Regex(std::string pattern, std::unique_ptr<Code> code);
  std::string pattern_;
  std::unique_ptr<Code> code_;
};

// `pattern` with the classes whose meaning differs spelled out. Exposed for tests.
Result<std::string> oniguruma_to_pcre2(const std::string& pattern);

}  // namespace attune::text
