#!/usr/bin/env python3
"""Golden data for src/formats/dequant and src/tensor/half, written to tests/golden/formats.

Truth: gguf (quantise, dequantise), PyTorch (16- and 8-bit floats).
Needs: pip install gguf==0.19.0 safetensors torch numpy
"""

import pathlib

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as T
from safetensors.numpy import save_file

OUT = pathlib.Path(__file__).parent.parent / "tests" / "golden" / "formats"
ROWS, COLS = 4, 512


def random_blocks(rng, qtype):
    """Valid bytes of a type that the package cannot quantise: any bytes, with finite halves where halves stand."""
    elems, size = gguf.GGML_QUANT_SIZES[qtype]
    blocks = rng.integers(0, 256, (ROWS, COLS // elems, size), dtype=np.uint8)
    halves = {T.Q4_K: (0, 2), T.Q5_K: (0, 2), T.Q6_K: (208,)}[qtype]
    for at in halves:
        scale = rng.normal(0, 0.05, blocks.shape[:2]).astype(np.float16)
        blocks[:, :, at : at + 2] = scale[..., None].view(np.uint8)
    return blocks.reshape(ROWS, -1)


def dequant():
    rng = np.random.default_rng(1)
    tensors = {}
    values = (rng.normal(0, 1, (ROWS, COLS)) * rng.choice([1e-3, 1, 30], (ROWS, COLS // 32, 1)).repeat(32, 1).reshape(ROWS, COLS)).astype(np.float32)
    for qtype in (T.F16, T.BF16, T.Q8_0, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q4_K, T.Q5_K, T.Q6_K):
        if qtype in (T.Q4_K, T.Q5_K, T.Q6_K):
            data = random_blocks(rng, qtype)
        else:
            data = gguf.quants.quantize(values, qtype)
        result = gguf.quants.dequantize(data, qtype).astype(np.float32)
        name = qtype.name.lower()
        tensors[name + ".bytes"] = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        tensors[name + ".f32"] = np.ascontiguousarray(result).reshape(-1)
    save_file(tensors, OUT / "dequant.safetensors")


def half():
    rng = np.random.default_rng(2)
    exponents = rng.uniform(-40, 20, 6000)
    values = (np.exp2(exponents) * rng.choice([-1, 1], 6000)).astype(np.float32)
    # Every tie between neighbours, from each 8-bit type and some of the 16-bit ones.
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 465, 57344, 61439.996, 61440, 65504, 65519.99, 65520, 1e30, 2.0**-24, 2.0**-25, 2.0**-10, 2.0**-9, 2.0**-17, 2.0**-16]
    steps = [np.arange(256, dtype=np.uint8)]
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        grid = torch.from_numpy(steps[0]).view(dtype).float().numpy()
        grid = np.sort(grid[np.isfinite(grid)])
        special += list((grid[1:] + grid[:-1]) / 2) + list(grid)
    grid = np.arange(0, 0x7C00, 97, dtype=np.uint16).view(np.float16).astype(np.float32)
    following = np.nextafter(grid.astype(np.float16), np.float16(np.inf)).astype(np.float32)
    special += list((grid + following) / 2)
    with np.errstate(over="ignore"):
        inputs = np.concatenate([values, np.array(special, dtype=np.float32)])
    x = torch.from_numpy(inputs)
    tensors = {
        "f32": inputs,
        "f16": x.half().view(torch.int16).numpy(),
        "bf16": x.bfloat16().view(torch.int16).numpy(),
        "f8_e4m3": x.to(torch.float8_e4m3fn).view(torch.uint8).numpy(),
        "f8_e5m2": x.to(torch.float8_e5m2).view(torch.uint8).numpy(),
        "all_f8_e4m3": torch.from_numpy(steps[0]).view(torch.float8_e4m3fn).float().numpy(),
        "all_f8_e5m2": torch.from_numpy(steps[0]).view(torch.float8_e5m2).float().numpy(),
    }
    save_file(tensors, OUT / "half.safetensors")


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    dequant()
    half()
