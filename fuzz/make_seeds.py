#!/usr/bin/env python3
"""Writes inputs of the fuzz targets into a folder: fuzz/make_seeds.py FOLDER

FOLDER/small/TARGET/  what a target mutates: one of everything that its format can say.
FOLDER/large/TARGET/  what a target runs once: so large that more than linear time shows. Nothing of
                      this is kept in the repository.
"""
import gzip
import json
import pathlib
import struct
import sys

CUT = b"\n=====\n"  # fuzz/fuzz_input.h
ROOT = pathlib.Path(__file__).resolve().parent.parent
LETTERS = b"a" * 100_000


def dump(value):
    return json.dumps(value, ensure_ascii=False).encode()


# --- safetensors ---------------------------------------------------------------------------------


def header_and_data(tensors):
    """Of (name, shape) in BF16: the number of bytes of data and the header."""
    header, at = {}, 0
    for name, shape in tensors:
        size = 2
        for dim in shape:
            size *= dim
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return b"%d\n%s" % (at, dump(header))


def tensors_of_small_config():
    """What the model of fuzz_safetensors.cc reads."""
    layer = "model.layers.0."
    matrices = {"self_attn.q_proj": [16, 16], "self_attn.k_proj": [16, 16],
                "self_attn.v_proj": [16, 16], "self_attn.o_proj": [16, 16],
                "mlp.gate_proj": [32, 16], "mlp.up_proj": [32, 16], "mlp.down_proj": [16, 32]}
    norms = ["input_layernorm", "post_attention_layernorm"]
    return ([("model.embed_tokens.weight", [24, 16]), ("model.norm.weight", [16])] +
            [(f"{layer}{name}.weight", shape) for name, shape in matrices.items()] +
            [(f"{layer}{name}.weight", [16]) for name in norms])


def safetensors():
    tensors = tensors_of_small_config()
    head = ("lm_head.weight", [24, 16])
    yield "small", "one-file", header_and_data(tensors)
    yield "small", "head", header_and_data(tensors + [head])
    shards = [tensors[:5], tensors[5:] + [("model.layers.0.rotary_emb.inv_freq", [8])]]
    index = {"metadata": {"total_size": 1},
             "weight_map": {name: f"{i + 1}.safetensors" for i in range(2) for name, _ in shards[i]}}
    yield "small", "shards", CUT.join([dump(index)] + [header_and_data(s) for s in shards])
    many = [(f"model.layers.{i}.mlp.up_proj.weight", [1]) for i in range(20_000)]
    yield "large", "tensors", header_and_data(many)
    index["weight_map"] = {name: "1.safetensors" for name, _ in many}
    yield "large", "shards", CUT.join([dump(index), header_and_data(many), header_and_data([])])
    index["weight_map"] = {name: f"{i}.safetensors" for i, (name, _) in enumerate(many)}
    yield "large", "files", CUT.join([dump(index), header_and_data(many[:1])])


# --- GGUF ----------------------------------------------------------------------------------------


GGUF_SCALARS = "BbHhIif?"  # types 0 to 7; 8 is a text and 9 an array
# Weights and bytes of a block.
GGUF_TYPES = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
              10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 16: (256, 66), 20: (32, 18),
              23: (256, 136), 30: (1, 2), 39: (32, 17)}


def gguf_text(text):
    return struct.pack("<Q", len(text)) + text


def gguf_array(kind, count, elements):
    return struct.pack("<IIQ", 9, kind, count) + elements


def gguf_split(number, count, tensors):
    """The keys of a part."""
    return [(b"split." + name, struct.pack("<IH", 2, value))
            for name, value in ((b"no", number), (b"count", count), (b"tensors.count", tensors))]


def gguf(keys, tensors):
    """Of (key, type and value) and (name, type, shape): the number of bytes of data and the header."""
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys))
    header += b"".join(gguf_text(key) + value for key, value in keys)
    at, entries = 0, []
    for name, kind, shape in tensors:
        block, size = GGUF_TYPES[kind]
        for dim in shape:
            size *= dim
        entries.append(gguf_text(name) + struct.pack(f"<I{len(shape)}qIQ", len(shape), *shape, kind, at))
        at += (size // block + 31) // 32 * 32
    header += b"".join(entries)
    return b"%d\n%s" % (at, header + bytes(-len(header) % 32))


def gguf_seeds():
    keys = [(b"general.architecture", struct.pack("<I", 8) + gguf_text(b"llama")),
            (b"general.alignment", struct.pack("<II", 4, 32)),
            (b"texts", gguf_array(8, 3, gguf_text(b"a") + gguf_text(b"") + gguf_text("caf\u00e9".encode())))]
    for kind, letter in [*enumerate(GGUF_SCALARS), *zip((10, 11, 12), "Qqd")]:
        keys.append((b"one %d" % kind, struct.pack(f"<I{letter}", kind, 1)))
        keys.append((b"two %d" % kind, gguf_array(kind, 2, struct.pack(f"<2{letter}", 1, 0))))
    tensors = [(b"blk.0.%d" % kind, kind, [256, 2]) for kind in GGUF_TYPES]
    yield "small", "everything", gguf(keys, tensors)
    for tensor in tensors:
        yield "small", tensor[0].decode(), gguf([], [tensor])
    yield "small", "dimensions", gguf([], [(b"w", 0, [2, 3, 2, 1]), (b"v", 8, [32])])
    yield "small", "parts", CUT.join(gguf(gguf_split(i, 3, 3), [(b"w%d" % i, 0, [4])]) for i in range(3))
    yield "small", "no tensors first", CUT.join([gguf(gguf_split(0, 2, 1), []),
                                                 gguf(gguf_split(1, 2, 1), [(b"w", 0, [4])])])
    yield "large", "tensors", gguf([], [(b"blk.%d" % i, 0, [1]) for i in range(60_000)])
    yield "large", "keys", gguf([(b"key %d" % i, struct.pack("<IB", 0, 1)) for i in range(60_000)], [])
    yield "large", "texts", gguf([(b"k", gguf_array(8, 1_000_000, gguf_text(b"a") * 1_000_000))], [])
    yield "large", "arrays", gguf([(b"key %d" % i, gguf_array(8, 1000, gguf_text(b"") * 1000))
                                   for i in range(1000)], [])
    yield "large", "name", gguf([(b"k" * 65_535, struct.pack("<I", 8) + gguf_text(LETTERS))] * 2, [])
    yield "large", "blocks", gguf([], [(b"%d" % kind, kind, [256, 400]) for kind in GGUF_TYPES])


def gguf_model(architecture, pieces=24, kind=8, more=()):
    """Keys and tensors of a model of one layer."""
    def number(key, value):
        return (architecture + b"." + key, struct.pack("<II", 4, value))

    def text(key, value):
        return (key, struct.pack("<I", 8) + gguf_text(value))

    def ggml(key, entry):
        return (b"tokenizer.ggml." + key, entry)

    tokens = [b"<unk>", b"<s>", b"</s>", "\u2581a".encode(), b"a", b"b"] + [b"%d" % i for i in range(6, pieces)]
    keys = [text(b"general.architecture", architecture), number(b"context_length", 128),
            number(b"embedding_length", 64), number(b"block_count", 1), number(b"feed_forward_length", 96),
            number(b"attention.head_count", 2), number(b"attention.head_count_kv", 1),
            (architecture + b".rope.freq_base", struct.pack("<If", 6, 10000)),
            (architecture + b".attention.layer_norm_rms_epsilon", struct.pack("<If", 6, 1e-5)),
            text(b"tokenizer.ggml.model", b"llama"), text(b"tokenizer.chat_template", b"{{ messages[0].content }}"),
            ggml(b"tokens", gguf_array(8, pieces, b"".join(map(gguf_text, tokens)))),
            ggml(b"scores", gguf_array(6, pieces, struct.pack(f"<{pieces}f", *range(0, -pieces, -1)))),
            ggml(b"token_type", gguf_array(5, pieces, struct.pack(f"<{pieces}i", 2, 3, 3, *[1] * (pieces - 3)))),
            ggml(b"bos_token_id", struct.pack("<II", 4, 1)), ggml(b"eos_token_id", struct.pack("<II", 4, 2))]
    keys = list((dict(keys) | dict(number(key, value) for key, value in more)).items())
    matrices = {b"attn_q": [64, 64], b"attn_k": [64, 32], b"attn_v": [64, 32], b"attn_output": [64, 64],
                b"ffn_gate": [64, 96], b"ffn_up": [64, 96], b"ffn_down": [96, 64]}
    tensors = [(b"token_embd.weight", kind, [64, pieces]), (b"output_norm.weight", 0, [64])]
    tensors += [(b"blk.0.%s.weight" % name, kind, shape) for name, shape in matrices.items()]
    tensors += [(b"blk.0.%s.weight" % name, 0, [64]) for name in (b"attn_norm", b"ffn_norm")]
    return gguf(keys, tensors)


def gguf_model_seeds():
    for kind in (0, 1, 2, 8, 30):
        yield "small", f"llama {kind}", gguf_model(b"llama", kind=kind)
    yield "small", "qwen3 without norms", gguf_model(b"qwen3", more=[(b"attention.key_length", 32), (b"vocab_size", 24)])
    yield "large", "layers", gguf_model(b"llama", more=[(b"block_count", 1 << 31)])
    yield "large", "tokens", gguf_model(b"llama", pieces=30_000)


# --- tokenizers ----------------------------------------------------------------------------------


VOCABULARY = {"a": 0, "b": 1, "ab": 2, "\u0120": 3, "<unk>": 4}


def tokenizer_json(**parts):
    return {"added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None,
            "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": VOCABULARY, "merges": ["a b"],
                      "unk_token": "<unk>"}} | parts


def steps(list_key, step, count):
    return {"type": "Sequence", list_key: [step] * count}


def replace(old, new):
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def added(contents, **flags):
    return [{"id": VOCABULARY.get(content, 5 + i), "content": content, "special": i % 2 == 0,
             "normalized": False} | flags for i, content in enumerate(contents)]


def folder(tokenizer, config=None, added_tokens=None, text=b"a ab<1>  b bb abb"):
    return CUT.join([dump(tokenizer), dump(config) if config else b"",
                     dump(added_tokens) if added_tokens else b"", text])


def tokenizer_json_seeds():
    everything = tokenizer_json(
        added_tokens=added(["<1>", " ", "\n\n"], lstrip=True) +
        [{"id": 8, "content": "bb", "single_word": True, "rstrip": True, "normalized": True}],
        normalizer={"type": "Sequence", "normalizers": [
            {"type": "NFKD"}, {"type": "Prepend", "prepend": "\u2581"}, replace(" ", "\u2581")]},
        pre_tokenizer={"type": "Sequence", "pretokenizers": [
            split(r"(?i:'s|'t)|[^\r\n\p{L}]?\p{L}+|\s*[\r\n]+|\s+(?!\S)|\s+"),
            {"type": "Digits", "individual_digits": True},
            {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first"},
            {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}]},
        post_processor={"type": "TemplateProcessing",
                        "single": [{"SpecialToken": {"id": "<1>"}}, {"Sequence": {"id": "A"}}],
                        "special_tokens": {"<1>": {"id": "<1>", "ids": [5]}}},
        decoder={"type": "Sequence", "decoders": [
            replace("\u2581", " "), {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})
    config = {"add_bos_token": True, "bos_token": "<1>", "eos_token": {"content": "b"},
              "legacy": False,
              "added_tokens_decoder": {"9": {"content": "<2>", "lstrip": True, "special": True}}}
    yield "small", "everything", folder(everything, config, {"<3>": 10, "<2>": 9})
    yield "small", "plain", folder(tokenizer_json())
    for name, parts in {
        "replace": {"normalizer": steps("normalizers", replace("a", "aa"), 40)},
        "bytes": {"pre_tokenizer": steps("pretokenizers", {
            "type": "ByteLevel", "add_prefix_space": True, "use_regex": False}, 40)},
        "metaspace": {"pre_tokenizer": {"type": "Metaspace", "replacement": "a" * 1000}},
        "nested": {"pre_tokenizer": split("(a+)+[bc]")},
        "possessive": {"pre_tokenizer": split("a++[bc]")},
        "many stars": {"pre_tokenizer": split("a*a*a*a*[bc]")},
        "many splits": {"pre_tokenizer": steps("pretokenizers", split("a"), 60)},
        "long token": {"added_tokens": added(["a" * 100_000 + "b", "a"])},
        "stripping": {"added_tokens": added(["a", " "], rstrip=True, lstrip=True)},
    }.items():
        yield "large", name, folder(tokenizer_json(**parts), text=LETTERS)
        yield "large", name + " spaces", folder(tokenizer_json(**parts), text=b" " * 100_000)
    many = [f"<{i}>" for i in range(20_000)]
    file = {name: 5 + i for i, name in enumerate(many)}
    table = {str(5 + i): {"content": name} for i, name in enumerate(many)}
    yield "large", "many tokens", folder(
        tokenizer_json(added_tokens=added(many)), {"added_tokens_decoder": table}, file,
        "".join(many).encode())
    vocab = {"a" * (i + 1): i for i in range(600)}
    merges = [["a" * i, "a" * j] for i in range(1, 300) for j in range(1, 200)]
    model = {"type": "BPE", "vocab": vocab, "merges": merges}
    yield "large", "many merges", folder(tokenizer_json(model=model), text=LETTERS)
    ids = {"s" * 5000: {"ids": [0] * 20_000}}
    yield "large", "template", folder(tokenizer_json(post_processor={
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "s" * 5000}}] * 100 + [{"Sequence": {"id": "A"}}],
        "special_tokens": ids}))


def varint(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number, content):
    return varint(number * 8 + 2) + varint(len(content)) + content


def integer(number, value):
    return varint(number * 8) + varint(value)


def piece(text, kind=1, score=0.0, more=b""):
    return field(1, field(1, text) + b"\x15" + struct.pack("<f", score) + integer(3, kind) + more)


def sentencepiece(pieces, model_type, normalizer=b"", trainer=b""):
    return (piece(b"<unk>", 2) + piece(b"<s>", 3) + piece("\u2581".encode()) + b"".join(pieces) +
            field(2, integer(3, model_type) + trainer) + field(3, normalizer))


def charsmap(length, loop, result):
    """A table in which up to `length` a's, the last one again if `loop`, become `result`."""
    value = 1 << 31
    units = [value] * (256 * (length + 2))
    at = [0] + [256 * n ^ ord("a") for n in range(1, length + 1)]
    for n in range(length + 1):
        children = 256 * (n if loop and n == length else n + 1)
        leaf = n == length and not loop
        units[at[n]] = (ord("a") if n else 0) | leaf << 8 | (at[n] ^ children) << 10
    trie = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(trie)) + trie + result + b"\0"


def tokenizer_model_seeds():
    letters = [piece(b"a", 1, -1), piece(b"b", 4), piece(b"aa", 1, -2), piece(b"ab", 5, -3)]
    byte_pieces = [piece(b"<0x%02X>" % byte, 6) for byte in range(256)]
    config = dump({"add_bos_token": False, "added_tokens_decoder": {"2": {"content": "<x>"}}})
    for model_type, name in enumerate(["unigram", "bpe", "word", "char"], 1):
        yield "small", name, sentencepiece(letters, model_type)
        yield "small", name + " bytes", CUT.join([config, dump({"<y>": 300}), b"a <x>b\xC3\xA9ab",
            sentencepiece(letters + byte_pieces, model_type, trainer=integer(35, 1))])
        yield "large", name, CUT.join([b"", b"", LETTERS, sentencepiece([piece(b"b")], model_type)])
        yield "large", name + " pieces", sentencepiece(
            [piece(b"p%d" % i) for i in range(20_000)], model_type)
        for nested, more in {"nested": b"", "nested no type": integer(3, 99)}.items():
            pieces = [piece(b"a" * i, 4, more=more) for i in range(1, 400)]
            yield "large", f"{name} {nested}", CUT.join(
                [b"", b"", LETTERS, sentencepiece(pieces, model_type)])
        long = [piece(b"a" * 500 + b"b", kind) for kind in (1, 4)]
        yield "large", name + " long", CUT.join([b"", b"", LETTERS, sentencepiece(long[:1], model_type)])
        yield "large", name + " long symbol", CUT.join(
            [b"", b"", LETTERS, sentencepiece(long[1:], model_type)])
    yield "small", "rules", sentencepiece(letters, 1, field(2, charsmap(2, False, b"b")))
    for name, table in {"loop": charsmap(1, True, b"b"), "long rule": charsmap(150, False, b"b"),
                        "long result": charsmap(1, False, b"b" * 16)}.items():
        yield "large", name, CUT.join([b"", b"", LETTERS, sentencepiece(letters, 1, field(2, table))])
    tokens = dump({f"<{i}>": 1000 + i for i in range(20_000)})
    yield "large", "added", CUT.join([b"", tokens, b"<7>" * 50_000, sentencepiece(letters, 1)])


def vocabulary(lines, text=b""):
    return b"\n".join(lines) + (CUT + text if text else b"")


def vocabulary_seeds():
    head = [b"token 2 0 <unk>", b"token 3 0 <s>", b"token 3 0 <|im_end|>", b"token 4 0   ",
            b"token 1 -1 a", b"token 1 -2 b", b"token 1 -3 ab", "token 1 -4 \u2581a".encode(),
            b"token 5 0 [PAD]", b"token 3 0 "]
    llama = [b"model llama", b"bos 1", b"eos 2", *head]
    gpt2 = [b"model gpt2", b"bos 1", b"add_bos 1", *head, b"merge a b"]
    yield "small", "llama", vocabulary(llama)
    yield "small", "llama bytes", vocabulary(
        llama + [b"bytes", b"name phi-3", b"add_space_prefix 0", b"unknown 0"], b"a <s> b<|im_end|>")
    for pre in (b"llama-bpe", b"qwen35", b"smollm", b"gpt-4o", b"deepseek-llm", b"deepseek-v3"):
        yield "small", "gpt2 " + pre.decode(), vocabulary(
            gpt2 + [b"pre " + pre], "ab<s> ABab's 123 \u00e9e\u0301 \u6f22 \n".encode())
        for name, text in {"letters": LETTERS, "capitals": b"A" * 100_000, "spaces": b" " * 100_000,
                           "marks": "\u0301".encode() * 50_000, "digits": b"1" * 100_000,
                           "signs": b"!/" * 50_000, "lines": b" \n" * 50_000}.items():
            yield "large", f"{name} {pre.decode()}", vocabulary(gpt2 + [b"pre " + pre], text)
    many = [b"token %d 0 <%d>" % (3 + i % 2, i) for i in range(20_000)]
    yield "large", "llama tokens", vocabulary(llama + many, b"<7>" * 50_000)
    yield "large", "gpt2 tokens", vocabulary(gpt2 + [b"pre qwen2", *many], b"<7>" * 50_000)
    nested = [b"token 4 0 " + b"a" * i for i in range(2, 400)]
    yield "large", "llama nested", vocabulary(llama + nested, LETTERS)
    words = [b"token 1 0 " + b"a" * i for i in range(2, 300)]
    merges = [b"merge %s %s" % (b"a" * i, b"a" * j) for i in range(1, 200) for j in range(1, 100)]
    yield "large", "gpt2 merges", vocabulary(gpt2 + [b"pre qwen2", *words, *merges], LETTERS)


# --- the others ----------------------------------------------------------------------------------


def draft_store(count, group=64, lower=False):
    """`count` matrices of one row: its scale and offset, in groups of 32 those of its two groups, its
    upper plane and perhaps its lower one."""
    size = 4 + (4 if group == 32 else 0) + 32 * (2 if lower else 1)

    def header(begin):
        matrices = []
        at = begin
        for i in range(count):
            at = (at + 63) // 64 * 64
            matrices.append({"name": f"model.layers.{i}.mlp.up_proj.weight", "rows": 1, "cols": 64,
                             "lower": lower, "offset": at})
            at += size
        return dump({"method": "rtn", "calibration": "", "calibration_tokens": 0, "group": group,
                     "checkpoint": "0123456789abcdef", "matrices": matrices}), at

    begin, end = 24, 0
    for _ in range(4):  # offsets, and so the header, grow with its length
        text, end = header(begin)
        begin = 24 + len(text)
    return b"%d\n%s" % (end - begin, text)


def draft_store_seeds():
    yield "small", "one", draft_store(1) + CUT + b"\x00\x2C"
    yield "small", "two", draft_store(2, lower=True) + CUT + b"\x01"
    yield "small", "two levels", draft_store(2, 32, lower=True) + CUT + b"\x01\x2C"
    yield "small", "not finite", draft_store(1) + CUT + b"\xFF"
    yield "large", "many", draft_store(20_000)
    yield "large", "too many", draft_store(30_000)


def session_seeds():
    for name, numbers in (("bare", (0, 0, 0, 0, 0, 0)), ("small", (4, 40, 2, 1000, 32, 300)),
                          ("no tail", (4, 3, 1, 1, 0, 0)), ("large", (4, 1 << 27, 1 << 20, 1 << 40, 5, 7)),
                          ("overflow", (4, 1, 1 << 27, 1 << 43, 1, 1 << 63))):
        yield "small", name, struct.pack("<6Q", *numbers) + b"note"
    yield "large", "note", struct.pack("<6Q", 1_000_000, 1, 0, 0, 0, 0) + b"n" * 1_000_000


def plan_file_seeds():
    layers = [{"layer": 0, "run": False}, {"layer": 1, "weights": 8, "kv": "both", "pages": "bounds",
                                           "budget": 1024}, {"layer": 2, "kv": "full"}]
    yield "small", "layers", dump({"name": "a plan", "default": {"weights": 4, "pages": "mass"},
                                   "head": {"weights": 16}, "layers": layers,
                                   "target_full_layers": [2]})
    yield "small", "default", dump({"default": {"weights": 16, "kv": "upper", "pages": "mass",
                                               "budget": "1/8"}})
    yield "large", "layers", dump({"layers": [{"layer": i} for i in range(100_000)]})
    yield "large", "full layers", dump({"target_full_layers": [i % 40 for i in range(100_000)]})


def trace_seeds():
    request = {"arrival_ms": 1.5, "prompt_tokens": 9, "output_tokens": 3}
    shared = {**request, "shared_prefix": {"id": "a", "tokens": 5}, "owner": "b"}
    yield "small", "requests", b"\n".join(map(dump, [request, shared])) + b"\r\n\n"
    yield "large", "requests", (dump(shared) + b"\n") * 50_000
    yield "large", "too many", (dump(request) + b"\n") * 110_000
    yield "large", "lines", b"\n" * 1_000_000
    yield "large", "arrivals", b"\n".join(dump({**request, "arrival_ms": i * 7919 % 50_000})
                                          for i in range(50_000))


def dataset_seeds():
    book = (b"\xEF\xBB\xBFfront\r\n*** START OF THE PROJECT GUTENBERG EBOOK A\nB ***\r\n\r\nabb ab a\r\n" +
            b"ab abb " * 40 + b"\n*** END OF THE PROJECT GUTENBERG EBOOK ***\n")
    record = {"text": "ab abb a " * 20, "context": "ab abb " * 20, "sources": ["ab", "abb a"]}
    lines = dump(record) + b"\n\n" + dump(record) + b"\n"
    array = b"[" + dump(record) + b", " + dump(record) + b"]"
    for kind in range(7):
        yield "small", f"book {kind}", bytes([kind]) + book
        yield "small", f"lines {kind}", bytes([kind]) + lines
        yield "small", f"array {kind}", bytes([kind]) + array
    packed = gzip.compress(book, mtime=0)
    yield "small", "book 7", b"\x07" + packed + packed + b"\0" * 9
    yield "small", "lines 8", b"\x08" + gzip.compress(lines, mtime=0)
    small = dump({"text": "ab"})
    yield "large", "lines", b"\x02" + (small + b"\n") * 20_000
    yield "large", "array", b"\x02[" + b",".join([small] * 20_000) + b"]"
    yield "large", "strings", b"\x04" + dump({"sources": ["a"] * 20_000})
    yield "large", "stars", b"\x00" + b"***\n" * 100_000 + b"*** " * 100_000
    yield "large", "bomb", b"\x07" + gzip.compress(b"a" * 150_000_000, mtime=0)
    yield "large", "members", b"\x07" + gzip.compress(b"a" * 250_000, mtime=0) * 500
    yield "large", "empty members", b"\x07" + gzip.compress(b"", mtime=0) * 50_000


def stop_string_seeds():
    yield "small", "overlaps", CUT.join([b"abab\nb\n\naab", b"aabababaabxaab", b"\x01\x03\x02"])
    yield "small", "characters", CUT.join(["\u00e9nd\n###".encode(), "caf\u00e9n ##\u00e9nd".encode()])


def stream_decoder_seeds():
    ids = b"".join(struct.pack(">H", i) for i in list(range(0, 300, 7)) * 2)
    for tokenizer in range(8):
        yield "small", f"ids {tokenizer}", bytes([tokenizer, 5]) + ids
    yield "large", "ids", b"\x07\x05" + ids * 1000


def json_seeds():
    yield "small", "everything", dump({
        "a": [1, -2, 2.5e-3, 1e300, 18446744073709551615, True, False, None, "\u00e9\n\"\\\x7f", {}, []]})
    yield "small", "escapes", rb'["\u00e9\ud83d\ude00\/\b\f\n\r\t", "\ud800", 1E5, -0, -0.0]'
    yield "small", "mistakes", b'{"a": 1, "a": [01, +1, .5, 1., nul, "\t"]} //'
    tensor = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    yield "large", "members", dump({f"tensor {i}": tensor for i in range(20_000)})
    yield "large", "elements", dump([tensor] * 20_000)
    yield "large", "strings", dump(["a" * 1000] * 1000)
    yield "large", "deep", b"[" * 1_000_000
    yield "large", "deep objects", b'{"a":' * 200_000
    yield "large", "shallow", b"[" + b"[[[[[[]]]]]]," * 50_000 + b"1]"


def chat_seeds():
    """Of small templates of the tests those of one construct at a time."""
    constructs = {}
    for line in (ROOT / "tests/testdata/chat/snippets.txt").read_text().split("\n"):
        if line.startswith("## "):
            templates = constructs.setdefault(line[3:].replace(" ", "-"), [])
        elif line and "\u23ce" not in line:
            templates.append(line)
    constructs.pop("errors-of-syntax")
    for construct, templates in constructs.items():
        yield "small", construct, "\n".join(templates).encode()
        for number, template in enumerate(templates):
            yield "small", f"{construct}-{number}", template.encode()
    yield "small", "variables", b"{{ a.b }}" + CUT + dump({"a": {"b": [1, "x", None, 1e-7]}, "named": {"default": "y"}})
    yield "large", "tags", b"{% if a %}x{% endif %}\n" * 40_000
    yield "large", "raw", b"{%- raw %}{% {{ {% endraw -%}  \n" * 30_000
    yield "large", "comments", b"{#- a -#}   \n" * 70_000
    yield "large", "filters of filters", b"{{ 'a' | map(*(['map'] * 300000)) }}"
    yield "large", "filters of arguments", (b"{% set t = [0] * 60000 %}"
                                            b"{{ (['a'] * 50000) | map('first', *t) | list | length }}")
    yield "large", "affixes", (b"{% set t = ('x',) * 300000 %}"
                               b"{% for i in range(1000) %}{{ 'a'.startswith(t) }}{{ 'a'.endswith(t) }}{% endfor %}")
    yield "large", "sum", b"{{ 0" + b" + 1" * 200_000 + b" }}"
    yield "large", "list", b"{{ [" + b"1," * 400_000 + b"] }}"
    yield "large", "dict", b"{{ {" + b",".join(b"%d:1" % i for i in range(100_000)) + b"} }}"
    yield "large", "deep", b"{{ " + b"(" * 1_000_000
    yield "large", "names", b"".join(b"{%% set a%d = 1 %%}" % i for i in range(40_000))
    yield "large", "macro", (b"{% macro f() %}" + b"".join(b"{%% set a%d = 1 %%}" % i for i in range(40_000))
                             + b"{% endmacro %}{% for i in range(100) %}{{ f() }}{% endfor %}")
    yield "large", "texts", (b"{% set s = 'ab' * 500000 %}{% for i in range(10000) %}{{ (s.split('b') | length) + "
                             b"s.count('ba') + s.rfind('aab') + (s | upper | length) + s.strip('ab') | length }}{% endfor %}")
    yield "large", "variables", b"{{ a | tojson }}" + CUT + dump({"a": [{"b": LETTERS.decode()}] * 40})


def text_seeds():
    yield "small", "characters", "caf\u00e9 \u202e\u2028\x1b[2J\n\t\"\\ \U0001F600".encode()
    yield "small", "broken", b"\xC3\xE2\x82\xF0\x9F\x98\xED\xA0\x80\xC0\x80\xFF\x9B\x00"
    yield "large", "escapes", b"\x1b" * 500_000
    yield "large", "continuations", b"a" + b"\x80" * 500_000


def http_seeds():
    head = b"POST /v1/a%20b?c=%C3%A9+d&e HTTP/1.1\r\nHost: a:80\r\nConnection: keep-alive\r\n"
    chunks = b"5;x=\"y\"\r\nhello\r\n0\r\nX: trailer\r\n\r\n"
    chunked = head + b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n" + chunks
    plain = head + b"Content-Length: 5\r\n\r\nhello"
    yield "small", "requests", b"\x05" + chunked + plain + b"\r\nGET / HTTP/1.0\r\n\r\n"
    yield "small", "refused", b"\x01" + head + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    yield "small", "refused twice", b"\x04" + head + b"a\rb: c\r\n" + LETTERS[:1_000]
    yield "large", "byte by byte", b"\x00" + head + b"Content-Length: 60000\r\n\r\n" + LETTERS[:60_000]
    yield "large", "chunks", (b"\x00" + head + b"Transfer-Encoding: chunked\r\n\r\n" +
                              b"1\r\na\r\n" * 60_000 + b"0\r\n\r\n")
    yield "large", "lines", b"\x00" + b"\r\n" * 200_000 + plain


def request_body_seeds():
    chat = [{"role": "developer", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
            {"role": "tool", "content": "42", "tool_call_id": "1"}]
    how = {"max_tokens": 5, "n": 2, "seed": 7, "temperature": 0.5, "top_k": -1, "stop": ["a", "b"],
           "stop_token_ids": [1], "stream": True, "stream_options": {"include_usage": True},
           "draft_len": "auto", "spec_sampling": "coupled", "logit_bias": {}, "min_tokens": 0,
           "response_format": {"type": "text"}, "unknown": None}
    yield "small", "chat", dump({"messages": chat, "logprobs": True, "top_logprobs": 0,
                                 "chat_template_kwargs": {"enable_thinking": False}, **how})
    for i, prompt in enumerate(["Hi", ["Hi", "Ho"], [1, 2], [[1, 2], [3]], ["Hi", 1], [["a", 1], "b"]]):
        yield "small", f"text {i}", dump({"prompt": prompt, "echo": True, "best_of": 2, **how})
    yield "small", "tokens", dump({"content": "Hi", "with_pieces": True, "add_special": False})
    yield "small", "ids", dump({"tokens": [1, 2, 3]})
    yield "large", "deep", b"[" * 1_000_000
    yield "large", "ids", dump({"prompt": [7] * 200_000, "tokens": [7] * 200_000})
    yield "large", "keys", dump({f"key {i}": {} for i in range(90_000)})
    yield "large", "messages", dump({"messages": chat[:2] * 10_000})


TARGETS = {
    "fuzz_safetensors": safetensors, "fuzz_gguf": gguf_seeds, "fuzz_gguf_model": gguf_model_seeds,
    "fuzz_tokenizer_json": tokenizer_json_seeds,
    "fuzz_tokenizer_model": tokenizer_model_seeds, "fuzz_vocabulary": vocabulary_seeds,
    "fuzz_draft_store": draft_store_seeds, "fuzz_plan_file": plan_file_seeds,
    "fuzz_datasets": dataset_seeds, "fuzz_stop_strings": stop_string_seeds,
    "fuzz_stream_decoder": stream_decoder_seeds, "fuzz_json": json_seeds, "fuzz_text": text_seeds,
    "fuzz_trace": trace_seeds, "fuzz_http": http_seeds, "fuzz_chat": chat_seeds,
    "fuzz_request_body": request_body_seeds, "fuzz_session_file": session_seeds,
}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for target, seeds in TARGETS.items():
        for size, name, content in seeds():
            path = pathlib.Path(sys.argv[1]) / size / target / name.replace(" ", "-")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


if __name__ == "__main__":
    main()
