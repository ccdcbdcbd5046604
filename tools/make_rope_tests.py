#!/usr/bin/env python3
"""Writes tests/testdata/rope.json: cos and sin as transformers computes them, for every RoPE type.

    tools/make_rope_tests.py            needs torch and transformers (made with 5.23)

Each case is a config.json and rows of (sequence_length, position, cos, sin).
"""

import json
import pathlib

import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/testdata/rope.json"
BASE = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=128, intermediate_size=64,
            num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=32, vocab_size=8,
            max_position_embeddings=512, rms_norm_eps=1e-6, rope_theta=10000.0)
LONGROPE = dict(short_factor=[1 + 0.01 * i for i in range(16)], long_factor=[1 + i / 4 for i in range(16)])
CASES = {
    "default": (None, {}),
    "default_theta": (None, {"rope_theta": 500000.0, "head_dim": 80}),
    "linear": ({"type": "linear", "factor": 4.0}, {}),
    "dynamic": ({"type": "dynamic", "factor": 2.5}, {}),
    "llama3": ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128}, {"rope_theta": 500000.0}),
    "yarn": ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}, {}),
    "yarn_untruncated": ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
                          "truncate": False, "beta_fast": 16, "beta_slow": 2}, {}),
    "yarn_mscale": ({"type": "yarn", "factor": 40, "original_max_position_embeddings": 128, "mscale": 1.0,
                     "mscale_all_dim": 0.7}, {}),
    "yarn_attention_factor": ({"type": "yarn", "factor": 4.0, "attention_factor": 0.75}, {}),
    "longrope": ({"type": "longrope", "original_max_position_embeddings": 128} | LONGROPE, {}),
    "longrope_outside": ({"type": "longrope", "factor": 8.0} | LONGROPE, {"original_max_position_embeddings": 64}),
}


def make_case(scaling, changes):
    config = BASE | changes | ({"rope_scaling": scaling} if scaling else {})
    rows = []
    for length in (100, 512, 8192):
        positions = sorted({0, 1, 77, length // 2 + 1, length - 1})
        # The embedding of a fresh model: `dynamic` ones remember the longest sequence they saw.
        rope = LlamaRotaryEmbedding(LlamaConfig(**json.loads(json.dumps(config))))
        cos, sin = rope(torch.zeros(1, dtype=torch.float32), torch.tensor([positions]))
        half = cos.shape[-1] // 2
        rows += [{"length": length, "position": p, "cos": cos[0, i, :half].tolist(), "sin": sin[0, i, :half].tolist()}
                 for i, p in enumerate(positions)]
    return {"config": config, "rows": rows}


if __name__ == "__main__":
    torch.manual_seed(0)
    cases = {name: make_case(*case) for name, case in CASES.items()}
    text = json.dumps(cases, default=float)
    OUT.write_text(json.dumps(json.loads(text, parse_float=lambda s: float(f"{float(s):.9g}"))) + "\n")
    print(f"{OUT}: {OUT.stat().st_size} bytes")
