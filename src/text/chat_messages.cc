#include "text/chat_messages.h"

#include <algorithm>

namespace attune::text {

using formats::Json;

namespace {

constexpr int kMaxJsonDepth = 300;

// None of these can complete a control token that a template does not mean: they are only ever the
// names of turns.
bool usual_role(std::string_view role) {
  constexpr std::string_view kRoles[] = {"system",    "user",    "assistant",   "tool", "function",
                                         "developer", "ipython", "observation", "model"};
  return std::find(std::begin(kRoles), std::end(kRoles), role) != std::end(kRoles);
}

jinja::Value text_value(jinja::Heap& heap, std::string_view text, bool trusted = false) {
  return heap.str(jinja::valid_utf8(text), trusted);
}

jinja::Value convert(jinja::Heap& heap, const Json& json, int depth) {
  heap.meter.step();
  if (depth > kMaxJsonDepth) jinja::fail_limit("the request's JSON is nested more than 300 deep");
  if (json.is_null()) return jinja::Value::none();
  if (json.is_bool()) return jinja::Value::boolean(json.as_bool());
  if (json.is_int()) return jinja::Value::integer(json.as_int());
  if (json.is_number()) return jinja::Value::real(json.as_double());
  if (json.is_string()) return text_value(heap, json.as_string());
  if (json.is_array()) {
    auto* list = heap.make<jinja::List>(heap.meter);
    for (const Json& item : json.as_array()) list->push(convert(heap, item, depth + 1));
    return list;
  }
  auto* dict = heap.make<jinja::Dict>(heap.meter);
  for (const auto& [key, value] : json.as_object())
    dict->set(text_value(heap, key), convert(heap, value, depth + 1));
  return dict;
}

// The texts of content parts, joined as SGLang joins them; parts of other types are not for such a
// template.
std::string joined_parts(const Json::Array& parts) {
  std::string out;
  bool first = true;
  for (const Json& part : parts) {
    const Json *type = part.find("type"), *text = part.find("text");
    if (type == nullptr || !type->is_string() || type->as_string() != "text") continue;
    if (text == nullptr || !text->is_string()) continue;
    if (!first) out += ' ';
    first = false;
    out += text->as_string();
  }
  return out;
}

jinja::Value content_value(jinja::Heap& heap, const Json& content, const MessageStyle& style) {
  if (content.is_null() && style.empty_content) return text_value(heap, "");
  if (content.is_array() && style.content == ContentFormat::kString) {
    return text_value(heap, joined_parts(content.as_array()));
  }
  return convert(heap, content, 0);
}

// JSON text that is an object, or nothing.
std::optional<Json> parsed_arguments(const Json& arguments) {
  if (!arguments.is_string()) return std::nullopt;
  Result<Json> parsed = formats::parse_json(arguments.as_string());
  if (!parsed.ok() || !parsed->is_object()) return std::nullopt;
  return std::move(parsed).value();
}

// A tool call, or its `function` member: the same but for arguments.
jinja::Value tool_call_value(jinja::Heap& heap, const Json& call, int depth) {
  if (!call.is_object()) return convert(heap, call, 0);
  auto* dict = heap.make<jinja::Dict>(heap.meter);
  for (const auto& [key, value] : call.as_object()) {
    jinja::Value shown;
    if (key == "arguments") {
      const std::optional<Json> parsed = parsed_arguments(value);
      shown = convert(heap, parsed ? *parsed : value, 0);
    } else if (key == "function" && depth == 0) {
      shown = tool_call_value(heap, value, 1);
    } else {
      shown = convert(heap, value, 0);
    }
    dict->set(text_value(heap, key), std::move(shown));
  }
  return dict;
}

jinja::Value tool_calls_value(jinja::Heap& heap, const Json& calls, const MessageStyle& style) {
  if (!calls.is_array() || style.text_arguments) return convert(heap, calls, 0);
  auto* list = heap.make<jinja::List>(heap.meter);
  for (const Json& call : calls.as_array()) list->push(tool_call_value(heap, call, 0));
  return list;
}

jinja::Value message_value(jinja::Heap& heap, const Json& message, const MessageStyle& style) {
  auto* dict = heap.make<jinja::Dict>(heap.meter);
  for (const auto& [key, value] : message.as_object()) {
    if (value.is_null() && key != "content") continue;
    jinja::Value shown;
    if (key == "role" && value.is_string()) {
      shown = text_value(heap, value.as_string(), usual_role(value.as_string()));
    } else if (key == "content") {
      shown = content_value(heap, value, style);
    } else if (key == "tool_calls") {
      shown = tool_calls_value(heap, value, style);
    } else {
      shown = convert(heap, value, 0);
    }
    dict->set(text_value(heap, key), std::move(shown));
  }
  if (style.empty_content && dict->find("content") == nullptr) {
    dict->set(text_value(heap, "content"), text_value(heap, ""));
  }
  return dict;
}

bool has_text_arguments(const Json& message) {
  const Json* calls = message.find("tool_calls");
  if (calls == nullptr || !calls->is_array()) return false;
  const auto& list = calls->as_array();
  return std::any_of(list.begin(), list.end(), [](const Json& call) {
    const Json* function = call.find("function");
    const Json* arguments = (function != nullptr ? function : &call)->find("arguments");
    return arguments != nullptr && arguments->is_string();
  });
}

}  // namespace

std::vector<MessageStyle> message_styles(const Json& messages, ContentFormat content) {
  const auto& list = messages.as_array();
  const bool lacks_content = std::any_of(list.begin(), list.end(), [](const Json& message) {
    const Json* found = message.find("content");
    return found == nullptr || found->is_null();
  });
  const bool text_arguments = std::any_of(list.begin(), list.end(), has_text_arguments);
  std::vector<MessageStyle> out;
  for (const bool text : {false, true}) {
    for (const bool empty : {false, true}) {
      if ((text && !text_arguments) || (empty && !lacks_content)) continue;
      out.push_back({content, empty, text});
    }
  }
  return out;
}

jinja::Value to_value(jinja::Heap& heap, const Json& json) {
  return convert(heap, json, 0);
}

jinja::Value messages_value(jinja::Heap& heap, const Json& messages, const MessageStyle& style) {
  auto* list = heap.make<jinja::List>(heap.meter);
  for (const Json& message : messages.as_array()) list->push(message_value(heap, message, style));
  return list;
}

}  // namespace attune::text
