// A request's JSON as the values that a template sees.
#pragma once

#include <vector>

#include "formats/json.h"
#include "text/chat_template.h"
#include "text/jinja/value.h"

namespace attune::text {

// Templates disagree on what clients may send; these are the ways to put it.
struct MessageStyle {
  ContentFormat content = ContentFormat::kString;
  bool empty_content = false;   // a null or absent content becomes ""
  bool text_arguments = false;  // tool_calls' arguments stay JSON text
};

// The styles in which these messages differ, the preferred one first.
std::vector<MessageStyle> message_styles(const formats::Json& messages, ContentFormat content);

// Every string in it counts as the request's. Throws jinja::RenderError beyond the heap's limits.
jinja::Value to_value(jinja::Heap& heap, const formats::Json& json);

// REQUIRES: an array of objects. Members that are null are left out (but for content, see above).
// The usual roles count as written by the template: some templates build control tokens around
// them.
jinja::Value messages_value(jinja::Heap& heap, const formats::Json& messages,
                            const MessageStyle& style);

}  // namespace attune::text
