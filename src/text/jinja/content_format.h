// Reads a template's tree for what it expects of the messages.
#pragma once

#include "text/jinja/ast.h"

namespace attune::text::jinja {

// Whether the template loops over a message's content: over .content or ['content'] of anything,
// over a variable set from it, or over a macro's parameter named `content`.
bool loops_over_content(const Template& tmpl);

}  // namespace attune::text::jinja
