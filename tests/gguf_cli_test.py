#!/usr/bin/env python3
"""End-to-end tests of a GGUF file with its tokenizer: the bundled model, written as one, does what its
folder does. Usage: gguf_cli_test.py BINARY [unittest arguments]. Standard library only.
"""

import json
import struct
import tempfile
from pathlib import Path

import cli_support
from cli_support import MODEL, PROMPT, CliTest, generate_json, quantspec

# Types of values, of tensors and of tokens, as GGUF numbers them.
UINT32, FLOAT32, BOOL, STRING, ARRAY, INT32 = 4, 6, 7, 8, 9, 5
F32, BF16 = 0, 30
ALIGNMENT = 32
# SentencePiece's types of pieces: normal, unknown, control, user defined, unused, byte. GGUF's are the same.
NAMES = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
OF_LAYER = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
            "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def fields(data):
    """Numbers and values of a protobuf message's fields."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(kind)
            if size is None:
                size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        yield key >> 3, value


def pieces():
    """Texts, scores and types of the tokenizer's pieces."""
    for number, message in fields((MODEL / "tokenizer.model").read_bytes()):
        if number == 1:
            piece = dict(fields(message))
            yield piece[1], struct.unpack("<f", piece.get(2, bytes(4)))[0], piece.get(3, 1)


def string(text):
    text = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(text)) + text


def value(kind, content):
    forms = {UINT32: "<I", FLOAT32: "<f", BOOL: "<?", INT32: "<i"}
    return string(content) if kind == STRING else struct.pack(forms[kind], content)


def entry(key, kind, content):
    return string(key) + struct.pack("<I", kind) + value(kind, content)


def list_entry(key, kind, contents):
    return (string(key) + struct.pack("<IIQ", ARRAY, kind, len(contents))
            + b"".join(value(kind, content) for content in contents))


def to_pairs(data, heads, rows):
    """Rows of a head from (first half, second half) to pairs, as `llama` files have them."""
    size, half = len(data) // rows, rows // heads // 2
    out = bytearray()
    for head in range(heads):
        for i in range(half):
            for part in (0, 1):
                row = (2 * head + part) * half + i
                out += data[row * size:(row + 1) * size]
    return bytes(out)


def tensors(config):
    """Names, shapes, types and bytes."""
    data = (MODEL / "model.safetensors").read_bytes()
    head = 8 + int.from_bytes(data[:8], "little")
    for name, about in json.loads(data[8:head]).items():
        if name == "__metadata__" or name == "lm_head.weight":
            continue
        begin, end = about["data_offsets"]
        content, kind = data[head + begin:head + end], BF16
        if "q_proj" in name or "k_proj" in name:
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            content = to_pairs(content, heads, about["shape"][0])
        if len(about["shape"]) == 1:  # norms are fp32
            content, kind = b"".join(b"\0\0" + content[i:i + 2] for i in range(0, len(content), 2)), F32
        if name not in NAMES:
            _, _, layer, rest = name.split(".", 3)
            name = f"blk.{layer}.{OF_LAYER[rest.removesuffix('.weight')]}.weight"
        yield NAMES.get(name, name), about["shape"], kind, content


def write_gguf(path):
    config = json.loads((MODEL / "config.json").read_text())
    texts, scores, types = zip(*pieces())
    numbers = {"context_length": "max_position_embeddings", "embedding_length": "hidden_size",
               "block_count": "num_hidden_layers", "feed_forward_length": "intermediate_size",
               "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
               "attention.key_length": "head_dim", "attention.value_length": "head_dim",
               "rope.dimension_count": "head_dim", "vocab_size": "vocab_size"}
    entries = [entry("general.architecture", STRING, "llama"), entry("general.name", STRING, "bundled")]
    entries += [entry(f"llama.{key}", UINT32, config[name]) for key, name in numbers.items()]
    entries += [entry("llama.rope.freq_base", FLOAT32, config["rope_theta"]),
                entry("llama.attention.layer_norm_rms_epsilon", FLOAT32, config["rms_norm_eps"]),
                entry("tokenizer.ggml.model", STRING, "llama"), entry("tokenizer.ggml.pre", STRING, "default"),
                list_entry("tokenizer.ggml.tokens", STRING, texts),
                list_entry("tokenizer.ggml.scores", FLOAT32, scores),
                list_entry("tokenizer.ggml.token_type", INT32, types),
                entry("tokenizer.ggml.bos_token_id", UINT32, config["bos_token_id"]),
                entry("tokenizer.ggml.eos_token_id", UINT32, config["eos_token_id"]),
                entry("tokenizer.ggml.add_bos_token", BOOL, True),
                entry("tokenizer.ggml.add_space_prefix", BOOL, True)]
    infos, contents, offset = b"", [], 0
    for name, shape, kind, content in tensors(config):
        infos += (string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
                  + struct.pack("<IQ", kind, offset))
        contents.append(content + bytes(-len(content) % ALIGNMENT))
        offset += len(contents[-1])
    head = b"GGUF" + struct.pack("<IQQ", 3, len(contents), len(entries)) + b"".join(entries) + infos
    path.write_bytes(head + bytes(-len(head) % ALIGNMENT) + b"".join(contents))


class AFile(CliTest):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.file = str(Path(cls.temporary.name) / "bundled.gguf")
        write_gguf(Path(cls.file))

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def test_has_the_tokens_of_its_folder(self):
        text = "  Don't — the 3rd café,\n\tat 10:45; \U0001f600 naïve\n"
        of_file, of_folder = (quantspec("tokenize", "-m", model, "-p", text) for model in (self.file, str(MODEL)))
        self.assertEqual(of_file.returncode, 0)
        self.assertEqual((of_file.stdout, of_file.stderr), (of_folder.stdout, of_folder.stderr))

    def test_writes_what_its_folder_does(self):
        for options in (["--temp", "0"], ["--temp", "1", "--seed", "3"]):
            of_file, of_folder = (generate_json("-m", model, "-p", PROMPT, "-n", "60", *options)
                                  for model in (self.file, str(MODEL)))
            self.assertEqual(of_file["tokens"], of_folder["tokens"])
            self.assertEqual(of_file["text"], of_folder["text"])

    def test_is_described_tensor_by_tensor(self):
        report = json.loads(quantspec("info", "--json", "-m", self.file).stdout)
        self.assertEqual((report["family"], report["num_layers"]), ("llama", 6))
        matrices = report["matrices"]
        self.assertGreater(len(matrices), 0)
        self.assertIn("bf16", json.dumps(matrices))
        text = quantspec("info", "-m", self.file).stdout.decode()
        self.assertIn("bf16", text)
        for line in text.splitlines():
            self.assertLessEqual(len(line), 80)

    def test_is_one_store_of_8_bits_where_that_is_asked_for(self):
        report = json.loads(quantspec("info", "--json", "-m", self.file, "--target-weights", "8").stdout)
        plan = report["plans"][0]
        self.assertEqual(plan["draft_weights_bytes"], 0)
        self.assertLess(plan["weights_bytes"], 27e6)


if __name__ == "__main__":
    cli_support.main(__doc__)
