#include "text/chat_template.h"

#include <algorithm>
#include <new>

#include "text/chat_messages.h"
#include "text/jinja/content_format.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"
#include "text/jinja/text_ops.h"
#include "text/tokenizer.h"

namespace attune::text {

using formats::Json;

std::string Prompt::text() const {
  std::string out;
  for (const Segment& segment : segments) out += segment.text;
  return out;
}

struct ChatTemplate::Impl {
  jinja::Template parsed;
  SpecialTokens special_tokens;
  RenderLimits limits;
  ContentFormat format = ContentFormat::kString;
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::compile(std::string_view source, SpecialTokens special_tokens,
                                           RenderLimits limits) {
  Result<jinja::Template> parsed = jinja::parse(source);
  if (!parsed.ok()) return parsed.status().with_context("the chat template does not parse");
  auto impl = std::make_unique<Impl>();
  impl->parsed = std::move(parsed).value();
  impl->special_tokens = std::move(special_tokens);
  impl->limits = limits;
  if (jinja::loops_over_content(impl->parsed)) impl->format = ContentFormat::kParts;
  return ChatTemplate(std::move(impl));
}

ContentFormat ChatTemplate::content_format() const {
  return impl_->format;
}

bool ChatTemplate::mentions(std::string_view variable) const {
  const auto& names = impl_->parsed.names;
  return std::find(names.begin(), names.end(), variable) != names.end();
}

namespace {

constexpr std::string_view kReserved[] = {"messages", "tools", "documents",
                                          "add_generation_prompt"};

Status check_request(const ChatRequest& request) {
  if (!request.messages.is_array()) return invalid_argument("messages must be an array");
  const Json::Array& messages = request.messages.as_array();
  if (messages.empty()) return invalid_argument("messages must not be empty");
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json* role = messages[i].find("role");
    const std::string at = "messages[" + std::to_string(i) + "]";
    if (!messages[i].is_object()) return invalid_argument(at + " must be an object");
    if (role == nullptr || !role->is_string())
      return invalid_argument(at + ".role must be a string");
  }
  for (const auto& [name, list] :
       {std::pair{"tools", &request.tools}, std::pair{"documents", &request.documents}}) {
    if (!list->is_null() && !list->is_array())
      return invalid_argument(std::string(name) + " must be an array");
  }
  for (const auto& [name, value] : request.template_args) {
    if (std::find(std::begin(kReserved), std::end(kReserved), name) != std::end(kReserved)) {
      return invalid_argument("chat_template_kwargs must not set '" + name +
                              "': it is a field of the request");
    }
  }
  if (request.continue_final_message && request.add_generation_prompt) {
    return invalid_argument("continue_final_message and add_generation_prompt exclude each other");
  }
  return {};
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm out{};
  localtime_r(&now, &out);
  return out;
}

// Runs the template once, with the messages prepared as `style` says.
jinja::Text run(const jinja::Template& parsed, const SpecialTokens& special_tokens,
                const RenderLimits& limits, const ChatRequest& request, const MessageStyle& style) {
  jinja::Meter meter(limits.max_steps, limits.max_memory_bytes);
  jinja::Heap heap(meter);
  const jinja::Environment environment{request.now ? *request.now : local_time(),
                                       limits.max_output_bytes};
  jinja::Interpreter interpreter(parsed, heap, environment);
  const auto define = [&](std::string_view name, const Json& value) {
    if (interpreter.names(name)) interpreter.define(name, to_value(heap, value));
  };
  try {
    for (const auto& [name, text] : special_tokens) {
      interpreter.define(name, heap.str(jinja::valid_utf8(text), true));
    }
    for (const auto& [name, value] : request.template_args) define(name, value);
    define("tools", request.tools);
    define("documents", request.documents);
    interpreter.define("add_generation_prompt",
                       jinja::Value::boolean(request.add_generation_prompt));
    if (interpreter.names("messages"))
      interpreter.define("messages", messages_value(heap, request.messages, style));
    return interpreter.render();
  } catch (jinja::RenderError& e) {
    if (e.line == 0) e.line = interpreter.line();
    throw;
  }
}

Status status_of(const jinja::RenderError& e) {
  if (e.raised) return invalid_argument(e.message);
  return Status(e.code, "chat template, line " + std::to_string(e.line) + ": " + e.message);
}

// Where the content of the last message ends, as transformers finds it: white space around it may
// have been trimmed.
Result<size_t> end_of_final_message(std::string_view rendered, const Json& messages) {
  const Json* content = messages.as_array().back().find("content");
  if (content != nullptr && content->is_array()) {
    const Json::Array& parts = content->as_array();
    const auto text = std::find_if(parts.rbegin(), parts.rend(),
                                   [](const Json& part) { return part.find("text") != nullptr; });
    content = text == parts.rend() ? nullptr : text->find("text");
  }
  if (content == nullptr || !content->is_string()) {
    return invalid_argument("continue_final_message: the last message has no text to continue");
  }
  const jinja::Text whole(jinja::valid_utf8(content->as_string()), false);
  const jinja::Text from = jinja::strip(whole, nullptr, jinja::Side::kLeft);
  const jinja::Text core = jinja::strip(whole, nullptr);
  if (core.empty()) return invalid_argument("continue_final_message: the last message is empty");
  const size_t at = rendered.rfind(core.view());
  if (at == std::string_view::npos) {
    return invalid_argument(
        "continue_final_message: the template does not write the last message as it is");
  }
  return at + (rendered.substr(at, from.size()) == from.view() ? from.size() : core.size());
}

Prompt to_prompt(const jinja::Text& text) {
  Prompt out;
  text.for_each_run(0, text.size(), [&](size_t begin, size_t end, bool trusted) {
    out.segments.push_back({std::string(text.view().substr(begin, end - begin)), trusted});
  });
  return out;
}

}  // namespace

Result<Prompt> ChatTemplate::render(const ChatRequest& request) const {
  ATTUNE_RETURN_IF_ERROR(check_request(request));
  std::optional<Status> first_error;
  try {
    for (const MessageStyle& style : message_styles(request.messages, impl_->format)) {
      try {
        jinja::Text text = run(impl_->parsed, impl_->special_tokens, impl_->limits, request, style);
        if (request.continue_final_message) {
          ATTUNE_ASSIGN_OR_RETURN(const size_t end,
                                  end_of_final_message(text.view(), request.messages));
          text = text.slice(0, end);
        }
        return to_prompt(text);
      } catch (const jinja::RenderError& e) {
        if (!first_error) first_error = status_of(e);
        if (e.code == Code::kResourceExhausted) break;
      }
    }
  } catch (const std::bad_alloc&) {
    return resource_exhausted("not enough memory to render the chat template");
  }
  return *first_error;
}

std::vector<TokenId> encode_prompt(const Tokenizer& tokenizer, std::span<const Segment> segments,
                                   size_t max_tokens) {
  std::string text;
  std::vector<ByteRange> literal;
  for (const Segment& segment : segments) {
    if (!segment.trusted) literal.push_back({text.size(), text.size() + segment.text.size()});
    text += segment.text;
  }
  const EncodeOptions options{
      .parse_special = true, .add_special_tokens = false, .max_tokens = max_tokens};
  return tokenizer.encode(text, options, literal);
}

}  // namespace attune::text
