#!/usr/bin/env python3
"""Attention by its definition in numpy's float64, as tests/golden/attention.json, and MLA both ways
(DeepSeek-V2, arXiv:2405.04434) as tests/golden/attention_mla.json.

Inputs are not stored: q, k and v come from a hash of their indices (value() below, and in
tests/attention/golden_test.cc), and are exact in float32. Needs numpy.
"""
import json
import pathlib

import numpy as np

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests/golden"


def values(salt, shape):
    """Multiples of 1/1024 in [-2, 2), by a hash of (salt, flat index)."""
    i = np.arange(int(np.prod(shape)), dtype=np.uint64)
    mask = np.uint64(0xFFFFFFFF)
    x = (i * np.uint64(2654435761) + np.uint64(salt) * np.uint64(40503)) & mask
    x ^= x >> np.uint64(15)
    x = (x * np.uint64(2246822519)) & mask
    x ^= x >> np.uint64(13)
    return ((x % np.uint64(4096)).astype(np.int64) - 2048).reshape(shape) / 1024.0


def visible(case, seq, i, key):
    q_len, kv_len = seq["q_len"], seq["kv_len"]
    prefix = kv_len - q_len
    words = seq.get("tree")

    def depth(node):
        return prefix + (bin(words[node]).count("1") - 1 if words else node)

    key_position = depth(key - prefix) if words and key >= prefix else key
    if case["window"] and depth(i) - key_position >= case["window"]:
        return False
    if not case["causal"]:
        return True
    if words and key >= prefix:
        return bool(words[i] >> (key - prefix) & 1)
    return key_position <= depth(i)


def attend(case):
    out, lse = [], []
    heads, group = case["q_heads"], case["q_heads"] // case["kv_heads"]
    for s, seq in enumerate(case["seqs"]):
        q = values(3 * s, (seq["q_len"], heads, case["qk_dim"]))
        k = values(3 * s + 1, (seq["kv_len"], case["kv_heads"], case["qk_dim"]))
        v = values(3 * s + 2, (seq["kv_len"], case["kv_heads"], case["v_dim"]))
        for i in range(seq["q_len"]):
            keys = [j for j in range(seq["kv_len"]) if visible(case, seq, i, j)]
            for h in range(heads):
                scores = k[keys, h // group] @ q[i, h] * case["scale"]
                if case["soft_cap"]:
                    scores = case["soft_cap"] * np.tanh(scores / case["soft_cap"])
                logits = np.append(scores, case["sinks"][h]) if case["sinks"] else scores
                if len(logits) == 0:
                    out.append(np.zeros(case["v_dim"]))
                    lse.append(None)  # minus infinity
                    continue
                top = logits.max()
                total = np.exp(logits - top).sum()
                out.append(np.exp(scores - top) @ v[keys, h // group] / total)
                lse.append(top + np.log(total))
    return out, lse


def case(name, q_heads, kv_heads, qk_dim, v_dim, seqs, scale=0.4, window=0, soft_cap=0.0, sinks=(),
         causal=True):
    c = {"name": name, "q_heads": q_heads, "kv_heads": kv_heads, "qk_dim": qk_dim, "v_dim": v_dim,
         "scale": float(np.float32(scale)), "window": window, "soft_cap": soft_cap,
         "sinks": list(sinks), "causal": causal, "seqs": seqs}
    out, lse = attend(c)
    # 12 digits are more than float32 shows.
    c["out"] = [[float(f"{x:.12g}") for x in row] for row in out]
    c["lse"] = [None if x is None else float(f"{x:.12g}") for x in lse]
    return c


def seq(q_len, kv_len, tree=None):
    s = {"q_len": q_len, "kv_len": kv_len}
    if tree:
        s["tree"] = tree
    return s


CASES = [
    case("mha decode", 2, 2, 8, 8, [seq(1, 70), seq(1, 1)]),
    case("gqa prefill", 6, 2, 8, 4, [seq(5, 5), seq(3, 40)]),
    case("mqa", 4, 1, 16, 4, [seq(2, 130)]),
    case("longer than a split", 3, 1, 8, 4, [seq(2, 1100)], scale=0.9),
    case("more queries than keys", 2, 1, 8, 4, [seq(6, 3), seq(2, 0)]),
    case("window", 2, 1, 8, 4, [seq(6, 90), seq(4, 4)], window=5),
    case("soft cap", 2, 1, 8, 4, [seq(4, 66)], scale=3.0, soft_cap=4.0),
    case("sinks", 4, 2, 8, 4, [seq(3, 20), seq(2, 0)], sinks=(-2.0, 0.5, 3.0, 0.0)),
    case("not causal", 2, 1, 8, 4, [seq(3, 20)], causal=False),
    case("everything", 4, 2, 8, 4, [seq(5, 75), seq(1, 9)], window=40, soft_cap=2.5,
         sinks=(1.0, -1.0, 0.0, 2.0)),
    case("tree", 2, 1, 8, 4, [seq(6, 40, [1, 3, 5, 11, 19, 37])]),
    case("tree and window", 2, 1, 8, 4, [seq(6, 40, [1, 3, 5, 11, 19, 37])], window=3),
]


def softmax_row(scores, v):
    top = scores.max()
    weights = np.exp(scores - top)
    return weights @ v / weights.sum(), top + np.log(weights.sum())


def mla(name, heads, nope, rope, rank, v_dim, seqs):
    """Each sequence's queries over its latents; the weights W_uk and W_uv are the case's. Ragged: keys
    [W_uk c, k_rope] and values W_uv c for every head. Absorbed: queries [W_uk' q_nope, q_rope] over
    [c, k_rope] as they are, W_uv after it. One is the other by associativity, which is asserted."""
    scale = np.float64(np.float32(0.5 / np.sqrt(nope + rope)))
    w_uk = values(101, (heads, nope, rank)) / 4
    w_uv = values(102, (heads, v_dim, rank)) / 4
    outs, latents, lses = [], [], []
    for s, seq in enumerate(seqs):
        q = values(3 * s, (seq["q_len"], heads, nope + rope))
        row = values(3 * s + 1, (seq["kv_len"], rank + rope))
        c, k_rope = row[:, :rank], row[:, rank:]
        for i in range(seq["q_len"]):
            seen = seq["kv_len"] - seq["q_len"] + i + 1
            for h in range(heads):
                q_nope, q_rope = q[i, h, :nope], q[i, h, nope:]
                k = np.concatenate([c @ w_uk[h].T, k_rope], 1)[:seen]
                out, lse = softmax_row(k @ q[i, h] * scale, (c @ w_uv[h].T)[:seen])
                absorbed = np.concatenate([w_uk[h].T @ q_nope, q_rope])
                latent, lse2 = softmax_row(row[:seen] @ absorbed * scale, c[:seen])
                assert np.allclose(w_uv[h] @ latent, out, rtol=0, atol=1e-12) and abs(lse - lse2) < 1e-12
                outs.append(digits(out))
                latents.append(digits(latent))
                lses.append(float(f"{lse:.12g}"))
    return {"name": name, "heads": heads, "nope": nope, "rope": rope, "rank": rank, "v_dim": v_dim,
            "scale": float(scale), "seqs": seqs, "out": outs, "latent": latents, "lse": lses}


def digits(row):
    return [float(f"{x:.9g}") for x in row]


MLA_CASES = [
    mla("decode", 4, 8, 4, 16, 6, [seq(1, 70), seq(1, 1)]),
    mla("extend on a prefix", 3, 8, 4, 12, 8, [seq(4, 4), seq(3, 40), seq(2, 130)]),
    mla("longer than a split", 2, 6, 2, 8, 4, [seq(2, 600)]),
    mla("model dims", 2, 128, 64, 512, 128, [seq(1, 20)]),
]


def write(name, cases):
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    (FOLDER / name).write_text("[\n" + lines + "\n]\n")
    print(f"{FOLDER / name}: {(FOLDER / name).stat().st_size} bytes")


if __name__ == "__main__":
    write("attention.json", CASES)
    write("attention_mla.json", MLA_CASES)
