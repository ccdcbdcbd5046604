#!/usr/bin/env python3
"""Makes tests/testdata/tokenizer: small tokenizers and what their own libraries do with hard texts.

Needs the Python packages tokenizers and sentencepiece; the tests themselves need no Python.
Run from anywhere: tools/make_tokenizer_tests.py
Every file it writes is determined by this script and the versions of the two packages (written
into cases.json), so a second run changes nothing.
"""

import json
import pathlib

import sentencepiece
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "tests" / "testdata" / "tokenizer"

LLAMA3_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
               r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

# What the tokenizers are trained on: a page of several languages, code and numbers.
CORPUS = [
    "It was a bright cold day, and the clocks in the old town were striking thirteen.",
    "The engine drafts with the upper plane of its weights; the target verifies what it drafted.",
    "She said that she'd been there, that they'll come, and that it's what I've always wanted.",
    "We're told that he can't; they won't, but you'd better, because I'm sure it isn't so.",
    "Tokens, words and characters: three ways to count the same text, and none of them is right.",
    "for (int i = 0; i < count; ++i) {\n    total += values[i] * 3.14159;\n}\n\n",
    "def encode(text):\r\n\treturn [token for token in text.split(' ')]\r\n",
    "In 1984 there were 365 days, 8760 hours, 525600 minutes and 31536000 seconds.",
    "L'été dernier, nous étions à la plage; les garçons mangeaient des crêpes où il fallait.",
    "Über den Wolken muß die Freiheit wohl grenzenlos sein, sagte er größtenteils.",
    "Всё счастливые семьи похожи друг на друга, каждая несчастливая семья несчастлива.",
    "日本語の文章には空白がありません。東京は日本の首都です。",
    "中文的句子也没有空格。北京是中国的首都。",
    "كان يا ما كان في قديم الزمان، في بلاد بعيدة.",
    "नमस्ते दुनिया, आप कैसे हैं?",
    "Smile 😀😀 and wave 👋🏽, family 👨‍👩‍👧‍👦, flag 🇫🇷.",
    "https://example.org/path?query=1&other=two#part  (see   also:    spaces)",
] * 4

TEXTS = [
    "", " ", "  ", "   ", "a", " a", "a ", "  a  b   c    ", "\n", "\n\n\n", "\r\n", "a\r\nb\r\n\r\nc",
    "\t", "\t\tindented\n\t\t\tmore", "trailing spaces   ", "trailing newline\n", "   \n  \n x",
    "Hello, world!", "The quick brown fox jumps over the lazy dog.",
    "it's IT'S it’s they'll THEY'LL I'M we'Ve 'tis 'S 'll 'ſ", "''''s", "don't'd've",
    "0", "12", "123", "1234", "12345678901234567890", "3.14159 1,000,000 ½ ² ⅷ ٣٤٥ 一二三",
    "x1y22z333", "CamelCase snake_case kebab-case", "!!!???...", "a!!\n\nb", "<<>>[]{}()",
    "for (int i = 0; i < n; ++i) { sum += a[i]; }  // done\n",
    "café", "cafe\u0301", "\u0301", "a\u0323\u0307b\u0307\u0323", "Å \u212b A\u030a", "ﬁ ﬂ ① ㎏ ﷺ",
    "\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab", "日本語のテキスト、東京。", "中文，没有空格！", "مرحبا بالعالم، كيف حالك؟", "שלום עולם",
    "नमस्ते दुनिया", "ไทยไม่มีช่องว่าง", "Привет, мир! Ещё раз.", "ẞ ß ǅ ı İ",
    "😀", "😀😃😄", "a😀b", "👨‍👩‍👧‍👦 👋🏽 🇫🇷", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈", "\u200b\u200d\ufeff\u00ad",
    "a\u00a0b\u2003c\u3000d\u2028e\u0085f", "\u180ea \u180e b", "\x00", "a\x00b\x00\x00", "\x01\x1c\x1f\x7f\x80",
    "\ufffd \uffff \U0010ffff", "▁", "▁a ▁ b▁", " ▁ ▁▁x", "<0x0A>", "a<0xE2>b", "Ġ Ċ ĠĠ",
    "<s>", "</s>", "<s> a </s>", "a<s>b</s>c", "<unk>", "<|begin|>user<|end|>", "<|end|><|end|> <|end|>",
    "x<|end|>  y  <|end|>\n", "<|beg", "<|end|", "<|tool|> call <|tool|>", "a  <|tool|>  b",
    "word sword word wordy word", " word", "[A][AB][ABC][AB", "  [LS]  [RS]  [LS][RS] x", "Å[NORM] e\u0301[É]x",
    "\u2581tool tool", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "          ten spaces          ", "https://example.org/a?b=c&d=e#f", "𐐀\u0300\u0301\u0302", "e\u0301" * 5,
]

ADDED = [
    AddedToken("<|tool|>", special=False, normalized=False),
    AddedToken("word", special=False, normalized=False, single_word=True),
    AddedToken("[A]", special=False, normalized=False),
    AddedToken("[AB]", special=False, normalized=False),
    AddedToken("[LS]", special=False, normalized=False, lstrip=True),
    AddedToken("[RS]", special=True, normalized=False, rstrip=True),
    AddedToken("[NORM]", special=False, normalized=True),
    AddedToken("[É]", special=False, normalized=True),
]


def train(tokenizer, special_tokens, vocab_size, alphabet=()):
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=special_tokens,
                                  initial_alphabet=list(alphabet), show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)


def around(tokenizer, bos, eos=None):
    """A post-processor that adds BOS (and EOS)."""
    ids = [(t, tokenizer.token_to_id(t)) for t in (bos, eos) if t]
    return processors.TemplateProcessing(single=f"{bos} $A {eos or ''}".strip(),
                                         special_tokens=ids)


def byte_level(split, normalizer, name):
    """Llama 3 and Qwen: a split by regular expression, then bytes."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(split), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, [], 700, pre_tokenizers.ByteLevel.alphabet())
    tokenizer.add_special_tokens(["<|begin|>", "<|end|>"])
    tokenizer.add_tokens(ADDED)
    if name == "llama3":
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False), around(tokenizer, "<|begin|>")])
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def gpt2():
    """ByteLevel that splits by itself and puts a space before the first word."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel()])
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, ["<|end|>"], 600, pre_tokenizers.ByteLevel.alphabet())
    tokenizer.post_processor = around(tokenizer, "<|end|>", "<|end|>")
    return tokenizer


def sentencepiece_like(name):
    """Llama 2, Mistral, Gemma: marks for spaces, bytes for characters that are no token."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    special = ["<unk>", "<s>", "</s>"]
    bytes_tokens = [f"<0x{b:02X}>" for b in range(256)]
    train(tokenizer, special + bytes_tokens, 800)
    # The trainer knew the byte tokens as special tokens; here they are pieces and nothing else.
    file = json.loads(tokenizer.to_str())
    file["added_tokens"] = [t for t in file["added_tokens"] if t["content"] in special]
    # Rare characters lose their piece, so that they need their bytes.
    dropped = {c for c in file["model"]["vocab"] if c in set("日本語中文京नم😀éß")}
    kept = [m for m in file["model"]["merges"] if not dropped & set("".join(m))]
    for token in [t for t in file["model"]["vocab"] if dropped & set(t)]:
        del file["model"]["vocab"][token]
    file["model"]["vocab"] = {t: i for i, t in enumerate(file["model"]["vocab"])}
    file["model"]["merges"] = kept
    if name == "strings":  # the older way to write merges
        file["model"]["merges"] = [" ".join(m) for m in kept]
    tokenizer = Tokenizer.from_str(json.dumps(file))
    fallback = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if name == "prepend":
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.pre_tokenizer = None
        tokenizer.decoder = decoders.Sequence(fallback + [decoders.Strip(" ", 1, 0)])
    elif name == "first":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        tokenizer.decoder = decoders.Sequence(fallback + [decoders.Strip(" ", 1, 0)])
    elif name == "never":
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        tokenizer.decoder = decoders.Sequence(fallback)
    else:
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.add_tokens(ADDED)
    tokenizer.post_processor = around(tokenizer, "<s>", "</s>" if name == "first" else None)
    return tokenizer


def unknown():
    """No byte fallback: characters that are no token become <unk>, one for a run."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"[\p{P}\p{S}]"), "removed"),
        pre_tokenizers.Split(Regex(r"\p{Lu}"), "merged_with_next"),
        pre_tokenizers.Split(Regex(r"\d"), "contiguous"),
        pre_tokenizers.Split(Regex(r"[^\S\n]+|\S+"), "isolated", invert=True),
        pre_tokenizers.Metaspace(prepend_scheme="never", split=True)])
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")
    trainer = trainers.BpeTrainer(vocab_size=260, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator([line for line in CORPUS if line.isascii()], trainer)
    return tokenizer


def cases(encode, decode):
    rows = []
    for text in TEXTS:
        ids = encode(text, False)
        rows.append({"text": text, "ids": ids, "ids_special": encode(text, True),
                     "decoded": decode(ids)})
    return rows


def is_broken_byte_run(tokenizer, ids):
    """Where this project follows SentencePiece instead (JsonTokenizer::marks_every_bad_byte)."""
    tokens = [tokenizer.id_to_token(i) for i in ids]
    return (len(ids) > 1 and all(t.startswith("<0x") for t in tokens)
            and "\ufffd" in tokenizer.decode(ids))


def huggingface_cases(tokenizer):
    rows = cases(lambda text, special: tokenizer.encode(text, add_special_tokens=special).ids,
                 lambda ids: tokenizer.decode(ids, skip_special_tokens=True))
    # Every token alone and in a few orders that no text gives.
    size = tokenizer.get_vocab_size()
    lists = [[i] for i in range(0, size, 7)] + [[i, (i * 31 + 5) % size] for i in range(0, size, 11)]
    lists = [ids for ids in lists if not is_broken_byte_run(tokenizer, ids)]
    decoded = [{"ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=True)}
               for ids in lists]
    return {"texts": rows, "id_lists": decoded}


def bundled_cases():
    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(ROOT / "models" / "pg-24m" / "tokenizer.model"))
    encode = lambda text, special: processor.encode(text, add_bos=special)
    size = processor.get_piece_size()
    lists = [[i] for i in range(0, size, 41)] + [[i, (i * 31 + 5) % size] for i in range(0, size, 53)]
    lists += [[i, (i * 7 + 1) % 256 + 3, (i * 3) % 256 + 3] for i in range(3, 259, 5)]  # bytes
    decoded = [{"ids": ids, "decoded": processor.decode(ids)} for ids in lists]
    return {"texts": cases(encode, processor.decode), "id_lists": decoded}


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    path.write_text(text.replace('{"text"', '\n{"text"').replace('{"ids"', '\n{"ids"') + "\n")


def main():
    made = {
        "llama3": byte_level(LLAMA3_SPLIT, None, "llama3"),
        "qwen2": byte_level(QWEN2_SPLIT, normalizers.NFC(), "qwen2"),
        "gpt2": gpt2(),
        "prepend": sentencepiece_like("prepend"),
        "first": sentencepiece_like("first"),
        "never": sentencepiece_like("never"),
        "strings": sentencepiece_like("strings"),
        "unknown": unknown(),
    }
    for name, tokenizer in made.items():
        file = json.loads(tokenizer.to_str())
        if name == "strings":
            file["model"]["merges"] = [" ".join(m) for m in file["model"]["merges"]]
        write(OUT / name / "tokenizer.json", file)
        reloaded = Tokenizer.from_file(str(OUT / name / "tokenizer.json"))
        write(OUT / name / "cases.json", huggingface_cases(reloaded))
    write(OUT / "pg-24m" / "cases.json", bundled_cases())
    versions = {"tokenizers": tokenizers.__version__, "sentencepiece": sentencepiece.__version__}
    write(OUT / "made_with.json", versions)


if __name__ == "__main__":
    main()
