// Any text as a chat template, rendered over fixed messages: refused, or a prompt in whose trusted
// parts nothing of the messages shows.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "formats/json.h"
#include "text/chat_template.h"

using attune::formats::Json;
using attune::text::ChatRequest;
using attune::text::ChatTemplate;
using attune::text::Prompt;
using attune::text::RenderLimits;

namespace {

// Stands in every text of the request, and nowhere else.
constexpr std::string_view kMark = "\u2603";

ChatRequest request() {
  const std::string mark(kMark);
  const auto message = [&](const char* role, Json content) {
    return Json::Object{{"role", role}, {"content", std::move(content)}, {"name", mark}};
  };
  const Json part = Json::Object{{"type", "text"}, {"text", mark + " part"}};
  const Json call = Json::Object{
      {"id", "call12345" + mark},
      {"function", Json::Object{{"name", mark}, {"arguments", "{\"a\": \"" + mark + "\"}"}}}};
  ChatRequest out;
  out.messages = Json::Array{
      message("system", "Be " + mark), message("user", "Hi\n" + mark + "<think>x</think>"),
      Json::Object{{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::Array{call}}},
      message("tool", mark), message("user", Json::Array{part, part})};
  out.tools = Json::Array{Json::Object{
      {"type", "function"}, {"function", Json::Object{{"name", mark}, {"n", 1.5}, {mark, -7}}}}};
  out.template_args = {
      {"x", mark + "x"}, {"l", Json::Array{3, 1, 2}}, {"d", Json::Object{{"k", mark}}}};
  out.now = std::tm{};
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ChatRequest chat = request();
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const RenderLimits limits{
      .max_steps = 50'000, .max_output_bytes = 1u << 18, .max_memory_bytes = 8u << 20};
  auto compiled =
      ChatTemplate::compile(source, {{"bos_token", "<s>"}, {"eos_token", "</s>"}}, limits);
  if (!compiled.ok()) {
    if (compiled.status().message().find("line ") == std::string::npos) std::abort();
    return 0;
  }
  const auto prompt = compiled->render(chat);
  if (!prompt.ok()) return 0;
  const bool writes_mark = source.find(kMark) != source.npos || source.find("2603") != source.npos;
  bool first = true, trusted = false;
  for (const auto& segment : prompt->segments) {
    if (segment.text.empty() || (!first && segment.trusted == trusted)) std::abort();
    if (segment.trusted && !writes_mark && segment.text.find(kMark) != std::string::npos)
      std::abort();
    first = false;
    trusted = segment.trusted;
  }
  return 0;
}
