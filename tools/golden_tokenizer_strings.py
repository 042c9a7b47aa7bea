"""The strings that the tokenizer's golden ids are made of: varied, fixed by a seed."""
import random
import unicodedata

ENGLISH = """The quick brown fox jumps over the lazy dog. It's a truth universally acknowledged, isn't it? We'll
see what they've said; I'd rather not. DON'T SHOUT, I'M HERE, YOU'RE THERE, WE'VE gone, THEY'LL come. Prices rose by 3.75% to
$1,299.00 (or 1.2e-7 of GDP) in 2023-11-05T12:34:56Z. E-mail: jane.doe+test@example.co.uk; see https://example.com/a/b?c=d&e=f#g.
"Curly quotes" - en-dash, em--dash... ellipsis! O'Neill's rock'n'roll ain't 'bout y'all's 'tis. Mr. Smith went to Washington, D.C.""".split()
CODE = ["def f(x: int) -> str:\n    return f\"{x!r}\"\n", "for (int i = 0; i < n; ++i) { a[i] += b[i] * 0x1F; }",
        "\tif err != nil {\n\t\treturn nil, fmt.Errorf(\"%w\", err)\n\t}\n", "SELECT * FROM t WHERE a='b' AND c IS NOT NULL;\r\n",
        "<div class=\"x\">\n  <p>&amp;nbsp;</p>\n</div>", "#include <vector>\n\nint main() { return 0; }\n", "a = b if c else d  # why?",
        "{\"key\": [1, 2.5, null, true], \"s\": \"\\u00e9\\n\"}", "$x =~ s/\\s+(\\w+)/$1/g;", "git commit -m 'fix: #123' && git push --force",
        "λx.λy.x y ⟹ ∀ε>0 ∃δ>0: |x−a|<δ", "\\begin{align} x^2 &= \\frac{1}{2} \\\\ \\end{align}", "let v: Vec<&'static str> = vec![\"a\"; 10];",
        "x<<=2;y>>>=3;z**=4;a??=b;", "```python\nprint('hi')\n```\n\n- item\n  - nested\n", "@@ -1,3 +1,4 @@\n-old\n+new\n"]
WORLD = ["我想在apple工作1314151天～", "今日は良い天気ですね。カタカナとひらがな、漢字", "안녕하세요 세계! 한국어 토큰화", "ﬁnd the ﬂuﬀy oﬃce", "繁體中文與简体中文混排，標點「引號」。",
         "مرحبا بالعالم، كيف حالك؟ ١٢٣٤٥", "שלום עולם! מה שלומך?", "नमस्ते दुनिया, कैसे हैं आप? १२३", "สวัสดีชาวโลก ๑๒๓", "Привет, мир! Как дела? Ёлка", "нещо на Български",
         "Γειά σου Κόσμε, τι κάνεις;", "ἐν ἀρχῇ ἦν ὁ λόγος", "Xin chào thế giới, tiếng Việt có dấu", "Café déjà vu — naïve façade, Ångström Ø", "Straße, Größe, ẞ, İstanbul ıI", "კაცი ქართული ᲙᲐᲪᲘ",
         "Հայերեն լեզու", "ខ្មែរ កាន់តែពិសេសអាច", "தமிழ் மொழி", "বাংলা ভাষা ১২", "မြန်မာဘာသာ", "ትግርኛ አማርኛ", "ᏣᎳᎩ ꮳꮃꭹ", "𐐔𐐯𐑅𐐨𐑉𐐯𐐻 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙𝟚", "ÀÁÿþøúõ÷ûýùö ü", "ℝ ℂ Ω K Å ℵ ⅓ ½ Ⅷ ⅷ ② ㉑ ９８７ ٣ ໔ ꘩"]
EMOJI = ["😀", "🚀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇺🇸🇩🇪", "❤️", "☃", "1️⃣", "🤦🏻‍♀️", "🦙🦙", "✅", "😶‍🌫️", "🫠", "🪿", "©®™"]
MARKS = ["e\u0301", "o\u0308\u0323", "a\u0323\u0307", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u0958", "\u2126", "\u212b", "q\u0307\u0323", "n\u0303", "\u0344", "\u0f73", "\u1e9b\u0323", "\ufb1d", "ñ", "\u3099か",
         "か\u3099", "\u0041\u030a", "i\u0307\u0300", "\u0928\u093c", "\u20dd", "\u0061\u0315\u0300\u05ae\u0062"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", " \n", "\n ", "\t\t", "\u00a0", "\u2003", "\u3000", "\u2028", "\u0085", "\u000b", "\u000c", "\u200b", "\u180e", "\ufeff", "\u202f", "\u1680", "        "]
ODD = ["\x00", "\x01", "\x1b[31m", "\x7f", "\u0080", "\u00ad", "\ufffd", "\uffff", "\ue000", "\U000e0001", "\U0010ffff", "\u2581", "\u2581\u2581x", "Ġ", "Ċ", "<0x0A>", "\u202e", "\u2060", "'\u017f", "'S", "'ſt", "’s", "ʼn", "\u0378"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>user<|end_header_id|>\n\n", "<s>", "</s>", "<unk>", "[INST]", "[/INST]", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>",
           "<|User|>", "<|EOT|>", "<｜fim▁hole｜>", "<repo_name>", "<file_sep>", "<|im_start", "|im_end|>", "<<|im_end|>>", "<|endoftext|><|endoftext|>", "[PAD151646]", "<|reserved_special_token_0|>", "<pad>", "<jupyter_code>"]
BAD_BYTES = ["80", "c0af", "e282", "e28261", "f09f98", "f09f9880ff", "eda080", "f4908080", "c3", "c328", "68656c6c6ffe20776f726c64", "e4bda0e5a5", "efbfbdc2", "f0808080", "20ff20", "0aff0a", "3c7c696d5fff7374", "e0a0", "f8888080"]


def soup(rng, length):
    """Characters from all over Unicode."""
    ranges = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x590), (0x590, 0x700), (0x900, 0xE00), (0x1100, 0x1200), (0x1E00, 0x2000), (0x2000, 0x2C00), (0x3000, 0x3200),
              (0x4E00, 0xA000), (0xAC00, 0xD7A4), (0xF900, 0xFE00), (0xFF00, 0xFFF0), (0x10000, 0x10400), (0x1D400, 0x1D800), (0x1F300, 0x1FB00), (0x20000, 0x20100)]
    return "".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(length))


def number(rng):
    return rng.choice([str(rng.randrange(10 ** rng.randrange(1, 14))), f"{rng.random() * 1000:.{rng.randrange(1, 7)}f}", f"{rng.randrange(1 << 32):#x}",
                       f"{rng.randrange(10 ** 9):,}", f"{rng.randrange(24):02}:{rng.randrange(60):02}", f"v{rng.randrange(9)}.{rng.randrange(99)}.{rng.randrange(99)}", "½", "Ⅷ", "٣٤", "②"])


def mixture(rng):
    pools = [ENGLISH, ENGLISH, CODE, WORLD, EMOJI, MARKS, SPACES, SPACES, ODD, SPECIAL]
    parts = []
    for _ in range(rng.randrange(2, 9)):
        parts.append(number(rng) if rng.random() < 0.15 else rng.choice(rng.choice(pools)))
        if rng.random() < 0.3:
            parts.append(" ")
    return "".join(parts)[:160]


def strings():
    """Valid texts (str) and bytes that are no valid UTF-8 (bytes)."""
    rng = random.Random(20240607)
    out = ["", *CODE, *WORLD, *EMOJI, *MARKS, *SPACES, *ODD, *SPECIAL]
    out += [a + b for a in ("a", " a", "1", ".", "\n") for b in SPACES] + [a + b for a in SPACES for b in ("a", "1", ".", "é", "你")]
    out += [" " * n + "x" for n in range(2, 40, 3)] + ["\n" * n + " y" for n in range(1, 12)] + ["a" * n for n in (10, 47, 48, 49, 50, 100, 300)] + ["é" * 70, "你好" * 60, "ab" * 100, "🙂" * 40, "=" * 90, "1" * 30, " " * 120]
    out += [f"it{c} {c.upper()[1:]}{c} x{c.upper()}x" for c in ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")]
    out += [unicodedata.normalize(form, w) for w in WORLD for form in ("NFC", "NFD")]
    out += [" ".join(rng.choice(ENGLISH) for _ in range(rng.randrange(3, 18))) for _ in range(350)]
    out += [number(rng) + rng.choice(["", " ", ",", " kg", "%"]) for _ in range(120)]
    out += ["".join(rng.choice(SPACES) for _ in range(rng.randrange(2, 7))) + rng.choice(ENGLISH) for _ in range(120)]
    out += [soup(rng, rng.randrange(1, 24)) for _ in range(350)]
    out += [mixture(rng) for _ in range(900)]
    raw = [bytes.fromhex(h) for h in BAD_BYTES]
    for _ in range(60):
        text = bytearray(mixture(rng).encode())
        for _ in range(rng.randrange(1, 4)):
            text.insert(rng.randrange(len(text) + 1), rng.randrange(0x80, 0x100))
        raw.append(bytes(text))
    for text in [w.encode() for w in WORLD + EMOJI]:
        raw.append(text[:rng.randrange(1, len(text))])
    out = list(dict.fromkeys(out))
    return out + [r for r in dict.fromkeys(raw) if not valid(r)]


def valid(raw):
    try:
        raw.decode()
        return True
    except UnicodeDecodeError:
        return False
