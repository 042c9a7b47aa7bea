// Source text to a Template.
#pragma once

#include <string_view>

#include "attune/status.h"
#include "text/jinja/ast.h"

namespace attune::text::jinja {

// Errors, each with its line: invalid_argument for bad syntax, unsupported for what the language
// has but templates rendered from memory cannot use (include, import, extends), resource_exhausted
// for nesting deeper than kMaxNesting.
Result<Template> parse(std::string_view source);

constexpr int kMaxNesting = 150;    // of statements, and of brackets within an expression
constexpr int kMaxExprDepth = 500;  // of an expression's tree: a + b + c + ... counts every step

// Whether this names a filter or test that the interpreter has.
bool filter_exists(std::string_view name);
bool test_exists(std::string_view name);

}  // namespace attune::text::jinja
