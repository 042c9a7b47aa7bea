"""Small tokenizers, trained on the golden strings, that use the parts of tokenizer.json in many combinations."""
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL = ["<s>", "</s>", "<unk>"]
SPM_DECODER = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def train(tokenizer, texts, alphabet=(), special=SPECIAL, size=900):
    texts = [t for t in texts if len(t) < 200]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(special), initial_alphabet=list(alphabet), limit_alphabet=400, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def byte_level(texts, steps, normalizer=None):
    t = Tokenizer(models.BPE())
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    return train(t, texts, pre_tokenizers.ByteLevel.alphabet())


def byte_fallback(texts, normalizer=None, pre_tokenizer=None):
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if normalizer:
        t.normalizer = normalizer
    if pre_tokenizer:
        t.pre_tokenizer = pre_tokenizer
    t.decoder = decoders.Sequence(SPM_DECODER)
    return train(t, texts, special=[*SPECIAL, *bytes_], size=1400)


def plain_bytes(tokenizer):
    """Byte tokens are in the vocabulary only, not among the added tokens."""
    import json
    root = json.loads(tokenizer.to_str())
    root["added_tokens"] = [t for t in root["added_tokens"] if not t["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(root, ensure_ascii=False))


def small_tokenizers(texts):
    random.seed(7)
    split = pre_tokenizers.Split
    yield "o200k", byte_level(texts, [split(Regex(O200K), "isolated")])

    t = byte_level(texts, [split(Regex(r"\s+"), "merged_with_next"), pre_tokenizers.Digits(False)], normalizers.NFC())
    t.add_tokens([AddedToken("fox", single_word=True), AddedToken("the lazy", lstrip=True, normalized=False), AddedToken("é", normalized=True)])
    t.add_special_tokens([AddedToken("<|im_end|>", rstrip=True), AddedToken("<|im_start|>", lstrip=True, rstrip=True)])
    yield "merged-with-next", t

    t = byte_level(texts, [pre_tokenizers.Punctuation("merged_with_previous"), split(" ", "contiguous"), split(Regex(r"[A-Z]\w*"), "removed", invert=False)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    yield "punctuation", t

    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    t.decoder = decoders.ByteLevel()
    t = train(t, texts, pre_tokenizers.ByteLevel.alphabet())
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])])
    yield "prefix-space", t

    marker = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t = plain_bytes(byte_fallback(texts, marker))
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    yield "llama2-legacy", t
    yield "metaspace-first", plain_bytes(byte_fallback(texts, None, pre_tokenizers.Metaspace("▁", "first", split=False)))
    yield "metaspace-split", plain_bytes(byte_fallback(texts, None, pre_tokenizers.Metaspace("▁", "always", split=True)))
    yield "regex-replace", plain_bytes(byte_fallback(texts, normalizers.Sequence([normalizers.Replace(Regex(r"\s{2,}"), " "), normalizers.Replace(" ", "▁")])))

    t = Tokenizer(models.BPE(unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    yield "whitespace-unk", train(t, texts)
