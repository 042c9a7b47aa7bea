#!/usr/bin/env python3
"""Golden cases for src/text/jinja, rendered by Python's jinja2 as transformers sets it up.

    pip install jinja2==3.1.6
    python3 tools/golden_templates.py            # writes tests/golden/templates/*.json
    python3 tools/golden_templates.py --dir X    # renders every X/*.jinja instead, to standard output

Micro cases (one expression or a few tags) come from tools/golden_templates_cases.py; whole templates
from tests/golden/templates/*.jinja, each over every conversation of conversations().
"""
import argparse
import datetime
import json
import pathlib
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import golden_templates_cases as cases  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "tests/golden/templates"
NOW = datetime.datetime(2024, 7, 26, 13, 5, 9)  # a Friday, day 208 of its year


class Generation(jinja2.ext.Extension):
    """{% generation %}, which transformers uses to mark what the assistant wrote."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_support")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _support(self, caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def render(source, variables):
    """The text, or {"error": ...} of what went wrong."""
    try:
        return environment().from_string(source).render(**variables)
    except Exception as e:  # noqa: BLE001: whatever a template can raise
        return {"error": f"{type(e).__name__}: {e}"}


def conversations():
    tool = {"type": "function", "function": {
        "name": "get_weather", "description": "Weather of a city, \"now\" or later.",
        "parameters": {"type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "The city's name, e.g. Köln"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            "days": {"type": "integer"}}}}}
    clock = {"type": "function", "function": {
        "name": "get_time", "description": "Local time", "parameters": {"type": "object", "properties": {}}}}
    system = {"role": "system", "content": "You are terse."}
    user = {"role": "user", "content": "Hi!  How are you?\n"}
    answer = {"role": "assistant", "content": "  Fine, thanks. "}
    thought = {"role": "assistant", "content": "<think>\nLet me see.\n</think>\n\nIt is 4."}
    reasoned = {"role": "assistant", "content": "It is 4.", "reasoning_content": "2 + 2\nis 4."}
    more = {"role": "user", "content": "What is 2 + 2 < 5 && \"x\"?"}

    def call(*items, content=None):
        return {"role": "assistant", "content": content, "tool_calls": [
            {"id": f"call0000{i}", "type": "function", "function": {"name": n, "arguments": a}}
            for i, (n, a) in enumerate(items)]}

    weather = call(("get_weather", {"city": "Köln", "days": 2}))
    both = call(("get_weather", {"city": "Paris"}), ("get_time", {}), content="Looking it up.")
    result = {"role": "tool", "name": "get_weather", "tool_call_id": "call00000", "content": "{\"temp\": 21.5}"}
    result2 = {"role": "tool", "name": "get_time", "tool_call_id": "call00001", "content": "12:00"}
    ask = {"role": "user", "content": "Weather in Köln?"}
    unicode = {"role": "user", "content": "日本語 🙂 ñ é עברית\t<|im_end|>\r\n{{ not a tag }}"}
    parts = {"role": "user", "content": [{"type": "text", "text": "First."}, {"type": "text", "text": "Second."}]}
    tools = [tool, clock]

    def case(name, messages, **rest):
        return {"name": name, "messages": messages, **rest}

    return [
        case("user", [user]), case("user_no_prompt", [user], add_generation_prompt=False),
        case("system", [system, user]), case("multi_turn", [system, user, answer, more]),
        case("multi_turn_done", [user, answer, more, answer], add_generation_prompt=False),
        case("thought", [user, thought, more]), case("reasoned", [more, reasoned, user]),
        case("thinking_off", [system, more], template_args={"enable_thinking": False}),
        case("thinking_on", [more], template_args={"enable_thinking": True}),
        case("tools", [ask], tools=tools), case("tools_system", [system, ask], tools=tools),
        case("tool_call", [ask, weather, result], tools=tools),
        case("tool_call_done", [ask, weather, result, answer], tools=tools, add_generation_prompt=False),
        case("two_calls", [system, ask, both, result, result2, answer, more], tools=tools),
        case("tool_call_no_tools", [ask, weather, result]),
        case("unicode", [system, unicode]), case("parts", [parts]),
        case("late_system", [user, system, more]), case("two_users", [user, more]),
        case("assistant_first", [answer, user]), case("empty_content", [{"role": "user", "content": ""}]),
        case("parts_joined", [{"role": "user", "content": "First. Second."}]),
        case("text_arguments", [ask, call(("get_weather", '{"city": "Köln", "days": 2}')), result], tools=tools),
        case("null_members", [{**user, "name": None}, {**answer, "tool_calls": None}, more]),
        case("date", [user], template_args={"date_string": "01 Jan 2025"}),
        case("unknown_role", [{"role": "critic", "content": "no"}, user]),
    ]


SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def mended(messages):
    """What clients send, put in the ways that templates differ on; the first one that renders counts."""
    lacking = any(m.get("content") is None for m in messages)
    calls = [c for m in messages for c in m.get("tool_calls") or []]
    textual = any(isinstance(c["function"]["arguments"], str) for c in calls)
    for keep_text in (False, True):
        for empty in (False, True):
            if keep_text <= textual and empty <= lacking:
                yield [mended_message(m, keep_text, empty) for m in messages]


def mended_message(message, keep_text, empty):
    out = {k: v for k, v in message.items() if v is not None or k == "content"}
    if empty and out.get("content") is None:
        out["content"] = ""
    if "tool_calls" in out and not keep_text:
        out["tool_calls"] = json.loads(json.dumps(out["tool_calls"]))
        for c in out["tool_calls"]:
            if isinstance(c["function"]["arguments"], str):
                c["function"]["arguments"] = json.loads(c["function"]["arguments"])
    return out


def render_conversation(source, case):
    results = [render_messages(source, case, messages) for messages in mended(case["messages"])]
    return next((r for r in results if isinstance(r, str)), results[0])


def render_messages(source, case, messages):
    variables = {**SPECIAL, **case.get("template_args", {}), "messages": messages,
                 "tools": case.get("tools"), "documents": case.get("documents"),
                 "add_generation_prompt": case.get("add_generation_prompt", True)}
    return render(source, variables)


def over_conversations(folder):
    out = {}
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        out[path.stem] = {c["name"]: render_conversation(source, c) for c in conversations()}
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=pathlib.Path)
    args = parser.parse_args()
    if args.dir:
        page = {"special_tokens": SPECIAL, "conversations": conversations(), "expected": over_conversations(args.dir)}
        json.dump(page, sys.stdout, ensure_ascii=False, indent=1)
        return
    micro = [{"template": t, "expected": render(t, cases.VARIABLES)} for t in cases.templates()]
    page = {"variables": cases.VARIABLES, "cases": micro}
    (OUT / "micro.json").write_text(json.dumps(page, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    page = {"special_tokens": SPECIAL, "conversations": conversations(), "expected": over_conversations(OUT)}
    (OUT / "conversations.json").write_text(json.dumps(page, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    refused = sum(isinstance(c["expected"], dict) for c in micro)
    print(f"{len(micro)} micro cases ({refused} refused), {len(page['expected'])} templates x {len(conversations())}")


if __name__ == "__main__":
    main()
