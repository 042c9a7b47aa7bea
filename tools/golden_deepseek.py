#!/usr/bin/env python3
"""Small random models of the DeepSeek-V2 and V3 families with the logits that transformers computes for them (float32,
eager, every position), in tests/golden/families beside those of golden_families.py.

deepseek_v2         no q latent, greedy softmax routing, YaRN as in V2-Lite (mscale = mscale_all_dim)
deepseek_v2_groups  q latent, group-limited softmax routing, biases, YaRN whose mscale differs, so that rope is scaled
deepseek_v3         q latent, sigmoid routing by groups with a correction bias, weights that sum to 1; a layer behind
                    the last, as published files have for speculative decoding, which must not be read
deepseek_v2.gguf    the first as older conversions write it: kv_b whole
deepseek_v3.gguf    the last as newer ones do: kv_b split, one KV head

The norms of latents have eps 1e-6 in transformers whatever the config says; its config says 1e-5 here.
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

YARN = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 16, "beta_fast": 32, "beta_slow": 1}
COMMON = dict(SIZES, num_hidden_layers=3, num_key_value_heads=4, kv_lora_rank=32, qk_nope_head_dim=24,
              qk_rope_head_dim=8, v_head_dim=16, moe_intermediate_size=32, n_routed_experts=8, num_experts_per_tok=3,
              first_k_dense_replace=1, max_position_embeddings=640, tie_word_embeddings=False, rope_theta=10000.0)
MODELS = {
    "deepseek_v2": dict(COMMON, model_type="deepseek_v2", q_lora_rank=None, n_shared_experts=2, topk_method="greedy",
                        norm_topk_prob=False, routed_scaling_factor=1.0,
                        rope_scaling=dict(YARN, mscale=0.707, mscale_all_dim=0.707)),
    "deepseek_v2_groups": dict(COMMON, model_type="deepseek_v2", q_lora_rank=48, n_shared_experts=1, attention_bias=True,
                               topk_method="group_limited_greedy", n_group=4, topk_group=2, routed_scaling_factor=4.0,
                               rope_scaling=dict(YARN, mscale=1.0, mscale_all_dim=0.6)),
    "deepseek_v3": dict(COMMON, model_type="deepseek_v3", q_lora_rank=48, n_shared_experts=1, n_group=4, topk_group=2,
                        norm_topk_prob=True, routed_scaling_factor=2.5, num_nextn_predict_layers=1,
                        rope_scaling=dict(YARN, mscale=1.0, mscale_all_dim=1.0)),
}


def set_biases(model):
    generator = torch.Generator().manual_seed(8)
    for name, b in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            b.copy_((0.1 * torch.randn(b.shape, generator=generator)).to(torch.bfloat16).to(torch.float32))


def add_next_layer(folder, layers):
    """A tensor of the layer behind the last."""
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    tensors[f"model.layers.{layers}.eh_proj.weight"] = torch.zeros(4, 8, dtype=torch.bfloat16)
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})


PARTS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
         "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
         "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
         "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp", "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
         "mlp.shared_experts.up_proj": "ffn_up_shexp", "mlp.shared_experts.down_proj": "ffn_down_shexp",
         "mlp.experts.gate_proj": "ffn_gate_exps", "mlp.experts.up_proj": "ffn_up_exps",
         "mlp.experts.down_proj": "ffn_down_exps"}
GLOBALS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_tensors(folder, config, split):
    """(name, values) as llama.cpp's conversion of deepseek2 writes them."""
    experts = {}
    for name, p in safetensors.torch.load_file(folder / "model.safetensors").items():
        values = p.float().numpy()
        stem, kind = name.rsplit(".", 1)
        if stem in GLOBALS:
            yield f"{GLOBALS[stem]}.{kind}", values
            continue
        _, _, layer, part = stem.split(".", 3)
        if int(layer) >= config["num_hidden_layers"]:
            continue
        blk = f"blk.{layer}."
        if kind == "e_score_correction_bias":
            yield f"{blk}exp_probs_b.bias", values
        elif part.startswith("mlp.experts."):
            _, _, expert, which = part.split(".")
            experts.setdefault(f"{blk}{PARTS['mlp.experts.' + which]}.{kind}", {})[int(expert)] = values
        elif part == "self_attn.kv_b_proj" and split:
            heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
            both = values.reshape(heads, -1, values.shape[-1])
            yield f"{blk}attn_k_b.{kind}", np.ascontiguousarray(both[:, :nope].swapaxes(1, 2))
            yield f"{blk}attn_v_b.{kind}", np.ascontiguousarray(both[:, nope:])
        else:
            yield f"{blk}{PARTS[part]}.{kind}", values
    for name, parts in experts.items():
        yield name, np.stack([parts[e] for e in range(len(parts))])


def write_gguf(path, folder, config, split):
    w = gguf.GGUFWriter(path, "deepseek2")
    c = config
    head, rope = c["qk_nope_head_dim"] + c["qk_rope_head_dim"], c["qk_rope_head_dim"]
    w.add_name(path.stem)
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(10000.0)
    w.add_rope_dimension_count(rope)
    w.add_vocab_size(c["vocab_size"])
    w.add_kv_lora_rank(c["kv_lora_rank"])
    if c["q_lora_rank"] is not None:
        w.add_q_lora_rank(c["q_lora_rank"])
    if split:
        w.add_head_count_kv(1)
        w.add_key_length(c["kv_lora_rank"] + rope)
        w.add_value_length(c["kv_lora_rank"])
        w.add_key_length_mla(head)
        w.add_value_length_mla(c["v_head_dim"])
    else:
        w.add_head_count_kv(c["num_attention_heads"])
        w.add_key_length(head)
        w.add_value_length(c["v_head_dim"])
    w.add_leading_dense_block_count(c["first_k_dense_replace"])
    w.add_expert_count(c["n_routed_experts"])
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_expert_shared_count(c["n_shared_experts"])
    w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_expert_weights_scale(c["routed_scaling_factor"])
    if split:  # keys that came with V3
        w.add_expert_weights_norm(c["norm_topk_prob"])
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        w.add_expert_group_count(c["n_group"])
        w.add_expert_group_used_count(c["topk_group"])
    w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    w.add_rope_scaling_factor(YARN["factor"])
    w.add_rope_scaling_orig_ctx_len(YARN["original_max_position_embeddings"])
    w.add_rope_scaling_yarn_log_mul(0.1 * c["rope_scaling"]["mscale_all_dim"])
    w.add_tokenizer_model("gpt2")
    w.add_token_list([f"t{i}" for i in range(c["vocab_size"])])
    w.add_token_merges(["t 0"])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    for name, values in gguf_tensors(folder, c, split):
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
        set_biases(model)
        golden["models"][name] = [[round(float(v), 5) for v in row] for row in logits(model, ids)]
        model.to(torch.bfloat16).save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        if name == "deepseek_v2":
            write_gguf(OUT / f"{name}.gguf", folder, raw, split=False)
        if name == "deepseek_v3":
            write_gguf(OUT / f"{name}.gguf", folder, raw, split=True)
            add_next_layer(folder, raw["num_hidden_layers"])
    (OUT / "deepseek.json").write_text(json.dumps(golden))


if __name__ == "__main__":
    main()
