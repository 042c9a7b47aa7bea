"""Micro cases for the template language: each is a template of its own, rendered with VARIABLES."""
from golden_templates_statements import STATEMENTS, WHITESPACE

VARIABLES = {
    "a": 7, "b": 3, "f": 2.5, "big": 1e20, "tiny": 1.5e-7, "neg": -7, "t": True, "n": None,
    "s": "Hello, World", "u": "  grüße ÄÖ straße 日本  ", "lines": "one\n two\n\nthree\n", "empty": "",
    "quote": "it's \"q\" \\ \n\t\x07 é \u200b",
    "l": [3, 1, 2], "words": ["banana", "apple", "Cherry", "apple"], "nested": [[1, 2], [3, [4, 5]], []],
    "mixed": [1, "two", 3.0, None, True, {"k": "v"}],
    "d": {"x": 1, "y": "two", "items": "shadowed", "z": [1, 2], "none": None, "k é": {"n": 0.1}},
    "users": [{"name": "bob", "age": 30, "tags": ["x"], "on": True, "addr": {"city": "Rome"}},
              {"name": "Ann", "age": 25, "tags": [], "on": False, "addr": {"city": "oslo"}},
              {"name": "cid", "age": 30, "tags": ["y", "z"], "on": True, "addr": {"city": "Oslo"}}],
}

# Printed as {{ ... }}.
EXPRESSIONS = r"""
a + b * 2 - 1
a / b
a // b
neg // b
a % b
neg % b
neg // -3
7.5 // 2
-7.5 % 2
2 ** 10
2 ** -1
2 ** 3 ** 2
-2 ** 2
-a ** 2
a - -b
+a
1 / 0
1 % 0
1.0 // 0
a + 1.0
3 * 1.0
f
big
tiny
1e16
1e15
123456789012345680.0
0.1 + 0.2
100.0
1e-5
1.5e300 * 1e10
1_000 + 0x1F + 0b101 + 0o17
1e3
.5
5.
t + 1
t
n
not t
not n
true and false or true
1 and 2
0 or 'x'
'' or none
n and x
not a == 7
a > b > 1
1 < a < 3
a == 7.0
t == 1
'a' < 'b'
[1, 2] < [1, 3]
(1, 'a') == (1, 'a')
[1] == (1,)
1 < 'a'
n < 1
a in l
3 in l
'x' in d
'ell' in s
'ell' not in s
1 in s
'a' in n
not 3 in l
a if b > 2 else 'no'
'yes' if false
('yes' if false) is defined
'a' if true else 'b' if true else 'c'
s ~ a ~ n ~ f ~ t ~ missing
s + a
s + n
a + s
'x' * 3
3 * 'x'
[1] * 2
[1, 2] + [3]
(1,) + (2, 3)
[1] + (2,)
l - l
-s
[]
[1, 'a', none, true, 1.0]
(1,)
()
(1, 2)
1, 2
{}
{'a': 1, 'b': [2, {'c': none}]}
{1: 'x', 1.5: 'y', true: 'z', none: 'w'}
{'a': 1}['a']
{(1, 2): 'tuple'}[(1, 2)]
{[1]: 2}
quote
[quote]
['it\'s', "say \"x\"", 'both\'"', 'tab\t', 'é', '\u200b', '\x00']
mixed
d
users
'a' 'b' "c"
'\u00e9\x41\101\n\\\q'
'line\
cont'
s[0]
s[-1]
s[99]
s[1:4]
s[:-1]
s[::-1]
s[::2]
s[10:2:-3]
s[-3:]
s[5:1]
u[2:6]
u[::-1]
s[:100]
l[0]
l[-1]
l[5]
l[1:]
l[::-1]
l[:2][0]
l['x']
l.0
nested[1][1][0]
nested.1.1.0
d['x']
d.x
d['items']
d.items is callable
s.format is defined
d['nope']
d.nope
d.nope.more
d['nope']['more']
missing
missing.x
missing['x']
missing + 1
missing == missing
missing == 1
missing < 1
missing()
n.x
n['x']
n[0]
a.x
a[0]
s.nope
s['upper']()
d.get('x')
d.get('nope')
d.get('nope', 5)
d.keys() | list
d.values() | list
d.items() | list
dict(a=1, b=2)
dict({'a': 1}, b=2)
dict([('a', 1)])
namespace(a=1).a
namespace({'q': 2}).q
namespace(a=1).b
range(5) | list
range(2, 8, 3) | list
range(5, 0, -2) | list
range(3)[1]
range(200000) | list
range(0)
range('x')
s.upper()
s.lower()
u.upper()
u.title()
s.title()
"they're bill's".title()
'hELLO wORLD'.capitalize()
'hELLO'.swapcase()
u.strip()
'xxhixx'.strip('x')
'xyhiyx'.lstrip('yx')
'hi\n\n'.rstrip('\n')
'  hi '.rstrip()
s.split(', ')
s.split()
'a  b   c'.split()
'a  b   c'.split(' ')
'a b c d'.split(' ', 2)
'a b c d'.split(none, 1)
' a b c '.split(maxsplit=1)
'a b c d'.rsplit(' ', 1)
' a b  c '.rsplit(none, 1)
'a,b,,c'.split(',')
''.split(',')
''.split()
'abc'.split('')
'a</think>b</think>c'.split('</think>')[-1]
'a</think>b'.split('</think>')[0].split('<think>')[-1]
lines.splitlines()
lines.splitlines(true)
s.startswith('Hell')
s.startswith(('x', 'He'))
s.endswith('World')
s.startswith('World', 7)
s.find('o')
s.find('o', 5)
s.rfind('o')
s.find('zz')
s.index('W')
s.index('zz')
s.count('o')
s.count('')
s.replace('o', '0')
s.replace('o', '0', 1)
s.replace('', '-')
'-'.join(words)
', '.join([1, 2])
''.join([])
'a-b-c'.partition('-')
'a-b-c'.rpartition('-')
'abc'.partition('-')
'{} and {}'.format(1, 'x')
'{1} {0} {name}'.format(1, 2, name='z')
'{:>5}|{:<5}|{:^5}|{:05d}|{:.2f}|{:,}'.format('a', 'b', 'c', 42, 3.14159, 1234567)
'{0[x]} {0[z][1]} {1.age}'.format(d, users[0])
'{!r:>6}|{!s}'.format('a', none)
'{{}} {:x} {:#x} {:b} {:e} {:g} {:%}'.format(255, 255, 5, 1234.5, 0.0001, 0.256)
'{:*^9}|{:+d}|{: d}|{:=+6d}'.format('mid', 5, 5, 5)
'{}'.format(d)
'{}{}'.format(1)
'{'.format(1)
'%s is %d years, %.1f%% %r' % ('bob', 30.9, 99.5, 'q')
'%5s|%-5s|%05d|%+d|%x|%X|%o|%e|%g' % ('a', 'b', 42, 7, 255, 255, 8, 12345.678, 0.00001)
'%(name)s %(age)03d' % users[0]
'%s' % 'one'
'%s' % [1, 2]
'%s %s' % 'one'
'%d' % 'x'
'%s' % (1, 2)
'%s, %s!' | format('Hi', 'you')
'%(a)s' | format(a=1)
'7'.zfill(3)
'-7'.zfill(4)
'a'.ljust(3) ~ '|' ~ 'a'.rjust(3) ~ '|' ~ 'a'.center(4) ~ '|' ~ 'ab'.center(5, '*')
'12'.isdigit()
'1a'.isdigit()
'ab'.isalpha()
'aB1'.isalnum()
'  '.isspace()
'AB'.isupper()
'ab'.islower()
'pre-x'.removeprefix('pre-')
'x.txt'.removesuffix('.txt')
l.index(2)
l.count(1)
l.index(9)
(1, 2, 1).count(1)
words | sort
words | sort(case_sensitive=true)
words | sort(reverse=true)
l | sort | join('-')
users | sort(attribute='age') | map(attribute='name') | list
users | sort(attribute='age,name') | map(attribute='name') | list
users | sort(attribute='addr.city') | map(attribute='addr.city') | join(', ')
mixed | sort
words | unique | list
words | unique(case_sensitive=true) | list
words | map('upper') | list
words | map('replace', 'a', 'o') | join(' ')
users | map(attribute='nope') | list
users | map(attribute='nope', default='-') | list
users | map(attribute='tags.0', default='-') | list
users | selectattr('on') | map(attribute='name') | list
users | selectattr('age', 'equalto', 30) | list | length
users | rejectattr('age', '>', 26) | map(attribute='name') | first
users | selectattr('nope', 'defined') | list
users | selectattr('name', 'in', ['bob', 'cid']) | map(attribute='name') | join
l | select('odd') | list
l | reject('odd') | list
l | select('divisibleby', 2) | list
mixed | select | list
mixed | select('string') | list
mixed | reject('none') | list | length
l | select('odd') | length
(l | select('odd')) is sequence
l | map('nope') | list
l | first
l | last
[] | first
[] | last
s | first
s | last
d | first
words | first | upper
l | length
s | length
u | count
d | length
n | length
a | length
missing | length
l | sum
users | sum(attribute='age')
[0.1, 0.2] | sum
[] | sum
l | sum(start=10)
[[1], [2]] | sum(start=[])
['a'] | sum
l | min
l | max
words | min
words | max(case_sensitive=true)
users | max(attribute='age')
[] | max
l | join
l | join(', ')
users | join(', ', attribute='name')
s | join('.')
missing | join(',')
n | join(',')
l | reverse | list
s | reverse
d | reverse | list
d | items | list
missing | items | list
n | items | list
d | dictsort
d | dictsort(by='value')
{'b': 1, 'A': 2, 'c': 0} | dictsort
{'b': 1, 'A': 2, 'c': 0} | dictsort(true)
{'b': 1, 'A': 2, 'c': 0} | dictsort(by='value', reverse=true)
{'b': 1} | dictsort(by='nope')
l | batch(2) | list
l | batch(2, 'x') | list
l | slice(2) | list
range(7) | slice(3, 'x') | list
users | groupby('age')
users | groupby('addr.city') | map('first') | list
users | groupby('age') | map('last') | map('length') | list
s | list
d | list
a | list
missing | list
missing | default('dflt')
missing | d
n | default('dflt')
n | default('dflt', true)
empty | default('dflt', boolean=true)
d.nope | default(d.x)
s | upper
s | lower
s | title
"it's a-b (c) d" | title
'HELLO there' | capitalize
u | trim
'xxhixx' | trim('x')
n | trim
a | upper
missing | upper
s | replace('l', 'L')
s | replace('l', 'L', 1)
a | replace('7', '8')
lines | indent
lines | indent(2, true)
lines | indent('> ', blank=true)
lines | indent(width=2, first=true, blank=true)
a | indent
'abc' | center(9)
'foo bar baz qux' | truncate(9)
'foo bar baz qux' | truncate(9, true)
'foo bar baz qux' | truncate(11)
'foo bar baz qux' | truncate(11, false, '...', 0)
'one two, three' | wordcount
'<a href="x">\'&</a>' | escape
'<b>' | e | length
'<b>' | safe
('<b>' | safe) + '<i>'
'<i>' + ('<b>' | escape)
('<b>' | safe) ~ '<i>'
('<b>' | safe) is escaped
'<b>' | escape | escape
a | string | length
n | string
missing | string
[1] | string
'42' | int
'42.7' | int
' 12 ' | int
'1_000' | int
'x' | int
'x' | int(5)
'x' | int(default=none)
'ff' | int(0, 16)
'0x1f' | int(0, 16)
'0b11' | int(0, 2)
f | int
neg | int
t | int
n | int
missing | int
'' | int
'-3' | int
'1e3' | int
'3.5' | float
'x' | float
'x' | float(1.5)
' 1e3 ' | float
'inf' | float
'nan' | float
a | float
n | float
neg | abs
-2.5 | abs
'x' | abs
42.55 | round
42.55 | round(1)
2.5 | round
3.5 | round
-2.5 | round
2.675 | round(2)
42.55 | round(1, 'floor')
42.01 | round(0, 'ceil')
7 | round
1234 | round(-2)
1250.0 | round(-2)
2.5 | round | int
1.0 | round(method='nope')
d | tojson
d | tojson(indent=2)
mixed | tojson
users | tojson(indent=4)
quote | tojson
u | tojson(ensure_ascii=true)
'😀' | tojson(ensure_ascii=true)
d | tojson(separators=(',', ':'))
{'b': 1, 'a': 2} | tojson(sort_keys=true)
[] | tojson(indent=2)
{'a': [], 'b': {}} | tojson(indent=2)
'<script>' | tojson
[1.0, 1e20, 1e-7, 0.1, 100, true, none] | tojson
(1, 2) | tojson
{1: 2, none: 3, true: 4} | tojson
missing | tojson
[missing] | tojson
range(2) | tojson
l | tojson(indent='--')
'a b/c?d=é' | urlencode
d | attr('x')
a is defined
missing is defined
missing is not defined
d.nope is undefined
n is none
missing is none
s is string
a is string
d is mapping
l is mapping
l is iterable
s is iterable
a is iterable
missing is iterable
l is sequence
s is sequence
d is sequence
a is sequence
range(2) is sequence
d.items() is sequence
(1,) is sequence
a is number
f is number
t is number
s is number
a is integer
t is integer
f is integer
f is float
t is boolean
a is boolean
t is true
t is false
1 is true
a is odd
a is even
a is divisibleby 7
a is divisibleby(3)
f is odd
4.0 is even
7.5 is divisibleby 2.5
'%d' is even
s is lower
'abc' is lower
'ABC' is upper
a is eq 7
a is equalto 7
a is ne(7)
a is gt 5
a is lessthan 5
a is ge 7
a is in [7, 8]
a is in(l)
a is sameas a
1 is sameas 1.0
s is callable
range is callable
s.upper is callable
'upper' is filter
'nope' is filter
'odd' is test
a is not odd
not a is odd
a is odd and b is odd
a is odd or b
(a is odd) ~ ''
a is divisibleby b
a is equalto b + 1
a is nope
a | nope
a | int | string ~ 'x'
-1 | abs
- 1 | abs
1 + 2 | string | int
a.b.c is defined
'a' is in 'abc'
a is string is defined
strftime_now('%Y-%m-%d')
strftime_now('%d %b %Y')
strftime_now('%A %-d %B %H:%M:%S %j %p %%')
raise_exception('no way')
raise_exception()
joiner(', ')()
cycler('a', 'b').next()
cycler()
[1, 2
(1
{1
"abc
a b
a +
a..b
a |
a is
a[
1 2
?
a ! b
'x'|upper|lower|title
s|replace("Hello"|lower|title, "Bye")
[*l]
range(*[1, 4]) | list
dict(**{'q': 1})
'{a}'.format(**{'a': 5})
'{}-{}'.format(*[1, 2])
l[t]
(1 if t else 2) + 3
[i for i in l]
lambda x: x
a.__class__
''.__class__.__mro__
d.__len__()
1 is 1
a not in l
a is none or a > 5
users[0].addr.city
users[-1]['addr']['city'][0]
users[0].tags[0] | upper ~ '!'
(users | first).name
users | map(attribute='addr') | map(attribute='city') | list
loop
varargs
caller
""".strip("\n").split("\n")


def templates():
    out = ["{{ " + e + " }}" for e in EXPRESSIONS]
    out += [t.replace("\\n", "\n") for t in STATEMENTS]
    return out + WHITESPACE
