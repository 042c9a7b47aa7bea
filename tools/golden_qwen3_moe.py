#!/usr/bin/env python3
"""Small random models of the Qwen3-MoE family with the logits that transformers computes for them (float32, eager, every
position), in tests/golden/families beside those of golden_families.py.

qwen3_moe         experts in every layer, weights that sum to 1, as in the released models
qwen3_moe_mixed   experts in every second layer but one, weights as the softmax gives them, biases, a sliding window
qwen3_moe.gguf    the first as llama.cpp's conversion writes it; it has no key for the weights' sum

Needs: pip install gguf==0.19.0 torch transformers numpy safetensors; made with transformers 5.24.0.
"""

import json
import shutil

import gguf
import numpy as np
import safetensors.torch
import torch
import transformers

from golden_families import LENGTH, OUT, SIZES, logits, randomise

COMMON = dict(SIZES, model_type="qwen3_moe", head_dim=32, moe_intermediate_size=32, num_experts=8,
              num_experts_per_tok=3, tie_word_embeddings=False, rope_theta=1000000.0)
MODELS = {
    "qwen3_moe": dict(COMMON, norm_topk_prob=True),
    "qwen3_moe_mixed": dict(COMMON, num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[1],
                            norm_topk_prob=False, attention_bias=True, use_sliding_window=True, sliding_window=9),
}
PARTS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
         "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate": "ffn_gate_inp",
         "mlp.experts.gate_proj": "ffn_gate_exps", "mlp.experts.up_proj": "ffn_up_exps",
         "mlp.experts.down_proj": "ffn_down_exps"}
GLOBALS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_tensors(folder):
    """(name, values) as llama.cpp's conversion of qwen3moe writes them."""
    experts = {}
    for name, p in safetensors.torch.load_file(folder / "model.safetensors").items():
        values = p.float().numpy()
        stem, kind = name.rsplit(".", 1)
        if stem in GLOBALS:
            yield f"{GLOBALS[stem]}.{kind}", values
            continue
        _, _, layer, part = stem.split(".", 3)
        if part.startswith("mlp.experts."):
            _, _, expert, which = part.split(".")
            key = f"blk.{layer}.{PARTS['mlp.experts.' + which]}.{kind}"
            experts.setdefault(key, {})[int(expert)] = values
        else:
            yield f"blk.{layer}.{PARTS[part]}.{kind}", values
    for name, parts in experts.items():
        yield name, np.stack([parts[e] for e in range(len(parts))])


def write_gguf(path, folder, c):
    w = gguf.GGUFWriter(path, "qwen3moe")
    w.add_name(path.stem)
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_expert_count(c["num_experts"])
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_tokenizer_model("gpt2")
    w.add_token_list([f"t{i}" for i in range(c["vocab_size"])])
    w.add_token_merges(["t 0"])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    for name, values in gguf_tensors(folder):
        if values.ndim == 1 or "ffn_gate_inp" in name:
            w.add_tensor(name, values)
        else:
            qtype = gguf.GGMLQuantizationType.BF16
            w.add_tensor(name, gguf.quants.quantize(values, qtype), raw_dtype=qtype)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    rng = np.random.default_rng(11)
    ids = [int(i) for i in rng.integers(3, SIZES["vocab_size"], LENGTH)]
    golden = {"transformers": transformers.__version__, "ids": ids, "rows": list(range(LENGTH)), "models": {}}
    for name, raw in MODELS.items():
        folder = OUT / name
        shutil.rmtree(folder, ignore_errors=True)
        options = dict(raw)
        config = transformers.AutoConfig.for_model(options.pop("model_type"), **options)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
        model.eval()
        randomise(model)
        golden["models"][name] = [[round(float(v), 5) for v in row] for row in logits(model, ids)]
        model.to(torch.bfloat16).save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
    write_gguf(OUT / "qwen3_moe.gguf", OUT / "qwen3_moe", MODELS["qwen3_moe"])
    (OUT / "qwen3_moe.json").write_text(json.dumps(golden))


if __name__ == "__main__":
    main()
