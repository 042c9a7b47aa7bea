// Statements; expressions are in eval.cc.
#include "text/jinja/interpreter.h"

#include "text/jinja/interpreter_impl.h"
#include "text/jinja/objects.h"

namespace attune::text::jinja {

Interpreter::Interpreter(const Template& tmpl, Heap& h, const Environment& environment)
    : heap(h),
      meter(h.meter),
      template_(tmpl),
      environment_(environment),
      literals_(static_cast<size_t>(tmpl.string_literals)) {
  root_ = new_scope(nullptr);
  root_->captured = true;
  for (size_t id = 0; id < tmpl.names.size(); ++id) {
    Value function = global_function(heap, tmpl.names[id]);
    if (!function.missing()) root_->set(static_cast<NameId>(id), std::move(function));
  }
  loop_name_ = id_of("loop");
  varargs_name_ = id_of("varargs");
  kwargs_name_ = id_of("kwargs");
  caller_name_ = id_of("caller");
}

NameId Interpreter::id_of(std::string_view name) const {
  for (size_t id = 0; id < template_.names.size(); ++id) {
    if (template_.names[id] == name) return static_cast<NameId>(id);
  }
  return -1;
}

void Interpreter::define(std::string_view name, Value value) {
  if (const NameId id = id_of(name); id >= 0) root_->set(id, std::move(value));
}

Text Interpreter::render() {
  return capture(template_.body, root_);
}

Value Interpreter::list(std::vector<Value> items, ListKind kind) {
  List* out = heap.make<List>(meter, kind);
  meter.take(items.size() * sizeof(Value));
  out->items = std::move(items);
  return out;
}

Scope* Interpreter::new_scope(Scope* parent) {
  Scope* scope;
  if (free_scopes_.empty()) {
    meter.take(sizeof(Scope));
    scope = &scopes_.emplace_back();
  } else {
    scope = free_scopes_.back();
    free_scopes_.pop_back();
  }
  scope->parent = parent;
  return scope;
}

void Interpreter::release(Scope* scope) {
  if (scope->captured) return;
  scope->names.clear();
  free_scopes_.push_back(scope);
}

void Interpreter::count_written(size_t bytes) {
  written_ += bytes;
  if (written_ > environment_.max_output_bytes) {
    fail_limit("the template writes more than " + std::to_string(environment_.max_output_bytes) +
               " bytes");
  }
  meter.step(bytes / 64);
}

void Interpreter::write(const Text& text) {
  count_written(text.size());
  out_->append(text);
}

// What `body` writes, as text. Everything captured counts as written, also when it is thrown away.
Text Interpreter::capture(const Body& body, Scope* scope) {
  Text captured;
  Text* const outer = std::exchange(out_, &captured);
  run(body, scope);
  out_ = outer;
  return captured;
}

Interpreter::Flow Interpreter::run(const Body& body, Scope* scope) {
  const Depth depth(*this);
  for (const Stmt& stmt : body) {
    if (const Flow flow = run(stmt, scope); flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run(const Stmt& stmt, Scope* scope) {
  meter.step();
  line_ = stmt.line;
  switch (stmt.kind) {
    case StmtKind::kData:
      count_written(stmt.text.size());
      out_->append(stmt.text, true);
      break;
    case StmtKind::kPrint:
      print(stmt, scope);
      break;
    case StmtKind::kIf:
      return run_if(stmt, scope);
    case StmtKind::kFor:
      return run_for(stmt, scope, eval(*stmt.exprs[0], scope), 0);
    case StmtKind::kSet:
      assign(*stmt.targets[0], eval(*stmt.exprs[0], scope), scope);
      break;
    case StmtKind::kSetBlock:
      run_set_block(stmt, scope);
      break;
    case StmtKind::kMacro:
      scope->set(stmt.macro->name_id, make_macro(stmt, scope));
      break;
    case StmtKind::kCallBlock:
      run_call_block(stmt, scope);
      break;
    case StmtKind::kFilterBlock:
      run_filter_block(stmt, scope);
      break;
    case StmtKind::kWith:
      return run_with(stmt, scope);
    case StmtKind::kScope: {
      const ScopeLease inner(*this, scope);
      return run(stmt.bodies[0], inner.scope);
    }
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

void Interpreter::print(const Stmt& stmt, Scope* scope) {
  for (const ExprPtr& e : stmt.exprs) {
    const Value value = eval(*e, scope);
    if (value.is_string()) {
      write(value.text());
    } else {
      write(text_of(value));
    }
  }
}

Interpreter::Flow Interpreter::run_if(const Stmt& stmt, Scope* scope) {
  for (size_t i = 0; i < stmt.exprs.size(); ++i) {
    if (truthy(eval(*stmt.exprs[i], scope))) return run(stmt.bodies[i], scope);
  }
  if (stmt.bodies.size() > stmt.exprs.size()) return run(stmt.bodies.back(), scope);
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_for(const Stmt& stmt, Scope* scope, const Value& iterable,
                                       int depth) {
  const bool live = iterable.is(Type::kList) && iterable.list()->kind == ListKind::kList;
  List* source = live ? iterable.list() : list(iterate(heap, iterable)).list();
  auto* loop = heap.make<LoopObject>(stmt, scope, source, depth);
  if (stmt.recursive) capture_scopes(scope);
  Value item;
  bool any = false;
  while (loop->advance(*this, item)) {
    meter.step();
    any = true;
    const ScopeLease inner(*this, scope);
    if (loop_name_ >= 0) inner.scope->set(loop_name_, loop);
    assign(*stmt.targets[0], item, inner.scope);
    if (run(stmt.bodies[0], inner.scope) == Flow::kBreak) break;
  }
  if (any) return Flow::kNormal;
  const ScopeLease inner(*this, scope);
  return run(stmt.bodies[1], inner.scope);
}

// The next item that passes the loop's own `if`, straight from the source.
bool Interpreter::loop_next(LoopObject& loop, Value& out) {
  const Expr* filter = loop.stmt.exprs[1].get();
  while (loop.next < loop.source->size()) {
    out = loop.source->items[loop.next++];
    if (filter == nullptr) return true;
    meter.step();
    const ScopeLease inner(*this, loop.scope);
    assign(*loop.stmt.targets[0], out, inner.scope);
    if (truthy(eval(*filter, inner.scope))) return true;
  }
  return false;
}

Value Interpreter::recurse(const LoopObject& loop, const Value& iterable) {
  if (!loop.stmt.recursive) {
    fail("The loop must have the 'recursive' marker to be called recursively.");
  }
  const Depth depth(*this);
  Text captured;
  Text* const outer = std::exchange(out_, &captured);
  run_for(loop.stmt, loop.scope, iterable, loop.depth + 1);
  out_ = outer;
  return str(std::move(captured));
}

Interpreter::Flow Interpreter::run_with(const Stmt& stmt, Scope* scope) {
  std::vector<Value> values;
  for (const ExprPtr& e : stmt.exprs) values.push_back(eval(*e, scope));
  const ScopeLease inner(*this, scope);
  for (size_t i = 0; i < values.size(); ++i) assign(*stmt.targets[i], values[i], inner.scope);
  return run(stmt.bodies[0], inner.scope);
}

void Interpreter::run_set_block(const Stmt& stmt, Scope* scope) {
  Value value;
  {
    const ScopeLease inner(*this, scope);
    value = str(capture(stmt.bodies[0], inner.scope));
    if (stmt.exprs[0]) value = eval_filter(*stmt.exprs[0], inner.scope, &value);
  }
  assign(*stmt.targets[0], std::move(value), scope);
}

void Interpreter::run_filter_block(const Stmt& stmt, Scope* scope) {
  const ScopeLease inner(*this, scope);
  const Value value = str(capture(stmt.bodies[0], inner.scope));
  write(text_of(eval_filter(*stmt.exprs[0], inner.scope, &value)));
}

void Interpreter::run_call_block(const Stmt& stmt, Scope* scope) {
  CallArgs args = eval_args(stmt.exprs[0]->args.get(), scope);
  args.named.emplace_back("caller", make_macro(stmt, scope));
  write(text_of(eval_call(*stmt.exprs[0], scope, std::move(args))));
}

void Interpreter::assign(const Expr& target, Value value, Scope* scope) {
  if (target.kind == ExprKind::kName) {
    scope->set(target.name, std::move(value));
    return;
  }
  if (target.kind == ExprKind::kNamespaceRef) {
    Value* found = nullptr;
    for (Scope* s = scope; s != nullptr && found == nullptr; s = s->parent)
      found = s->find_here(target.name);
    auto* ns = found != nullptr && found->is(Type::kObject)
                   ? dynamic_cast<Namespace*>(found->object())
                   : nullptr;
    if (ns == nullptr) fail("cannot assign attribute on non-namespace object");
    ns->attributes->set(str(target.text, true), std::move(value));
    return;
  }
  const std::vector<Value> items = iterate(heap, value);
  const size_t wanted = target.children.size();
  if (items.size() < wanted) {
    fail("not enough values to unpack (expected " + std::to_string(wanted) + ", got " +
         std::to_string(items.size()) + ")");
  }
  if (items.size() > wanted)
    fail("too many values to unpack (expected " + std::to_string(wanted) + ")");
  for (size_t i = 0; i < wanted; ++i) assign(*target.children[i], items[i], scope);
}

MacroObject* Interpreter::make_macro(const Stmt& stmt, Scope* scope) {
  capture_scopes(scope);
  return heap.make<MacroObject>(stmt, scope);
}

namespace {

// Takes the argument named `name` out of `args`; missing when there is none.
Value take_named(CallArgs& args, std::string_view name) {
  for (auto it = args.named.begin(); it != args.named.end(); ++it) {
    if (it->first != name) continue;
    Value out = std::move(it->second);
    args.named.erase(it);
    return out;
  }
  return Value();
}

}  // namespace

Value Interpreter::call_macro(const MacroObject& macro, CallArgs& args) {
  const Depth depth(*this);
  const MacroDef& def = *macro.stmt.macro;
  const ScopeLease inner(*this, macro.closure);
  const size_t count = def.parameters.size();
  bool has_caller = false;
  for (size_t i = 0; i < count; ++i) {
    const auto& [id, name] = def.parameters[i];
    Value value = i < args.positional.size() ? args.positional[i] : take_named(args, name);
    has_caller |= name == "caller";
    if (value.missing()) {
      const size_t first_default = count - def.defaults.size();
      value = i >= first_default ? eval(*def.defaults[i - first_default], inner.scope)
                                 : heap.undefined("parameter '" + name + "' was not provided");
    }
    inner.scope->set(id, std::move(value));
  }
  if (def.uses_caller && !has_caller) {
    Value caller = take_named(args, "caller");
    inner.scope->set(caller_name_, caller.missing() ? heap.undefined("No caller defined") : caller);
  }
  if (def.uses_kwargs) {
    Dict* rest = heap.make<Dict>(meter);
    for (auto& [name, value] : args.named) rest->set(str(name, true), value);
    inner.scope->set(kwargs_name_, rest);
  } else if (!args.named.empty()) {
    fail("macro '" + def.name + "' takes no keyword argument '" + args.named[0].first + "'");
  }
  const bool more = args.positional.size() > count;
  if (def.uses_varargs) {
    std::vector<Value> rest;
    if (more)
      rest.assign(args.positional.begin() + static_cast<ptrdiff_t>(count), args.positional.end());
    inner.scope->set(varargs_name_, list(std::move(rest), ListKind::kTuple));
  } else if (more) {
    fail("macro '" + def.name + "' takes not more than " + std::to_string(count) + " argument(s)");
  }
  return str(capture(macro.stmt.bodies[0], inner.scope));
}

}  // namespace attune::text::jinja
