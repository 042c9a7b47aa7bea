// What a client can send: bytes to an HTTP request, a body to a typed request, a typed request to
// prompts. Any input may be refused; none may crash, hang, or leave a value outside its range.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "server/generation_request.h"
#include "server/http_parser.h"
#include "server/prepare.h"
#include "server/testing/fake_engine.h"
#include "text/chat_template.h"

namespace attune::server {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

const Model& model() {
  static testing::FakeEngine engine;
  static const auto chat_template = text::ChatTemplate::compile(
      "{% for m in messages %}{{ '<turn>' + m.role + '\\n' }}{{ m.content }}{{ '<turn>' }}"
      "{% endfor %}{% if add_generation_prompt %}{{ '<turn>assistant\\n' }}{% endif %}",
      {});
  static const Model model = {&engine, testing::byte_tokenizer(), &*chat_template};
  return model;
}

void check_ranges(const Prepared& prepared) {
  require(prepared.spec.n >= 1 && prepared.spec.n <= kMaxChoicesPerPrompt);
  require(!prepared.spec.prompts.empty() && prepared.spec.prompts.size() <= kMaxPrompts);
  for (const PromptSpec& prompt : prepared.spec.prompts) {
    const SamplingParams& s = prompt.sampling;
    require(s.temperature >= 0 && s.top_p > 0 && s.top_p <= 1 && s.min_p >= 0 && s.min_p <= 1);
    require(s.top_k == -1 || s.top_k > 0);
    require(s.repetition_penalty > 0 && s.repetition_penalty <= 2);
    require(s.max_new_tokens >= 0 && s.min_new_tokens >= 0);
    require(s.top_logprobs >= -1 && s.top_logprobs <= kMaxTopLogprobs);
    for (const TokenId id : prompt.ids) require(id >= 0 && id < testing::kVocabulary);
    for (const std::string& stop : prompt.stop) require(!stop.empty());
  }
}

void fuzz_body(Form form, std::string_view body) {
  GenerationRequest request;
  if (auto error = parse_generation(form, body, request)) {
    require(error->status == 400 && !error->message.empty());
    require(formats::parse_json(to_json(*error).dump()).ok());
    return;
  }
  Prepared prepared;
  if (!prepare(model(), 4096, std::move(request), prepared)) check_ranges(prepared);
}

// The same bytes in one piece and in pieces of `step` end in the same state.
void fuzz_http(std::string_view bytes, size_t step) {
  constexpr size_t kMaxHeader = 1024, kMaxBody = 4096;
  const auto run = [&](size_t piece) {
    RequestParser parser(kMaxHeader, kMaxBody);
    auto state = RequestParser::State::kNeedMore;
    std::string in;
    size_t at = 0;
    while (state == RequestParser::State::kNeedMore || state == RequestParser::State::kHead) {
      if (state == RequestParser::State::kNeedMore) {
        if (at == bytes.size()) break;
        const auto next = bytes.substr(at, piece);
        in.append(next);
        at += next.size();
      }
      state = parser.read(in);
    }
    if (state == RequestParser::State::kDone) require(parser.request().body.size() <= kMaxBody);
    if (state == RequestParser::State::kFailed) require(parser.status() >= 400);
    return std::pair(state, parser.request().body);
  };
  const auto whole = run(bytes.size());
  const auto pieces = run(step);
  if (whole.first == RequestParser::State::kDone) require(whole == pieces);
}

}  // namespace
}  // namespace attune::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0:
      attune::server::fuzz_body(attune::server::Form::kChat, rest);
      break;
    case 1:
      attune::server::fuzz_body(attune::server::Form::kCompletion, rest);
      break;
    case 2:
      attune::server::fuzz_body(attune::server::Form::kGenerate, rest);
      break;
    default:
      attune::server::fuzz_http(rest, 1 + data[0] / 4 % 16);
  }
  return 0;
}
