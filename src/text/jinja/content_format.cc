#include "text/jinja/content_format.h"

#include <set>
#include <string>

namespace attune::text::jinja {

namespace {

class Finder {
 public:
  bool run(const Body& body) {
    for (const Stmt& stmt : body) {
      if (stmt.kind == StmtKind::kSet && stmt.targets[0]->kind == ExprKind::kName &&
          is_content(*stmt.exprs[0])) {
        aliases_.insert(stmt.targets[0]->name);
      }
      if (stmt.macro) {
        for (const auto& [id, name] : stmt.macro->parameters) {
          if (name == "content") aliases_.insert(id);
        }
      }
      if (stmt.kind == StmtKind::kFor && is_content(*stmt.exprs[0])) return true;
      for (const Body& inner : stmt.bodies) {
        if (run(inner)) return true;
      }
    }
    return false;
  }

 private:
  bool is_content(const Expr& e) const {
    switch (e.kind) {
      case ExprKind::kName:
        return aliases_.contains(e.name);
      case ExprKind::kAttr:
        return e.text == "content";
      case ExprKind::kItem:
        return e.children[1]->kind == ExprKind::kString && e.children[1]->text == "content";
      case ExprKind::kSlice:
        return is_content(*e.children[0]);
      case ExprKind::kFilter: {
        constexpr const char* kKeep[] = {"selectattr", "rejectattr", "select",
                                         "reject",     "list",       "reverse"};
        for (const char* keeps_parts : kKeep) {
          if (e.text == keeps_parts && e.children[0]) return is_content(*e.children[0]);
        }
        return false;
      }
      case ExprKind::kCall: {  // message.get('content')
        const Expr& callee = *e.children[0];
        return callee.kind == ExprKind::kAttr && callee.text == "get" &&
               !e.args->positional.empty() && e.args->positional[0].text == "content";
      }
      case ExprKind::kCond:
        return is_content(*e.children[0]) || (e.children[2] && is_content(*e.children[2]));
      default:
        return false;
    }
  }

  std::set<NameId> aliases_;
};

}  // namespace

bool loops_over_content(const Template& tmpl) {
  return Finder().run(tmpl.body);
}

}  // namespace attune::text::jinja
