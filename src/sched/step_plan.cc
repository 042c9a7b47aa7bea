// The JSON line of a StepPlan. One list of fields per struct serves the writer and the reader, so
// they cannot drift apart. The reader takes what the writer makes: every field, in order, no
// spaces.
#include "sched/step_plan.h"

#include <charconv>
#include <concepts>
#include <type_traits>

namespace attune::sched {
namespace {

template <typename T, typename Struct>
concept Is = std::same_as<std::remove_const_t<T>, Struct>;
template <typename T>
concept Record = Is<T, SamplingParams> || Is<T, kv::PageCopy> || Is<T, Admission> ||
    Is<T, StepRow> || Is<T, StepPlan>;
template <typename T>
concept Number = std::is_arithmetic_v<T> && !std::same_as<T, bool>;

template <typename Io, typename P>
void fields(Io& io, P& p) requires std::same_as<std::remove_const_t<P>, SamplingParams> {
  io.field("temperature", p.temperature);
  io.field("top_p", p.top_p);
  io.field("top_k", p.top_k);
  io.field("min_p", p.min_p);
  io.field("repetition_penalty", p.repetition_penalty);
  io.field("presence_penalty", p.presence_penalty);
  io.field("frequency_penalty", p.frequency_penalty);
  io.field("logit_bias", p.logit_bias);
  io.field("seed", p.seed);
  io.field("max_new_tokens", p.max_new_tokens);
  io.field("min_new_tokens", p.min_new_tokens);
  io.field("ignore_eos", p.ignore_eos);
  io.field("stop_token_ids", p.stop_token_ids);
  io.field("top_logprobs", p.top_logprobs);
  io.field("prompt_logprob_start", p.prompt_logprob_start);
}

template <typename Io, typename A>
void fields(Io& io, A& a) requires std::same_as<std::remove_const_t<A>, Admission> {
  io.field("request", a.request);
  io.field("place", a.place);
  io.field("sampling", a.sampling);
  io.field("history", a.history);
  io.field("prompt_tokens", a.prompt_tokens);
}

template <typename Io, typename R>
void fields(Io& io, R& r) requires std::same_as<std::remove_const_t<R>, StepRow> {
  io.field("request", r.request);
  io.field("place", r.place);
  io.field("kind", r.kind);
  io.field("start", r.start);
  io.field("num_tokens", r.num_tokens);
  io.field("tokens", r.tokens);
  io.field("pages", r.pages);
  io.field("sample", r.sample);
  io.field("prompt_logprob_start", r.prompt_logprob_start);
  io.field("next_token", r.next_token);
}

template <typename Io, typename S>
void fields(Io& io, S& s) requires std::same_as<std::remove_const_t<S>, StepPlan> {
  io.field("id", s.id);
  io.field("num_tokens", s.num_tokens);
  io.field("admissions", s.admissions);
  io.field("loads", s.loads);
  io.field("rows", s.rows);
}

template <typename Io, typename C>
void fields(Io& io, C& c) requires std::same_as<std::remove_const_t<C>, kv::PageCopy> {
  io.field("host", c.host);
  io.field("device", c.device);
}

class Writer {
 public:
  template <typename T>
  void field(std::string_view name, const T& value) {
    if (out_.back() != '{') out_ += ',';
    out_.append(1, '"').append(name).append("\":");
    put(value);
  }
  template <Record T>
  void put(const T& value) {
    out_ += '{';
    fields(*this, value);
    out_ += '}';
  }
  template <Number T>
  void put(T value) {  // the shortest digits that give the same number again
    char buffer[32];
    out_.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
  }
  void put(bool value) { out_ += value ? "true" : "false"; }
  void put(RowKind kind) { out_ += kind == RowKind::kPrefill ? "\"prefill\"" : "\"decode\""; }
  template <typename Tag>
  void put(base::StrongId<Tag> id) {
    put(id.value);
  }
  void put(const std::optional<uint64_t>& value) {
    if (value) return put(*value);
    out_ += "null";
  }
  void put(const std::pair<TokenId, float>& p) {
    out_ += '[';
    put(p.first);
    out_ += ',';
    put(p.second);
    out_ += ']';
  }
  template <typename T>
  void put(const std::vector<T>& list) {
    out_ += '[';
    for (const T& item : list) {
      if (&item != list.data()) out_ += ',';
      put(item);
    }
    out_ += ']';
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

// After the first mistake everything is a no-op.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  template <typename T>
  void field(std::string_view name, T& value) {
    if (!error_.empty()) return;
    if (text_[at_ - 1] != '{') expect(",");
    expect("\"");
    expect(name);
    expect("\":");
    if (error_.empty()) get(value);
    if (!error_.empty() && !named_) error_ = std::string(name) + ": " + error_, named_ = true;
  }
  template <Record T>
  void get(T& value) {
    expect("{");
    fields(*this, value);
    expect("}");
  }
  template <Number T>
  void get(T& value) {
    const char* begin = text_.data() + at_;
    const auto [end, code] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (code != std::errc()) return fail("expected a number of its range");
    at_ += static_cast<size_t>(end - begin);
  }
  void get(bool& value) {
    value = accept("true");
    if (!value) expect("false");
  }
  void get(RowKind& kind) {
    kind = accept("\"prefill\"") ? RowKind::kPrefill : RowKind::kDecode;
    if (kind == RowKind::kDecode) expect("\"decode\"");
  }
  template <typename Tag>
  void get(base::StrongId<Tag>& id) {
    get(id.value);
  }
  void get(std::optional<uint64_t>& value) {
    if (accept("null")) return value.reset();
    get(value.emplace());
  }
  void get(std::pair<TokenId, float>& p) {
    expect("[");
    get(p.first);
    expect(",");
    get(p.second);
    expect("]");
  }
  template <typename T>
  void get(std::vector<T>& list) {
    list.clear();
    expect("[");
    if (accept("]")) return;
    do get(list.emplace_back());
    while (error_.empty() && accept(","));
    expect("]");
  }
  Status end() {
    if (error_.empty() && at_ != text_.size()) fail("expected the end");
    return error_.empty() ? Status() : invalid_argument("step plan: " + error_);
  }

 private:
  bool accept(std::string_view word) {
    if (!error_.empty() || !text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  void expect(std::string_view word) {
    if (error_.empty() && !accept(word)) fail("expected '" + std::string(word) + "'");
  }
  void fail(const std::string& what) {
    if (error_.empty()) error_ = what + " at offset " + std::to_string(at_);
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string error_;
  bool named_ = false;  // the error has its field's name
};

}  // namespace

std::string StepPlan::to_json() const {
  Writer writer;
  writer.put(*this);
  return writer.take();
}

Result<StepPlan> parse_step_plan(std::string_view json_line) {
  Reader reader(json_line);
  StepPlan plan;
  reader.get(plan);
  ATTUNE_RETURN_IF_ERROR(reader.end());
  return plan;
}

}  // namespace attune::sched
