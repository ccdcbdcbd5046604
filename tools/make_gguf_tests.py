#!/usr/bin/env python3
"""Writes tests/testdata/blocks.gguf: random blocks of every type, and what ggml's decoder makes of them.

    tools/make_gguf_tests.py            needs gguf and numpy (made with gguf 0.19)

A tensor of each type has every code, and scales that are awkward: zeros, negative and subnormal ones, the
largest. `values.NAME` has the FNV-1a hash, of 64 bits, of the fp32 values of each row. Other keys
have one value of each type of metadata, as the format's own library writes them.
"""

import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as Kind

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/testdata/blocks.gguf"
ROWS, COLS = 8, 512
# Of each type, where a block has fp16 numbers.
SCALES = {Type.Q8_0: [0], Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q2_K: [80, 82],
          Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208], Type.IQ4_NL: [0],
          Type.IQ4_XS: [0]}
# 0, -0, the least subnormals, the largest subnormal, the least normal, 1, -1, the largest.
AWKWARD = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x8400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF]


def blocks_of(kind, rng):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return rng.integers(0, 256, (ROWS * COLS // block, size), dtype=np.uint8)


def scaled_blocks(kind, rng):
    """Every second scale is awkward, and of a block's two they are not the same."""
    blocks = blocks_of(kind, rng)
    for number, at in enumerate(SCALES[kind]):
        scales = (rng.normal(0, 0.01, len(blocks))).astype(np.float16).view(np.uint16)
        scales[::2] = np.resize(np.roll(AWKWARD, 3 * number), len(scales[::2]))
        blocks[:, at:at + 2] = scales.astype("<u2").view(np.uint8).reshape(-1, 2)
    return blocks


def mxfp4_blocks(least, rng):
    """Scales from 2^(least - 128) on, as far apart as they may be, and one block of zeros."""
    blocks = blocks_of(Type.MXFP4, rng)
    blocks[:, 0] = least + rng.integers(0, 40, len(blocks))
    blocks[:2, 0] = least, least + 39
    blocks[2] = 0
    blocks[3, 0], blocks[3, 1:] = 254, 0x80
    return blocks


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def add_blocks(writer, name, kind, blocks):
    rows = blocks.reshape(ROWS, -1)
    values = gguf.quants.dequantize(rows, kind).astype("<f4")
    assert values.shape == (ROWS, COLS) and np.isfinite(values).all()
    writer.add_key_value(f"values.{name}", [f"{fnv1a(row.tobytes()):016x}" for row in values], Kind.ARRAY,
                         Kind.STRING)
    writer.add_tensor(name, rows, raw_dtype=kind)


def add_metadata(writer):
    numbers = {Kind.UINT8: 200, Kind.INT8: -100, Kind.UINT16: 60000, Kind.INT16: -30000, Kind.UINT32: 4000000000,
               Kind.INT32: -2000000000, Kind.UINT64: 1 << 62, Kind.INT64: -(1 << 62), Kind.FLOAT32: 0.375,
               Kind.FLOAT64: 0.1, Kind.BOOL: True, Kind.STRING: "caf\u00e9"}
    for kind, value in numbers.items():
        writer.add_key_value(f"test.{kind.name.lower()}", value, kind)
        writer.add_key_value(f"test.{kind.name.lower()}s", [value] * 3, Kind.ARRAY, kind)


def main():
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(OUT, "test")
    writer.add_custom_alignment(64)
    add_metadata(writer)
    for kind in SCALES:
        add_blocks(writer, kind.name, kind, scaled_blocks(kind, rng))
    add_blocks(writer, "MXFP4.small", Type.MXFP4, mxfp4_blocks(0, rng))
    add_blocks(writer, "MXFP4.usual", Type.MXFP4, mxfp4_blocks(100, rng))
    add_blocks(writer, "MXFP4.large", Type.MXFP4, mxfp4_blocks(213, rng))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{OUT}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
