#!/usr/bin/env python3
"""Writes tests/golden/tokenizer/: ids that the `tokenizers` package gives for the strings of
golden_tokenizer_strings.py, with each vocabulary, and small tokenizer.json files with theirs.

    pip install tokenizers==0.23.3 gguf==0.19.0
    tools/golden_tokenizer.py VOCABS MODEL     (folder of ggml-vocab-*.gguf; the SmolLM2 GGUF)

strings.json      the strings; {"hex": ...} for bytes that are no valid UTF-8. Their ids are those of the text
                  with U+FFFD for each invalid part (bytes.decode("utf-8", "replace")).
NAME.ids          per string: the number of ids and the ids, as LEB128; special tokens parsed, none added
NAME.decoded.json for the two that change text: what decode() gives where it is not the string itself
small/NAME.json   a tokenizer.json of a small vocabulary trained here; small/NAME.ids: of every fifth string,
                  with what the post-processor adds
"""
import json
import pathlib
import sys

from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from golden_tokenizer_small import small_tokenizers
from golden_tokenizer_strings import strings

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/tokenizer"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK_V3 = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
CONTROL, USER_DEFINED, UNKNOWN = 3, 4, 2


class Vocab:
    def __init__(self, path):
        fields = GGUFReader(path).fields

        def read(key):
            field = fields.get("tokenizer.ggml." + key)
            return field.contents() if field else None

        self.tokens, self.types, self.merges, self.scores = read("tokens"), read("token_type"), read("merges"), read("scores")
        self.ids = {t: i for i, t in enumerate(self.tokens)}

    def add_tokens(self, tokenizer):
        for i, (text, kind) in enumerate(zip(self.tokens, self.types)):
            if kind in (CONTROL, UNKNOWN):
                tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True)])
            elif kind == USER_DEFINED and text != f"[PAD{i}]":
                tokenizer.add_tokens([AddedToken(text, normalized=True, special=False)])


def splits(*regexes):
    return [pre_tokenizers.Split(Regex(r), "isolated") for r in regexes]


def byte_level(vocab, steps, normalizer=None, ignore_merges=False):
    merges = [tuple(m.split(" ", 1)) if not m.startswith(" ") else m for m in vocab.merges]
    t = Tokenizer(models.BPE(vocab.ids, merges, ignore_merges=ignore_merges))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizers.Sequence(steps)
    t.decoder = decoders.ByteLevel()
    vocab.add_tokens(t)
    return t


def sentencepiece(vocab):
    """As transformers converts Llama 2: merges from the scores, the space in front by a normaliser."""
    merges = []
    for token, score in zip(vocab.tokens, vocab.scores):
        local = [(token[:i], token[i:], score) for i in range(1, len(token)) if token[:i] in vocab.ids and token[i:] in vocab.ids]
        merges.extend(sorted(local, key=lambda m: (vocab.ids[m[0]], vocab.ids[m[1]])))
    merges.sort(key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    t = Tokenizer(models.BPE(vocab.ids, [m[:2] for m in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    vocab.add_tokens(t)
    return t


def tokenizers(vocabs, model):
    digits, plain, mapped = pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False, use_regex=True), pre_tokenizers.ByteLevel(False, use_regex=False)
    cjk = "[一-龥ࠀ-一가-퟿]+"
    letters = "\\s?[" + pathlib.Path(__file__).with_name("golden_tokenizer_deepseek_letters.txt").read_text().strip() + "]+"

    def vocab(name):
        return Vocab(f"{vocabs}/ggml-vocab-{name}.gguf")

    yield "smollm", byte_level(Vocab(model), [digits, plain])
    yield "gpt-2", byte_level(vocab("gpt-2"), [plain])
    yield "llama-bpe", byte_level(vocab("llama-bpe"), [*splits(LLAMA3), mapped], ignore_merges=True)
    yield "qwen2", byte_level(vocab("qwen2"), [*splits(QWEN2), mapped], normalizers.NFC())
    yield "deepseek-coder", byte_level(vocab("deepseek-coder"), [*splits("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", cjk), digits, mapped])
    yield "deepseek-llm", byte_level(vocab("deepseek-llm"), [*splits("[\r\n]", letters, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", cjk), digits, mapped])
    # The pieces of DeepSeek V3, over the vocabulary of DeepSeek LLM.
    yield "deepseek-v3", byte_level(vocab("deepseek-llm"), [*splits(r"\p{N}{1,3}", "[一-龥\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK_V3), mapped])
    yield "llama-spm", sentencepiece(vocab("llama-spm"))


def leb128(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_ids(path, tokenizer, texts, special_added=False):
    decoded, out = {}, bytearray()
    for i, text in enumerate(texts):
        ids = tokenizer.encode(text, add_special_tokens=special_added).ids
        out += leb128(len(ids)) + b"".join(leb128(x) for x in ids)
        back = tokenizer.decode(ids, skip_special_tokens=False)
        if back != text:
            decoded[str(i)] = back
    path.with_suffix(".ids").write_bytes(bytes(out))
    return decoded


def main():
    (OUT / "small").mkdir(parents=True, exist_ok=True)
    all_strings = strings()
    lines = [json.dumps({"hex": s.hex()} if isinstance(s, bytes) else s, ensure_ascii=False) for s in all_strings]
    (OUT / "strings.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
    texts = [s.decode("utf-8", "replace") if isinstance(s, bytes) else s for s in all_strings]
    for name, tokenizer in tokenizers(*sys.argv[1:3]):
        decoded = write_ids(OUT / name, tokenizer, texts)
        if name in ("qwen2", "llama-spm"):
            (OUT / f"{name}.decoded.json").write_text(json.dumps(decoded, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
        print(name, len(texts), "strings,", len(decoded), "decode to another text")
    for name, tokenizer in small_tokenizers(texts):
        (OUT / f"small/{name}.json").write_text(tokenizer.to_str(), encoding="utf-8")
        write_ids(OUT / f"small/{name}", tokenizer, texts[::5], special_added=True)
        print("small", name)


main()
