#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/log.h"

namespace attune::text {
namespace {

constexpr uint32_t kMatchLimit = 10'000'000;   // steps of one match
constexpr uint32_t kHeapLimitKib = 64 * 1024;  // of one match without JIT
constexpr size_t kJitStackMax = 1 << 20;
constexpr size_t kMaxPattern = 64 * 1024;

// White_Space; PCRE2's own \s takes U+180E too.
constexpr std::string_view kSpaceSet = "\\x{9}-\\x{d}\\x{20}\\x{85}\\p{Z}";
constexpr std::string_view kWordSet = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
constexpr std::string_view kHexSet = "0-9A-Fa-f";

// What stands for the escape \`letter`, or empty when PCRE2 means the same.
std::string spelled_out(char letter, bool in_set) {
  auto wrap = [&](std::string_view set, bool negated) {
    return in_set ? std::string(set) : base::cat(negated ? "[^" : "[", set, "]");
  };
  switch (letter) {
    case 's':
      return wrap(kSpaceSet, false);
    case 'w':
      return wrap(kWordSet, false);
    case 'h':
      return wrap(kHexSet, false);
    // A negated class inside a set cannot be spelled so; PCRE2's own differs in rare characters
    // only.
    case 'S':
      return in_set ? "" : wrap(kSpaceSet, true);
    case 'W':
      return in_set ? "" : wrap(kWordSet, true);
    default:
      return "";
  }
}

}  // namespace

Result<std::string> oniguruma_to_pcre2(const std::string& pattern) {
  std::string out;
  bool in_set = false;
  size_t set_begin = 0;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const char next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (c == '\\' && next != '\0') {
      if (next == 'H') return unsupported(base::cat("regular expression: \\H at offset ", i));
      const std::string spelled = spelled_out(next, in_set);
      out += spelled.empty() ? pattern.substr(i, 2) : spelled;
      ++i;
      continue;
    }
    if (in_set) {
      if (c == '&' && next == '&') {
        return unsupported(base::cat("regular expression: the set operation && at offset ", i));
      }
      const bool posix = c == '[' && next == ':';
      if (posix) {
        const size_t close = pattern.find(":]", i + 2);
        if (close != std::string::npos) {
          out += pattern.substr(i, close + 2 - i);
          i = close + 1;
          continue;
        }
      }
      if (c == '[') {
        return unsupported(base::cat("regular expression: a set inside a set at offset ", i));
      }
      if (c == ']' && i > set_begin) in_set = false;
    } else if (c == '[') {
      in_set = true;
      set_begin = i + 1;
      if (next == '^') {
        out += c;
        ++i;
        ++set_begin;
        out += '^';
        continue;
      }
    }
    out += c;
  }
  return out;
}

struct Regex::Code {
  pcre2_code* code = nullptr;
  bool jit = false;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::string pattern, std::unique_ptr<Code> code)
    : pattern_(std::move(pattern)), code_(std::move(code)) {}
Regex::~Regex() = default;

Result<std::shared_ptr<const Regex>> Regex::compile(const std::string& pattern) {
  if (pattern.size() > kMaxPattern) {
    return data_loss(
        base::cat("regular expression of ", pattern.size(), " bytes; at most ", kMaxPattern));
  }
  ATTUNE_ASSIGN_OR_RETURN(const std::string translated, oniguruma_to_pcre2(pattern));
  auto code = std::make_unique<Code>();
  int error = 0;
  PCRE2_SIZE offset = 0;
  // Oniguruma's ^ and $ are at every line; \C would cut characters.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                             options, &error, &offset, nullptr);
  if (code->code == nullptr) {
    unsigned char message[256] = {};
    pcre2_get_error_message(error, message, sizeof message);
    return data_loss(base::cat("regular expression \"", pattern,
                               "\": ", reinterpret_cast<char*>(message), " at offset ", offset));
  }
  code->jit = pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE) == 0;
  return std::shared_ptr<const Regex>(new Regex(pattern, std::move(code)));
}

struct Regex::Matcher::State {
  const Code* code = nullptr;
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

Regex::Matcher::Matcher(const Regex& regex) : state_(std::make_unique<State>()) {
  state_->code = regex.code_.get();
  state_->data = pcre2_match_data_create_from_pattern(regex.code_->code, nullptr);
  state_->context = pcre2_match_context_create(nullptr);
  if (state_->context == nullptr) return;
  pcre2_set_match_limit(state_->context, kMatchLimit);
  pcre2_set_heap_limit(state_->context, kHeapLimitKib);
  if (regex.code_->jit) {
    state_->stack = pcre2_jit_stack_create(32 * 1024, kJitStackMax, nullptr);
    if (state_->stack != nullptr) pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);
  }
}
Regex::Matcher::~Matcher() = default;

std::optional<ByteRange> Regex::Matcher::find(std::string_view text, size_t from) {
  if (state_->data == nullptr || state_->context == nullptr) return std::nullopt;
  const int rc = pcre2_match(state_->code->code, reinterpret_cast<PCRE2_SPTR>(text.data()),
                             text.size(), from, PCRE2_NO_UTF_CHECK, state_->data, state_->context);
  if (rc < 0) return std::nullopt;
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(state_->data);
  if (ends[1] < ends[0]) return std::nullopt;  // \K in a lookahead
  return ByteRange{ends[0], ends[1]};
}

}  // namespace attune::text
