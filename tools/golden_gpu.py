#!/usr/bin/env python3
"""What transformers computes (float32, eager) for every model of tests/golden/families, for src/engine/family_gpu_test.cc:
of each, ids of which the last are the model's own greedy choices, so that a decode can be held to the same logits. Of many
random prompts that is the one whose closest choice is clearest. Writes families/gpu.json, and first some more models, with
heads of the sizes that GPU libraries serve:

llama_d64, qwen3_d128        heads of 64 and 128
mistral_d64                  a window of 9 tokens
qwen3_moe_d128               experts
deepseek_v2_576              latents of 512 and rotated keys of 64, as the published models have; no experts
deepseek_v3_576              the same with experts

Needs: golden_families.py, golden_deepseek.py and golden_qwen3_moe.py have run; pip install gguf torch transformers numpy
safetensors; made with transformers 5.24.0.
"""

import json
import shutil

import torch
import transformers

from golden_deepseek import COMMON as DEEPSEEK
from golden_deepseek import YARN, set_biases
from golden_families import OUT, SIZES, randomise

LATENT = dict(DEEPSEEK, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, kv_lora_rank=512,
              qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
PROMPT, LENGTH, TRIED = 16, 48, 96
MODELS = {
    "llama_d64": dict(SIZES, model_type="llama", tie_word_embeddings=False, head_dim=64),
    "mistral_d64": dict(SIZES, model_type="mistral", tie_word_embeddings=True, head_dim=64, sliding_window=9),
    "qwen3_d128": dict(SIZES, model_type="qwen3", tie_word_embeddings=True, head_dim=128, num_attention_heads=8,
                       num_key_value_heads=1),
    "qwen3_moe_d128": dict(SIZES, model_type="qwen3_moe", tie_word_embeddings=True, head_dim=128, num_attention_heads=2,
                           num_key_value_heads=1, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=40,
                           norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[]),
    "deepseek_v2_576": dict(LATENT, model_type="deepseek_v2", q_lora_rank=None, first_k_dense_replace=2,
                            topk_method="greedy", norm_topk_prob=False, routed_scaling_factor=1.0, n_shared_experts=2,
                            rope_scaling=dict(YARN, mscale=0.707, mscale_all_dim=0.707)),
    "deepseek_v3_576": dict(LATENT, model_type="deepseek_v3", q_lora_rank=48, n_shared_experts=1, n_group=4,
                            topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5,
                            rope_scaling=dict(YARN, mscale=1.0, mscale_all_dim=1.0)),
}


def make(name, raw):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    options = dict(raw)
    config = transformers.AutoConfig.for_model(options.pop("model_type"), **options)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    randomise(model)
    set_biases(model)
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


@torch.no_grad()
def clearest(model):
    """(ids, logits of each) of the prompt whose greedy choices lead by most at the closest."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(3, model.config.vocab_size, (TRIED, PROMPT), generator=generator)
    least = torch.full((TRIED,), float("inf"))
    step, cache = ids, None
    while ids.shape[1] < LENGTH:
        out = model(step, past_key_values=cache, use_cache=True)
        last, cache = out.logits[:, -1].float(), out.past_key_values
        top = last.topk(2).values
        least = torch.minimum(least, top[:, 0] - top[:, 1])
        step = last.argmax(-1, keepdim=True)
        ids = torch.cat([ids, step], 1)
    best = int(least.argmax())
    return float(least[best]), ids[best].tolist(), model(ids[best : best + 1]).logits[0].double().numpy()


def main():
    for name, raw in MODELS.items():
        make(name, raw)
    golden = {"transformers": transformers.__version__, "prompt": PROMPT, "models": {}}
    for folder in sorted(OUT.iterdir()):
        if not (folder / "config.json").exists():
            continue
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        least, ids, values = clearest(model.eval())
        print(f"{folder.name}: choices lead by {least:.2f}")
        golden["models"][folder.name] = {"ids": ids, "logits": [[round(float(v), 4) for v in row] for row in values]}
    (OUT / "gpu.json").write_text(json.dumps(golden))


if __name__ == "__main__":
    main()
