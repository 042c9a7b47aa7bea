#!/usr/bin/env python3
"""Golden table of rope configs: what transformers makes of each, and the context limit that the model's own
documentation or card promises. Written to tests/golden/formats/rope.json.

Needs: pip install transformers torch
"""

import json
import pathlib

import transformers
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

OUT = pathlib.Path(__file__).parent.parent / "tests" / "golden" / "formats" / "rope.json"

LLAMA = dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=512, hidden_size=1024,
             intermediate_size=64, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2)
QWEN2 = dict(LLAMA, model_type="qwen2", architectures=["Qwen2ForCausalLM"])
QWEN3 = dict(LLAMA, model_type="qwen3", architectures=["Qwen3ForCausalLM"], head_dim=128)

# name, config, limit in tokens, and where the limit is promised
CASES = [
    ("smollm2", dict(LLAMA, max_position_embeddings=8192, rope_theta=100000), 8192, "model card"),
    ("vicuna-16k linear", dict(LLAMA, max_position_embeddings=4096, rope_theta=10000.0,
     rope_scaling={"type": "linear", "factor": 4.0}), 16384, "model card"),
    ("llama-3.1", dict(LLAMA, max_position_embeddings=131072, rope_theta=500000.0,
     rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192}), 131072, "model card"),
    ("llama-3.2", dict(LLAMA, max_position_embeddings=131072, rope_theta=500000.0, head_dim=64,
     rope_scaling={"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192}), 131072, "model card"),
    ("qwen2.5 yarn, key type", dict(QWEN2, max_position_embeddings=32768, rope_theta=1000000.0,
     rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}), 131072, "model card"),
    ("qwen2.5 yarn, key rope_type", dict(QWEN2, max_position_embeddings=32768, rope_theta=1000000.0,
     rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}), 131072, "model card"),
    ("qwen2.5 yarn, integer factor", dict(QWEN2, max_position_embeddings=32768, rope_theta=1000000.0,
     rope_scaling={"type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}), 131072, "model card"),
    ("qwen2.5 yarn, no original", dict(QWEN2, max_position_embeddings=32768, rope_theta=1000000.0,
     rope_scaling={"type": "yarn", "factor": 4.0}), 131072, "model card, original is the trained length"),
    ("qwen3 yarn", dict(QWEN3, max_position_embeddings=40960, rope_theta=1000000.0,
     rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}), 131072, "model card"),
    ("rope_parameters", dict(QWEN3, max_position_embeddings=40960,
     rope_parameters={"rope_theta": 1000000.0, "rope_type": "yarn", "factor": 4.0,
                      "original_max_position_embeddings": 32768}), 131072, "as above, the newer spelling"),
    ("deepseek-like yarn", dict(LLAMA, max_position_embeddings=163840, rope_theta=10000,
     rope_scaling={"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32,
                   "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.8}), 163840, "DeepSeek-V3 model card"),
    ("already extended yarn", dict(LLAMA, max_position_embeddings=131072, rope_theta=10000,
     rope_scaling={"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}), 131072,
     "sarvam-105b declares 131072"),
    ("yarn with attention_factor", dict(LLAMA, max_position_embeddings=16384, rope_theta=10000.0,
     rope_scaling={"rope_type": "yarn", "factor": 2.0, "attention_factor": 1.25, "beta_fast": 16.0, "beta_slow": 2.0,
                   "original_max_position_embeddings": 8192}), 16384, "config"),
    ("yarn untruncated", dict(LLAMA, max_position_embeddings=131072, rope_theta=150000.0, head_dim=64,
     rope_scaling={"rope_type": "yarn", "factor": 32.0, "truncate": False, "beta_fast": 32.0, "beta_slow": 1.0,
                   "original_max_position_embeddings": 4096}), 131072, "gpt-oss model card"),
    ("partial rotary", dict(LLAMA, max_position_embeddings=4096, rope_theta=10000.0, partial_rotary_factor=0.5), 4096,
     "config"),
]


def frequencies(config):
    raw = {k: v for k, v in config.items() if k not in ("model_type", "architectures")}
    hf = AutoConfig.for_model(config["model_type"], **raw)
    kind = hf.rope_parameters["rope_type"]
    if kind == "default":
        dim = int((getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads)
                  * hf.rope_parameters.get("partial_rotary_factor", 1.0))
        import torch
        base = hf.rope_parameters["rope_theta"]
        return 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim)), 1.0
    return ROPE_INIT_FUNCTIONS[kind](hf, "cpu")


def main():
    table = []
    for name, config, limit, source in CASES:
        freqs, factor = frequencies(config)
        table.append({"name": name, "config": config, "max_model_len": limit, "limit_from": source,
                      "inv_freq": [float(f) for f in freqs], "attention_factor": float(factor)})
    OUT.write_text(json.dumps({"transformers": transformers.__version__, "cases": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
