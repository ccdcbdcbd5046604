#!/usr/bin/env python3
"""Makes tests/testdata/tokenizer/vocabulary: one byte-level BPE vocabulary, as a GGUF file has it, and
what Hugging Face's tokenizers does with hard texts by the rules of each pre-tokenizer.

Needs the Python package tokenizers; the tests themselves need no Python.
Run from anywhere: tools/make_vocabulary_tests.py
The rules are written as the models' tokenizer.json have them, with that library's own steps, so that
they are no copy of src/tokenizer/named_pre_tokenizer.cc. A second run changes nothing.
"""

import json

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from make_tokenizer_tests import CORPUS, LLAMA3_SPLIT, OUT, QWEN2_SPLIT, TEXTS, train

QWEN35_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
                r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN_SPLIT = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
                r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
                r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
GPT4O_SPLIT = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
               r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
               r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
               r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
               r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK3_SPLITS = [
    r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
DEEPSEEK_EAST = "[一-龥\u0800-一가-\ud7ff]+"
DEEPSEEK_CODER_SPLITS = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_EAST]
# The letters that DeepSeek LLM's file lists one by one, as code points.
DEEPSEEK_LETTERS = """
41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A
38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF
1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D
1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4
1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F
2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F
A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3
104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943
"""
DEEPSEEK_LLM_SPLITS = [
    "[\r\n]",
    r"\s?[" + "".join("-".join(chr(int(end, 16)) for end in part.split("-"))
                      for part in DEEPSEEK_LETTERS.split()) + "]+",
    r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+$", DEEPSEEK_EAST]

MORE_TEXTS = [
    "x１２３４ y٣٤٥٦ 12.5% 1/2 ½½ 1234567 a1b22c333d4444", "HTTPServer iPhone McDonald's ÉCOLE École ǅ ǆungla",
    "DON'T don't Don’t I'LL we'RE they'd'Ve rock'n'roll 'Tis O'Neill's", "！全角，標点。「括弧」 ‘quoted’ “twice” …—–",
    "漢字かなカナ混じり文、 ｶﾅ ㍿ 한글 텍스트 and English、中文English混排123", "ﬁne ﬀ ῼ \u1fbe\u1f7d\u1fd3\u1fdb \u2126 \u212a \u212b ℵ ℂ ⅷ Ⅻ ª º ʰ ː ʔ ᴀ ꭰ 𞤀 𐓀",
    "कि क्षेत्र तमिழ் தமிழ் ไทย ភាសា မြန်မာ e\u0301te\u0301 a\u0308\u0304 \u0301x", "price:$5 #tag @user a/b\\c x+=y; p->q::r() [i]{j} ~^`|",
    "  \n  x\n\n\n y \r\n\r\n z\t\n", "end  ", "end \t \u00a0", "\u00a0\u2003x \u3000y", "//\n/*\n*/ path/to/\nfile./\r\n",
    "def f(x):\n    return x**2  # 平方\n\n\nclass A:\n\tpass\n", "👍🏽👨‍👩‍👧 ❤️ 🇩🇪 ☎ ©®™ ∑∫ €£¥ ←→", "a\u200db \u200b c\ufeffd\u00ade",
    "Ⅷ² x²y³ H₂O ①②③ ៣ ௩ 一二三", "Hello <|tool|>world<|end|> x<|tool|>", "[PAD7] [EMPTY_3]", "ß ẞ ı İ ſ 'ſ K's",
]
NUM_ID_TEXTS = 12  # of the last ones


def split(regex):
    return pre_tokenizers.Split(Regex(regex), behavior="isolated", invert=False)


def byte_level(use_regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def splits(*regexes, digits=False):
    last = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    return pre_tokenizers.Sequence([split(r) for r in regexes] + last + [byte_level()])


DIGITS = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(True)])
# One name of each kind: its pre-tokenizer, whether its text is normalized, whether words may be tokens.
RULES = {
    "llama-bpe": (splits(LLAMA3_SPLIT), False, True),
    "qwen2": (splits(QWEN2_SPLIT), True, False),
    "qwen35": (splits(QWEN35_SPLIT), True, False),
    "smollm": (DIGITS, False, False),
    "command-r": (DIGITS, True, False),
    "gpt-2": (byte_level(True), False, False),
    "olmo": (byte_level(True), True, False),
    "dbrx": (splits(LLAMA3_SPLIT), False, False),
    "gpt-4o": (splits(GPT4O_SPLIT), False, False),
    "tekken": (splits(TEKKEN_SPLIT), False, True),
    "deepseek-llm": (splits(*DEEPSEEK_LLM_SPLITS, digits=True), False, False),
    "deepseek-coder": (splits(*DEEPSEEK_CODER_SPLITS, digits=True), False, False),
    "deepseek-v3": (splits(*DEEPSEEK3_SPLITS), False, False),
}


def make_vocabulary():
    """Trained on whole lines, so that its merges go beyond any word: ids tell where a text was cut."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = byte_level()
    train(tokenizer, [], 1100, pre_tokenizers.ByteLevel.alphabet())
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    # Words without merges, which only a model that ignores merges can find.
    return tokens + ["Hello", "HTTPServer", "\u0120English"], model["merges"]


def tokenizer_of(tokens, merges, rules):
    pre_tokenizer, composes, ignores_merges = rules
    vocab = {token: id for id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, [tuple(m) for m in merges], ignore_merges=ignores_merges))
    if composes:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.add_tokens([AddedToken("<|tool|>", special=False, normalized=False)])
    return tokenizer


def words(tokenizer, text):
    """How many bytes each word has: a character of the byte alphabet is one."""
    if tokenizer.normalizer:
        text = tokenizer.normalizer.normalize_str(text)
    return [len(word) for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def main():
    tokens, merges = make_vocabulary()
    texts = [t for t in TEXTS if t] + CORPUS[:17] + MORE_TEXTS
    rules = {}
    for name, rule in RULES.items():
        tokenizer = tokenizer_of(tokens, merges, rule)
        rules[name] = {"words": [words(tokenizer, text) for text in texts],
                       "ids": [tokenizer.encode(text).ids for text in texts[-NUM_ID_TEXTS:]]}
    data = {"tokenizers": tokenizers.__version__, "tokens": tokens,
            "merges": [" ".join(merge) for merge in merges], "added": ["<|end|>", "<|tool|>"],
            "texts": texts, "rules": rules}
    path = OUT / "vocabulary" / "cases.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    path.write_text(text.replace('"words"', '\n"words"').replace('"ids"', '\n"ids"') + "\n")


if __name__ == "__main__":
    main()
