#!/usr/bin/env python3
"""Writes a model of a well-known shape with random weights: for measurements of speed, where the
text means nothing. Needs PyTorch and safetensors; uses a GPU to draw, where there is one."""

import argparse
import json
import shutil
import sys
from pathlib import Path

COMMON = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 262144,
}
SHAPES = {
    "llama-2-7b": {
        "num_key_value_heads": 32,
        "intermediate_size": 11008,
        "vocab_size": 32000,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
    },
    "llama-3.1-8b": {
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
    },
}


TOKENIZER_FILES = ("tokenizer.model", "tokenizer.json", "tokenizer_config.json", "generation_config.json")


def import_torch():
    """When arguments have been read: --help needs none."""
    global save_file, torch
    try:
        import torch
        from safetensors.torch import save_file
    except ImportError as error:
        sys.exit(f"make_random_model: needs PyTorch and safetensors: {error}")


def tensors(config, device):
    """Every tensor by name: matrices as trained ones are initialized, norms of ones."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]

    def matrix(rows, cols):
        values = torch.randn(rows, cols, device=device, dtype=torch.bfloat16)
        return (values * cols**-0.5).cpu()

    def norm():
        return torch.ones(hidden, dtype=torch.bfloat16)

    yield "model.embed_tokens.weight", matrix(config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        yield name + "input_layernorm.weight", norm()
        yield name + "post_attention_layernorm.weight", norm()
        for part, rows, cols in [
            ("self_attn.q_proj", hidden, hidden),
            ("self_attn.k_proj", kv, hidden),
            ("self_attn.v_proj", kv, hidden),
            ("self_attn.o_proj", hidden, hidden),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ]:
            yield f"{name}{part}.weight", matrix(rows, cols)
    yield "model.norm.weight", norm()
    yield "lm_head.weight", matrix(config["vocab_size"], hidden)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES, help="whose shape the model has")
    parser.add_argument("folder", type=Path, help="where config.json and model.safetensors go")
    parser.add_argument("--tokenizer", type=Path, metavar="MODEL",
                        help="a folder whose vocabulary and tokenizer it has, so that it can write text")
    parser.add_argument("--layers", type=int, help="so many instead of the shape's")
    options = parser.parse_args()
    config = COMMON | SHAPES[options.shape]
    if options.layers is not None:
        config["num_hidden_layers"] = options.layers
    if options.tokenizer is not None:
        try:
            config["vocab_size"] = json.loads((options.tokenizer / "config.json").read_text())["vocab_size"]
        except (OSError, ValueError, KeyError):
            sys.exit(f"make_random_model: --tokenizer {options.tokenizer}: no config.json there says vocab_size")
    import_torch()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES if options.tokenizer is not None else ():
        if (options.tokenizer / name).exists():
            shutil.copyfile(options.tokenizer / name, options.folder / name)
    (options.folder / "config.json").write_text(json.dumps(config, indent=2))
    torch.manual_seed(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    save_file(dict(tensors(config, device)), options.folder / "model.safetensors")


if __name__ == "__main__":
    main()
