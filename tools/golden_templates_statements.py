"""Micro cases of statements and white space; golden_templates_cases.py has the expressions."""

# Whole templates; \n in them are line breaks.
STATEMENTS = r"""
{% if a %}A{% endif %}
{% if false %}A{% elif b == 3 %}B{% elif true %}C{% else %}D{% endif %}
{% if missing %}A{% else %}D{% endif %}
{%if a-%} x {%-endif%}|
{% if (a, b) %}T{% endif %}
{% for x in l %}{{ x }},{% endfor %}
{% for x in [] %}{{ x }}{% else %}none{% endfor %}
{% for x in missing %}{{ x }}{% else %}none{% endfor %}
{% for x in n %}{{ x }}{% endfor %}
{% for x in a %}{{ x }}{% endfor %}
{% for c in s %}{{ c }}.{% endfor %}
{% for k in d %}{{ k }};{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}
{% for k, v in d | dictsort %}{{ k }};{% endfor %}
{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% for a, b in [(1,)] %}{% endfor %}
{% for x in l if x > 1 %}{{ loop.index }}:{{ x }}/{{ loop.length }} {% endfor %}
{% for x in l if x > 5 %}{% else %}else{% endfor %}
{% for x in words %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}
{% for x in words %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}
{% for x in words %}{{ loop.previtem is defined }}{{ loop.nextitem is not defined }} {% endfor %}
{% for x in words %}{{ loop.cycle('odd', 'even') }} {% endfor %}
{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }} {% endfor %}
{% for x in [1, 2] %}{% for y in [3, 4] %}{{ loop.index }}{{ x }}{{ y }} {% endfor %}{{ loop.index }}{% endfor %}
{% for x in l %}{{ loop.nope is defined }}{% endfor %}
{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}
{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% else %}never{% endfor %}
{% break %}
{% for x in l recursive %}{{ x }}{% endfor %}
{% for x in nested recursive %}{% if x is iterable %}[{{ loop(x) }}]{% else %}{{ x }}@{{ loop.depth }}{{ loop.depth0 }} {% endif %}{% endfor %}
{% for x in l %}{{ loop(l) }}{% endfor %}
{% for loop in l %}{% endfor %}
{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}
{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}
{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{{ ns.a }}{{ ns.b }}
{% set d.x = 5 %}
{% set nope.x = 5 %}
{% set ns = namespace(found=false) %}{% for x in words if not ns.found %}{{ x }}{% if x == 'apple' %}{% set ns.found = true %}{% endif %}{% endfor %}
{% if true %}{% set y = 5 %}{% endif %}{{ y }}
{% for i in l %}{% set y = i %}{% endfor %}{{ y }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}
{% set a = 1, 2 %}{{ a }}
{% set a = [1, 2] %}{% set b = a %}{{ b is sameas a }}
{% set x %}block {{ a }}{% endset %}[{{ x }}]
{% set x | upper | replace('B', 'q') %}block{% endset %}{{ x }}
{% set x %}{% set inner = 1 %}{% endset %}{{ inner }}
{% set true = 1 %}
{% set 1 = 2 %}
{% set a b %}
{% with x = 1, y = a %}{{ x }}{{ y }}{% set z = 3 %}{% endwith %}{{ x }}{{ z }}
{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}
{% with a = 1, b = a %}{{ b }}{% endwith %}
{% macro m(x, y=2) %}{{ x }}-{{ y }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(y=5, x=4) }} {{ m() }}
{% macro m(x, y=x) %}{{ x }}{{ y }}{% endmacro %}{{ m(1) }}
{% macro m(x) %}{{ x }}{% endmacro %}{{ m(1, 2) }}
{% macro m(x) %}{{ x }}{% endmacro %}{{ m(z=2) }}
{% macro m(x) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, q=4) }}
{% macro m(x) %}{{ x is defined }}{{ x }}{% endmacro %}{{ m() }}
{% macro m(x) %}{{ x.y }}{% endmacro %}{{ m() }}
{% macro m(x) %}{{ caller(x) }}{% endmacro %}{% call(v) m(5) %}<{{ v }}>{% endcall %}
{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}hi {{ a }}{% endcall %}
{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}
{% macro m() %}x{% endmacro %}{% call m() %}hi{% endcall %}
{% macro fact(n) %}{% if n > 1 %}{{ n }}*{{ fact(n - 1) }}{% else %}1{% endif %}{% endmacro %}{{ fact(5) }}
{% macro m() %}{{ later }}{% endmacro %}{% set later = 'seen' %}{{ m() }}
{% macro m(x) %}{% set y = x %}{{ y }}{% endmacro %}{{ m(1) }}{{ y }}
{% macro m(x) %}{{ x }}{% endmacro %}{{ m('a') | upper ~ m('b') }}{{ m.name }}
{% macro m(a=1, b) %}{% endmacro %}
{% for i in [1, 2] %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}
{% filter upper %}hello {{ s }}{% endfilter %}
{% filter replace('l', 'L') | trim %} hello {% endfilter %}
{% filter nope %}x{% endfilter %}
{% raw %}{{ not }} {% a %}{% endraw %}
{%- raw -%}  {{ x }}  {%- endraw -%}  y
{% raw %}\n x{% endraw %}\ny
{# comment #}x{# multi\nline #}y
a{#- c -#} b
{% generation %}gen {{ a }}{% endgeneration %}
{% print a, b %}
{% block b %}in block {{ a }}{% endblock %}
{% include 'x' %}
{% import 'x' as y %}
{% from 'x' import y %}
{% extends 'x' %}
{% nope %}
{% if a %}
{% for x in l %}
{% endif %}
{% if a %}{% endfor %}
{% if a %}{% else %}{% else %}{% endif %}
{% if %}{% endif %}
{% for in l %}{% endfor %}
{% for x l %}{% endfor %}
{% macro %}{% endmacro %}
{{ a
{{ }}
{% %}
{{ a }
{# open
{% raw %}open
{% set j = joiner('; ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}
{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}
{% set it = l | map('string') %}{{ it | list }}{{ it | list }}
{% set it = l | select('odd') %}{% if it %}T{% endif %}{{ it | first }}{{ it | list }}
{% if users | selectattr('age', '>', 99) %}always{% endif %}
{% if (users | selectattr('age', '>', 99) | list) %}x{% else %}never{% endif %}
{{ 'a' if a is odd and (b is even or t) else 'b' }}
{% if 'q' is filter %}{{ a | q }}{% else %}no filter{% endif %}
{% if a %}{{ a | nosuch }}{% endif %}
{{ raise_exception('bad ' + s) }}
{% for m in users %}{{ m.name | title }}{{ ', ' if not loop.last }}{% endfor %}
{% for x in l %}{{ x }}{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}
{% for i in range(3) %}{{ i }}{% endfor %}
{% for i in range(users | length - 1, -1, -1) %}{{ users[i].name }}{% endfor %}
{% for x in l | reverse %}{{ x }}{{ loop.last }}{% endfor %}
{% for m in users[::-1] %}{{ m.name }}{% endfor %}
{% for m in users if m.on %}{{ m.name }}{{ loop.last }}{% endfor %}
{% set msgs = users[1:] if users else [] %}{{ msgs | length }}
{% set ns = namespace(i=-1) %}{% for m in users %}{% if m.age == 30 %}{% set ns.i = loop.index0 %}{% endif %}{% endfor %}{{ ns.i }}
{% set x = {'a': 1} %}{% set y = dict(x, b=2) %}{{ x }}{{ y }}
{% for k in d if k not in ['x', 'items'] %}{{ k }},{% endfor %}
""".strip("\n").split("\n")

# White space control, with real line breaks.
WHITESPACE = [
    "a\n{% if true %}\nb\n{% endif %}\nc\n", "  {% if true %}\n  b\n  {% endif %}\n  c", "  {%+ if true %}x{% endif %}",
    "a  {%- if true -%}  b  {%- endif -%}  c", "{% if true +%}\nb{% endif %}", "{{ a }}\n{{ b }}\n", "{{- a -}} \n {{- b }}",
    "\n\n{{ a }}\n\n", "a \t{{- a }}", "{% for x in l %}\n  {{ x }}\n{% endfor %}\n", "{% for x in l -%}\n  {{ x }}\n{%- endfor %}",
    "{# c #}\nx", "  {# c #}\nx", "x  {#- c #}\ny", "{#- c -#}\n\ny", "{# c +#}\ny", "x {# c #} y", "a\n  {# c #}  \nb",
    "{% set x = 1 %}\n{{ x }}", "{% set x = 1 -%}\n\n{{ x }}", "text {% if true %}\n in {% endif %}\n out", "\t{% if true %}\tx{% endif %}",
    "a\r\n{% if true %}\r\nb\r{% endif %}\r\n", "{{ '\r\n' }}", "x\n\n", "x\n\n\n", "{% raw %}\n a \n{% endraw %}\nb", "  {% raw %}x{% endraw %}  \n y",
    "{%- raw %}  x  {% endraw -%}  y", "{% raw -%}  x  {%- endraw %}  y", "a {{ '}}' }} b", "{{ '{{' }}{{ \"%}\" }}", "{ { } }", "{%if true%}x{%endif%}",
    "{%\nif true\n%}\nx{% endif %}", "{{\na\n}}", "a{{ {'k': {'z': 1}} }}b", "{{{'k': 1}['k']}}", "{{ [1,\n2] }}", "{%- set x -%}\n  y  \n{%- endset -%}\n[{{ x }}]",
    "{{ a }}{# x #}\n{{ b }}", "é\n  {% if true %}é{% endif %}", "\u00a0{%- if true %}x{% endif %}", "a\u2003{%- if true -%}\u2003x{% endif %}",
    "{% if true %}\n\n\nx{% endif %}", "{% if true -%}\n\n\nx{% endif %}", "{{+ a }}", "{{ -a }}", "{{-a }}", "{%- if true %}{%- endif %}", "{{ a -}}\n\n{% if true %}x{% endif %}",
    "   {{ a }}", "  {{- a }}", "x{% raw %}{% endraw %}y", "{% macro m() %}\n  x\n{% endmacro %}\n[{{ m() }}]", "{% macro m() -%}\n  x\n{%- endmacro %}[{{ m() }}]",
    "{% for x in l %}{% if loop.first %}F{% endif %}\n\n{% endfor %}", "<{% generation %}\n  x\n{% endgeneration %}\n>", "{% call(x) m() %}{% endcall %}", "{{ lines }}{{ lines | trim }}",
]
