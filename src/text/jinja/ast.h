// A parsed template: plain trees, immutable once parsed. Names are numbered once per template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace attune::text::jinja {

using NameId = int32_t;

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using Body = std::vector<Stmt>;

enum class ExprKind : uint8_t {
  kString,  // text, constant
  kInt,     // integer
  kFloat,   // real
  kTrue,
  kFalse,
  kNone,
  kName,    // name, text
  kList,    // children
  kTuple,   // children; as a target: names and namespace attributes
  kDict,    // children: key, value, key, value, ...
  kAttr,    // children[0].text
  kItem,    // children[0][children[1]]
  kSlice,   // children[0][children[1] : children[2] : children[3]], each may be null
  kCall,    // children[0](args)
  kFilter,  // children[0]|text(args); children[0] is null in a filter block
  kTest,    // children[0] is text(args)
  kNot,
  kNegative,
  kPositive,
  kBinary,   // op: + - * / f(//) % p(**)
  kConcat,   // ~ over all children
  kCompare,  // children[0] ops[0] children[1] ops[1] ...
  kAnd,
  kOr,
  kCond,          // children: value, condition, other (may be null)
  kNamespaceRef,  // name.text as a target
};

enum class CompareOp : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

struct CallExprs {
  std::vector<Expr> positional;
  std::vector<std::pair<std::string, Expr>> named;
  ExprPtr star, double_star;
};

struct Expr {
  ExprKind kind;
  int line = 0;
  int depth = 1;  // of the tree below and with this node
  char op = 0;
  NameId name = -1;
  int32_t constant = -1;  // strings: number of this literal in the template
  int64_t integer = 0;
  double real = 0;
  std::string text;
  std::vector<ExprPtr> children;
  std::vector<CompareOp> ops;
  std::unique_ptr<CallExprs> args;  // of calls, filters and tests; null: none written
};

enum class StmtKind : uint8_t {
  kData,         // text
  kPrint,        // exprs
  kIf,           // exprs[i] guards bodies[i]; one body more: else
  kFor,          // target, exprs[0] iterated, exprs[1] filter or null; bodies: loop, else
  kSet,          // target = exprs[0]
  kSetBlock,     // target = bodies[0], through the filters exprs[0] (or null)
  kMacro,        // macro
  kCallBlock,    // exprs[0] (a call) with macro as its caller
  kFilterBlock,  // exprs[0] over bodies[0]
  kWith,         // targets and exprs pairwise; bodies[0]
  kScope,        // bodies[0] in a scope of its own: generation, block
  kBreak,
  kContinue,
};

struct MacroDef {
  std::string name;
  NameId name_id = -1;
  std::vector<std::pair<NameId, std::string>> parameters;
  std::vector<ExprPtr> defaults;  // of the last parameters
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};

struct Stmt {
  StmtKind kind;
  int line = 0;
  bool recursive = false;
  std::string text;
  std::vector<ExprPtr> exprs;
  std::vector<ExprPtr> targets;  // kName, kTuple, kNamespaceRef
  std::vector<Body> bodies;
  std::unique_ptr<MacroDef> macro;
};

struct Template {
  Body body;
  std::vector<std::string> names;  // by NameId
  int32_t string_literals = 0;
};

}  // namespace attune::text::jinja
