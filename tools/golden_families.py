#!/usr/bin/env python3
"""Small random models of every family with the logits that transformers computes for them (float32, eager), in
tests/golden/families. The weights are large enough that rope, windows, biases and norms all show in the logits.

llama and qwen2 also come as GGUF with the same weights, so that both rope layouts are held to the same logits.
Needs: pip install gguf==0.19.0 torch transformers numpy
"""

import json
import pathlib
import shutil

import gguf
import numpy as np
import torch
import transformers

ROOT = pathlib.Path(__file__).parent.parent
OUT = ROOT / "tests" / "golden" / "families"
LENGTH = 48

SIZES = dict(vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0,
             rms_norm_eps=1e-5)
FAMILIES = {
    "llama": dict(SIZES, model_type="llama", tie_word_embeddings=False, rope_theta=10000.0),
    "llama3": dict(SIZES, model_type="llama", tie_word_embeddings=True, rope_theta=500000.0,
                   rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                 "original_max_position_embeddings": 16}),
    "llama_yarn": dict(SIZES, model_type="llama", tie_word_embeddings=True, rope_theta=10000.0,
                       rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}),
    "mistral": dict(SIZES, model_type="mistral", tie_word_embeddings=False, sliding_window=9),
    "qwen2": dict(SIZES, model_type="qwen2", tie_word_embeddings=True),
    "qwen3": dict(SIZES, model_type="qwen3", tie_word_embeddings=True, head_dim=32),
}


def randomise(model):
    generator = torch.Generator().manual_seed(7)
    for name, p in model.named_parameters():
        if "norm" in name:
            values = 1 + 0.3 * torch.randn(p.shape, generator=generator)
        elif name.endswith("bias"):
            values = 0.5 * torch.randn(p.shape, generator=generator)
        else:
            values = torch.randn(p.shape, generator=generator) / p.shape[-1] ** 0.5 * 1.5
        p.data = values.to(torch.bfloat16).to(torch.float32)


def logits(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].double().numpy()


def interleave(weight, heads):
    """Rows of a q or k projection in the order of GGUF's llama files: pairs side by side."""
    rows = weight.shape[0] // heads
    return weight.reshape(heads, 2, rows // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path, arch, model):
    c = model.config
    w = gguf.GGUFWriter(path, arch)
    w.add_name(path.stem)
    w.add_block_count(c.num_hidden_layers)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_rope_freq_base(c.rope_parameters["rope_theta"])
    w.add_vocab_size(c.vocab_size)
    w.add_tokenizer_model("gpt2")
    w.add_token_list([f"t{i}" for i in range(c.vocab_size)])
    w.add_token_merges(["t 0"])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    parts = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
             "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    for name, p in model.named_parameters():
        stem, kind = name.rsplit(".", 1)
        values = p.detach().numpy()
        if stem not in names:
            _, _, layer, part = stem.split(".", 3)
            if arch == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
                heads = c.num_attention_heads if part == "self_attn.q_proj" else c.num_key_value_heads
                values = interleave(values, heads)
            names[stem] = f"blk.{layer}.{parts[part]}"
        if values.ndim == 2:
            qtype = gguf.GGMLQuantizationType.BF16
            w.add_tensor(f"{names[stem]}.{kind}", gguf.quants.quantize(values, qtype), raw_dtype=qtype)
        else:
            w.add_tensor(f"{names[stem]}.{kind}", values)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(11)
    ids = [int(i) for i in rng.integers(3, SIZES["vocab_size"], LENGTH)]
    golden = {"transformers": transformers.__version__, "ids": ids, "models": {}}
    for name, raw in FAMILIES.items():
        raw = dict(raw)
        config = transformers.AutoConfig.for_model(raw.pop("model_type"), **raw)
        config._attn_implementation = "eager"
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
        model.eval()
        randomise(model)
        values = logits(model, ids)
        golden["models"][name] = [[round(float(v), 5) for v in row] for row in values[[0, 8, 9, 20, LENGTH - 1]]]
        if name in ("llama", "qwen2"):
            write_gguf(OUT / f"{name}.gguf", name, model)
        shutil.rmtree(OUT / name, ignore_errors=True)
        model.to(torch.bfloat16).save_pretrained(OUT / name)
        (OUT / name / "generation_config.json").unlink(missing_ok=True)
    golden["rows"] = [0, 8, 9, 20, LENGTH - 1]
    (OUT / "logits.json").write_text(json.dumps(golden))


if __name__ == "__main__":
    main()
