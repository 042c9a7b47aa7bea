// The tables of filters and tests, spread over units by what they work on.
#pragma once

#include <string_view>
#include <unordered_map>

#include "text/jinja/interpreter.h"

namespace attune::text::jinja {

using Filter = Value (*)(Interpreter&, const Value&, CallArgs&);
using FilterTable = std::unordered_map<std::string_view, Filter>;

const FilterTable& text_filters();      // of strings and numbers
const FilterTable& sequence_filters();  // of lists and dicts

}  // namespace attune::text::jinja
