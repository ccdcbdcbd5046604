#!/usr/bin/env python3
"""Writes GGUF files for tools/real_models.sh.

    tools/write_gguf.py folder FOLDER OUT.gguf [--type bf16|f16|f32]
    tools/write_gguf.py random SHAPE OUT.gguf --vocabulary FILE.gguf [--type f16|q8_0]

    folder    a model folder of Hugging Face: llama architecture, SentencePiece (tokenizer.model), as the
              bundled models/pg-24m. As llama.cpp's converter does, which needs PyTorch: rows of Q and K go
              from halves to pairs, norms stay fp32, one shared table of embeddings is written once.
    random    a model of a well-known shape with random weights, for measurements of speed. Its tokens and
              merges are those of FILE.gguf, filled up with unused ones.

Needs the package gguf, and sentencepiece for a folder.
"""

import argparse
import json
import sys
from pathlib import Path

try:
    import gguf
    import numpy as np
except ImportError as error:
    sys.exit(f"write_gguf: {error}; tools/real_models.sh has an environment with what is needed")

SHAPES = {
    "qwen2.5-1.5b": {
        "architecture": "qwen2",
        "layers": 28,
        "hidden": 1536,
        "heads": 12,
        "kv_heads": 2,
        "head_dim": 128,
        "inner": 8960,
        "vocabulary": 151936,
        "context": 131072,
        "rope": 1e6,
        "eps": 1e-6,
        "biases": True,
        "tied": True,
    },
    "llama-3.1-8b": {
        "architecture": "llama",
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "inner": 14336,
        "vocabulary": 128256,
        "context": 131072,
        "rope": 5e5,
        "eps": 1e-5,
        "biases": False,
        "tied": False,
    },
    "llama-3.1-70b": {
        "architecture": "llama",
        "layers": 80,
        "hidden": 8192,
        "heads": 64,
        "kv_heads": 8,
        "head_dim": 128,
        "inner": 28672,
        "vocabulary": 128256,
        "context": 131072,
        "rope": 5e5,
        "eps": 1e-5,
        "biases": False,
        "tied": False,
    },
}
DRAWN = (1 << 17) + 1  # blocks; odd, so that rows differ
FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}  # general.file_type
FOLDER_TYPES = ["f32", "f16", "bf16"]
NAMES = {  # of Hugging Face's folders
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
SAFETENSORS = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}
BF16 = gguf.GGMLQuantizationType.BF16
Q8_0 = gguf.GGMLQuantizationType.Q8_0


def add_shape(writer, shape):
    writer.add_context_length(shape["context"])
    writer.add_embedding_length(shape["hidden"])
    writer.add_block_count(shape["layers"])
    writer.add_feed_forward_length(shape["inner"])
    writer.add_head_count(shape["heads"])
    writer.add_head_count_kv(shape["kv_heads"])
    writer.add_key_length(shape["head_dim"])
    writer.add_value_length(shape["head_dim"])
    writer.add_rope_freq_base(shape["rope"])
    writer.add_layer_norm_rms_eps(shape["eps"])
    writer.add_vocab_size(shape["vocabulary"])
    writer.add_rope_dimension_count(shape["head_dim"])


# ---- A folder ----


def read_safetensors(path):
    """Names and values, bf16 as uint16, in the file's order."""
    data = np.memmap(path, dtype=np.uint8, mode="r")
    head = 8 + int.from_bytes(data[:8].tobytes(), "little")
    for name, entry in json.loads(data[8:head].tobytes()).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        values = data[head + begin : head + end].view(SAFETENSORS[entry["dtype"]])
        yield name, values.reshape(entry["shape"])


def to_fp32(values):
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def from_fp32(values, name):
    if name == "f32":
        return values, None
    if name == "f16":
        return values.astype(np.float16), None
    return gguf.quants.quantize(values, BF16), BF16


def gguf_name(name):
    if name in NAMES:
        return NAMES[name]
    _, _, layer, rest = name.split(".", 3)  # model.layers.N.
    return f"blk.{layer}.{LAYER_NAMES[rest.removesuffix('.weight')]}.weight"


def to_pairs(values, heads):
    """Rows of a head from (first half, second half) to pairs, as `llama` files have them."""
    rows, columns = values.shape
    return values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def add_sentencepiece(writer, path, size):
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_file=str(path))
    if processor.vocab_size() != size:
        sys.exit(f"write_gguf: {path} has {processor.vocab_size()} pieces, config.json says {size}")
    kinds = gguf.TokenType
    tokens, scores, types = [], [], []
    for i in range(size):
        tokens.append(processor.id_to_piece(i))
        scores.append(processor.get_score(i))
        types.append(
            kinds.UNKNOWN if processor.is_unknown(i)
            else kinds.CONTROL if processor.is_control(i)
            else kinds.UNUSED if processor.is_unused(i)
            else kinds.BYTE if processor.is_byte(i)
            else kinds.NORMAL
        )
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    # NOTE: llama.cpp's converter writes this only of a tokenizer_config.json, and its readers add a space
    # where nothing is written.
    writer.add_add_space_prefix(processor.encode("a", out_type=str)[0].startswith("\u2581"))
    writer.add_add_bos_token(True)


def write_folder(options):
    config = json.loads((options.folder / "config.json").read_text())
    if config.get("model_type") != "llama":
        sys.exit(f"write_gguf: {options.folder} is of type {config.get('model_type')}, not llama")
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    writer = gguf.GGUFWriter(options.out, "llama")
    writer.add_name(options.folder.resolve().name)
    writer.add_file_type(FILE_TYPES[options.type])
    add_shape(writer, {
        "context": config["max_position_embeddings"],
        "hidden": hidden,
        "layers": config["num_hidden_layers"],
        "inner": config["intermediate_size"],
        "heads": heads,
        "kv_heads": kv_heads,
        "rope": config.get("rope_theta", 10000.0),
        "eps": config["rms_norm_eps"],
        "vocabulary": config["vocab_size"],
        "head_dim": config.get("head_dim", hidden // heads),
    })
    add_sentencepiece(writer, options.folder / "tokenizer.model", config["vocab_size"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    for name, values in read_safetensors(options.folder / "model.safetensors"):
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        values = to_fp32(values)
        if "q_proj" in name or "k_proj" in name:
            values = to_pairs(values, heads if "q_proj" in name else kv_heads)
        data, kind = (values, None) if values.ndim == 1 else from_fp32(values, options.type)
        writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# ---- A shape ----


def add_vocabulary(writer, path, size):
    fields = gguf.GGUFReader(path).fields

    def values(key):
        return fields[f"tokenizer.ggml.{key}"].contents()

    tokens, types = values("tokens"), values("token_type")
    if values("model") != "gpt2" or len(tokens) > size:
        sys.exit(f"write_gguf: {path} has no gpt2 vocabulary of {size} tokens or fewer")
    unused = range(len(tokens), size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(values("pre"))
    writer.add_token_list(tokens + [f"[PAD{i}]" for i in unused])
    writer.add_token_types(types + [int(gguf.TokenType.UNUSED) for _ in unused])
    writer.add_token_merges(values("merges"))
    writer.add_bos_token_id(values("bos_token_id"))
    writer.add_eos_token_id(values("eos_token_id"))
    writer.add_add_bos_token(False)


class RandomMatrices:
    """As trained ones are initialized: blocks of 32 values, of those that were drawn once."""

    def __init__(self, kind):
        self.draw = np.random.default_rng(1)
        self.drawn = self.draw.standard_normal((DRAWN, 32), dtype=np.float32)
        self.coded = gguf.quants.quantize(self.drawn, Q8_0) if kind == "q8_0" else None

    def row(self, columns):  # shape and type
        if self.coded is None:
            return (columns,), np.float16, None
        return (columns // 32 * self.coded.shape[1],), np.uint8, Q8_0

    def values(self, rows, columns):
        scale = columns**-0.5
        if self.coded is None:
            blocks = (self.drawn * scale).astype(np.float16)
        else:  # an fp16 scale and 32 codes
            scales = (self.coded[:, :2].copy().view(np.float16) * scale).astype(np.float16)
            blocks = np.concatenate([scales.view(np.uint8), self.coded[:, 2:]], axis=1)
        blocks = np.roll(blocks, int(self.draw.integers(DRAWN)), axis=0)
        return np.resize(blocks, (rows, columns // 32 * blocks.shape[1]))


def write_random(options):
    shape = SHAPES[options.shape]
    writer = gguf.GGUFWriter(options.out, shape["architecture"])
    writer.add_name(f"{options.shape}, random weights")
    writer.add_file_type(FILE_TYPES[options.type])
    add_shape(writer, shape)
    add_vocabulary(writer, options.vocabulary, shape["vocabulary"])
    matrices = RandomMatrices(options.type)
    makers = []  # of tensors, one after the other: a model may be larger than the memory

    def matrix(name, rows, columns):
        (width,), dtype, kind = matrices.row(columns)
        size = rows * width * np.dtype(dtype).itemsize
        writer.add_tensor_info(f"{name}.weight", (rows, width), np.dtype(dtype), size, kind)
        makers.append(lambda: matrices.values(rows, columns))

    def vector(name, size, value):
        values = np.full(size, value, dtype=np.float32)
        writer.add_tensor_info(name, values.shape, values.dtype, values.nbytes)
        makers.append(lambda: values)

    hidden, inner = shape["hidden"], shape["inner"]
    rows, kv_rows = shape["heads"] * shape["head_dim"], shape["kv_heads"] * shape["head_dim"]
    matrix("token_embd", shape["vocabulary"], hidden)
    for layer in range(shape["layers"]):
        name = f"blk.{layer}."
        vector(f"{name}attn_norm.weight", hidden, 1)
        vector(f"{name}ffn_norm.weight", hidden, 1)
        for part, size in [("q", rows), ("k", kv_rows), ("v", kv_rows)]:
            matrix(f"{name}attn_{part}", size, hidden)
            if shape["biases"]:
                vector(f"{name}attn_{part}.bias", size, 0)
        matrix(f"{name}attn_output", hidden, rows)
        matrix(f"{name}ffn_gate", inner, hidden)
        matrix(f"{name}ffn_up", inner, hidden)
        matrix(f"{name}ffn_down", hidden, inner)
    vector("output_norm.weight", hidden, 1)
    if not shape["tied"]:
        matrix("output", shape["vocabulary"], hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for make in makers:
        writer.write_tensor_data(make())
    writer.close()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    folder = commands.add_parser("folder", help="of a folder as from Hugging Face")
    folder.add_argument("folder", type=Path)
    folder.add_argument("out", type=Path)
    folder.add_argument("--type", choices=FOLDER_TYPES, default="bf16", help="of matrices (default: bf16)")
    folder.set_defaults(write=write_folder)
    random = commands.add_parser("random", help="of random weights")
    random.add_argument("shape", choices=SHAPES)
    random.add_argument("out", type=Path)
    random.add_argument("--vocabulary", type=Path, required=True, help="a GGUF file with a gpt2 vocabulary")
    random.add_argument("--type", choices=["f16", "q8_0"], default="f16", help="of matrices (default: f16)")
    random.set_defaults(write=write_random)
    options = parser.parse_args()
    options.write(options)


if __name__ == "__main__":
    main()
