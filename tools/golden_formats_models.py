#!/usr/bin/env python3
"""Tiny random models in tests/golden/formats/models, and seeds for the fuzzers of src/formats in tests/fuzz/seeds.

The Hugging Face folders are written by transformers' save_pretrained, the GGUF files by the gguf package, so that
the readers meet files that they did not write.
Needs: pip install gguf==0.19.0 safetensors torch transformers numpy
"""

import json
import pathlib
import shutil

import gguf
import numpy as np
import torch
import transformers
from safetensors.numpy import save
from transformers import AutoModelForCausalLM

ROOT = pathlib.Path(__file__).parent.parent
MODELS = ROOT / "tests" / "golden" / "formats" / "models"
SEEDS = ROOT / "tests" / "fuzz" / "seeds"

SIZES = dict(vocab_size=48, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0)
FAMILIES = {
    "llama": dict(SIZES, model_type="llama", tie_word_embeddings=False, rope_theta=500000.0,
                  rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                "original_max_position_embeddings": 16}),
    "mistral": dict(SIZES, model_type="mistral", tie_word_embeddings=False, sliding_window=8),
    "qwen2": dict(SIZES, model_type="qwen2", tie_word_embeddings=True),
    "qwen3": dict(SIZES, model_type="qwen3", tie_word_embeddings=True, head_dim=8),
}


def write_hf():
    for name, raw in FAMILIES.items():
        folder = MODELS / name
        shutil.rmtree(folder, ignore_errors=True)
        raw = dict(raw)
        config = transformers.AutoConfig.for_model(raw.pop("model_type"), **raw)
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        if name == "qwen3":
            model.generation_config.update(temperature=0.6, top_p=0.95, top_k=20, do_sample=True, eos_token_id=[2, 3])
        shards = {"max_shard_size": "4KB"} if name == "llama" else {}
        model.save_pretrained(folder, **shards)


def all_types(path):
    """Every value type, and one tensor of every type that attune reads."""
    w = gguf.GGUFWriter(path, "llama")
    w.add_uint8("t.u8", 200)
    w.add_int8("t.i8", -100)
    w.add_uint16("t.u16", 60000)
    w.add_int16("t.i16", -30000)
    w.add_uint32("t.u32", 4000000000)
    w.add_int32("t.i32", -2000000000)
    w.add_uint64("t.u64", 2**63 + 5)
    w.add_int64("t.i64", -(2**62))
    w.add_float32("t.f32", 1.5)
    w.add_float64("t.f64", 0.1)
    w.add_bool("t.bool", True)
    w.add_string("t.string", "héllo\n")
    w.add_array("t.strings", ["a", "", "日本", "x" * 40])
    w.add_array("t.ints", [1, -2, 2147483647])
    w.add_array("t.floats", [0.5, -1.25])
    w.add_array("t.bools", [True, False, True])
    rng = np.random.default_rng(3)
    values = rng.normal(0, 1, (2, 256)).astype(np.float32)
    w.add_tensor("f32", values)
    w.add_tensor("f16.rank3", values.astype(np.float16).reshape(2, 4, 64))
    for dtype in (np.int8, np.int16, np.int32, np.int64, np.float64):
        w.add_tensor(np.dtype(dtype).name, np.arange(6).astype(dtype).reshape(2, 3))
    for name in ("BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"):
        qtype = gguf.GGMLQuantizationType[name]
        w.add_tensor(name.lower(), gguf.quants.quantize(values, qtype), raw_dtype=qtype)
    for name in ("Q4_K", "Q5_K", "Q6_K"):
        qtype = gguf.GGMLQuantizationType[name]
        size = gguf.GGML_QUANT_SIZES[qtype][1]
        w.add_tensor(name.lower(), rng.integers(0, 100, (2, size), dtype=np.uint8), raw_dtype=qtype)
    finish(w)


def model_gguf(path, arch, freqs=False, tied=True, name="tiny"):
    w = gguf.GGUFWriter(path, arch)
    w.add_name(name)
    w.add_block_count(1)
    w.add_context_length(64)
    w.add_embedding_length(32)
    w.add_feed_forward_length(64)
    w.add_head_count(4)
    w.add_head_count_kv(2)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_freq_base(10000.0)
    w.add_tokenizer_model("gpt2")
    w.add_token_list([f"t{i}" for i in range(40)])
    w.add_token_merges(["t 0", "t 1"])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_eot_token_id(3)
    rng = np.random.default_rng(4)
    head_dim = 8

    def add(tensor, *shape, quantise=True):
        values = rng.normal(0, 0.02, shape).astype(np.float32)
        if len(shape) == 2 and quantise:
            qtype = gguf.GGMLQuantizationType.Q4_1
            w.add_tensor(tensor, gguf.quants.quantize(values, qtype), raw_dtype=qtype)
        else:
            w.add_tensor(tensor, values)

    add("token_embd.weight", 40, 32)
    add("output_norm.weight", 32)
    if not tied:
        add("output.weight", 40, 32)
    if freqs:
        w.add_tensor("rope_freqs.weight", np.linspace(1, 8, head_dim // 2).astype(np.float32))
    for part, rows, cols in (("attn_q", 32, 32), ("attn_k", 16, 32), ("attn_v", 16, 32), ("attn_output", 32, 32),
                             ("ffn_gate", 64, 32), ("ffn_up", 64, 32), ("ffn_down", 32, 64)):
        add(f"blk.0.{part}.weight", rows, cols)
        if arch == "qwen2" and part in ("attn_q", "attn_k", "attn_v"):
            add(f"blk.0.{part}.bias", rows)
    for part in ("attn_norm", "ffn_norm"):
        add(f"blk.0.{part}.weight", 32)
    if arch == "qwen3":
        add("blk.0.attn_q_norm.weight", head_dim)
        add("blk.0.attn_k_norm.weight", head_dim)
    finish(w)


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write_gguf():
    all_types(MODELS / "all_types.gguf")
    model_gguf(MODELS / "llama.gguf", "llama", tied=False)
    model_gguf(MODELS / "llama_freqs.gguf", "llama", freqs=True)
    model_gguf(MODELS / "qwen2.gguf", "qwen2")
    model_gguf(MODELS / "qwen3.gguf", "qwen3")


def write_seeds():
    for name in ("gguf", "safetensors", "json"):
        shutil.rmtree(SEEDS / name, ignore_errors=True)
        (SEEDS / name).mkdir(parents=True)
    for name in ("all_types", "llama_freqs"):
        shutil.copy(MODELS / f"{name}.gguf", SEEDS / "gguf" / name)
    for dtype in ("float32", "int8", "bool"):
        data = save({"a": np.zeros((2, 3), dtype), "b.weight": np.ones(5, dtype)}, {"format": "pt"})
        (SEEDS / "safetensors" / dtype).write_bytes(data)
    (SEEDS / "safetensors" / "empty").write_bytes(save({}))
    documents = {
        "numbers": "[0, -0, 1.5e-3, 1E+30, 123456789012345678901234, 9223372036854775807, -9223372036854775808]",
        "escapes": r'"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00 é日本"',
        "request": json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True,
                               "stop": ["a", None], "temperature": 0.7}),
        "nested": "[" * 20 + '{"a":[{}]}' + "]" * 20,
        "config": (MODELS / "llama" / "config.json").read_text(),
    }
    for name, text in documents.items():
        (SEEDS / "json" / name).write_text(text)


if __name__ == "__main__":
    MODELS.mkdir(parents=True, exist_ok=True)
    write_hf()
    write_gguf()
    write_seeds()
