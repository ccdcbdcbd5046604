#!/usr/bin/env python3
"""Makes tests/testdata/models: tiny random Hugging Face checkpoints with golden logits.

    pip install torch transformers safetensors numpy
    tools/make_test_models.py [--out tests/testdata/models] [NAME ...]

The output is committed, so neither the build nor the tests need Python. It was made with
torch 2.15.0, transformers 5.23.0, safetensors 0.8.0 and numpy 2.4.6; another version gives other
weights (seeds are searched for) and the same format.

A folder holds
  config.json                  in one of the two spellings of RoPE and dtype found in the wild
  config.other_spelling.json   the same model in the other spelling (see old_spelling)
  generation_config.json, model.safetensors or two shards with model.safetensors.index.json
  golden.json  {"name", "transformers", "torch", "seed", "min_greedy_margin", "prompts": [
                  {"ids": [...], "last_logits": [vocab_size floats], "greedy": [16 ids, or none]}]}

Goldens are computed in fp32 with eager attention on the weights as stored (rounded to the
checkpoint's dtype, then widened). `last_logits` is the last row of one forward pass over the whole
prompt. `greedy` is the continuation by repeated forward passes over the whole text, without a
cache; end-of-sequence tokens do not stop it.

NOTE: for dynamic and longrope, Hugging Face takes the frequencies from the length of the text in
each forward pass. A cache keeps old keys at old frequencies, so a continuation that changes
frequencies depends on caching; `greedy` is then left empty. It is given where they stay the same.

NOTE: dynamic scaling begins at max_position_embeddings itself (32 in that checkpoint), so its
longer prompts exceed max_position_embeddings, as that type intends.

A seed is accepted when every greedy step is won by at least MIN_MARGIN, logits are well spread,
fp64 agrees with fp32, and every tensor and every part of the RoPE settings changes the logits
visibly, so that a loader that drops one cannot pass.
"""

import argparse
import copy
import json
import math
import pathlib
import shutil
import tempfile

import numpy as np
import torch
import transformers
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

GREEDY_STEPS = 16
MIN_MARGIN = 0.15  # nats between the two best logits of every greedy step
MIN_EFFECT = 0.05  # largest change of a logit when a tensor or a setting is dropped
LOGIT_STD = (1.5, 4.0)
MAX_FOLDER_BYTES = 200_000

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def rope(rope_type, theta=10000.0, **settings):
    return {"rope_type": rope_type, "rope_theta": theta, **settings}


def long_factors(head_dim, low, high):
    """A smoothly growing factor for each of the head_dim / 2 frequencies, with few digits."""
    return [round(float(f), 3) for f in np.geomspace(low, high, head_dim // 2)]


# `spelling` is that of config.json; `drop` are keys removed from it (they have a derived default);
# `extra` are keys as published files have them, which transformers ignores or normalises away.
MODELS = {
    "llama2-mha": dict(
        config=LlamaConfig, dtype=BF16, spelling="old", prompts=(12, 64, 150),
        heads=(2, 2), head_dim=64, rope=rope("default"), more=dict(rms_norm_eps=1e-3)),
    "llama3-gqa": dict(
        config=LlamaConfig, dtype=BF16, spelling="old", prompts=(12, 150, 300),
        heads=(4, 2), head_dim=64, eos=[1, 2],
        rope=rope("llama3", 500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=64)),
    "llama-gqa3": dict(
        config=LlamaConfig, dtype=BF16, spelling="new", prompts=(12, 64, 128, 150, 300),
        hidden=24, heads=(6, 2), head_dim=64, rope=rope("default", 500000.0), max_position=4096,
        tied=True),
    "mistral-gqa": dict(
        config=MistralConfig, dtype=FP16, spelling="old", prompts=(12, 150, 300),
        heads=(2, 1), head_dim=128, rope=rope("default", 1000000.0),
        more=dict(sliding_window=None)),
    "qwen2-bias": dict(
        config=Qwen2Config, dtype=BF16, spelling="old", prompts=(12, 64, 150), hidden=128, layers=1,
        heads=(2, 1), head_dim=64, rope=rope("default", 1000000.0), tied=True,
        drop=["head_dim", "layer_types"], more=dict(rms_norm_eps=1e-6),
        extra=dict(use_sliding_window=False, sliding_window=64, max_window_layers=1)),
    "qwen2-yarn-tails": dict(
        config=Qwen2Config, dtype=BF16, spelling="old", prompts=(12, 150, 300), hidden=48, inter=72,
        heads=(2, 1), head_dim=64, vocab=101, max_position=2048,
        rope=rope("yarn", 10000.0, factor=4.0, original_max_position_embeddings=512)),
    "qwen3-qk-norm": dict(
        config=Qwen3Config, dtype=BF16, spelling="new", prompts=(12, 64, 150),
        heads=(2, 1), head_dim=128, rope=rope("default", 1000000.0), tied=True,
        more=dict(rms_norm_eps=1e-6)),
    "llama-fp32": dict(
        config=LlamaConfig, dtype=FP32, spelling="new", prompts=(12, 64, 150),
        heads=(2, 1), head_dim=64, rope=rope("default")),
    "llama-linear-d80": dict(
        config=LlamaConfig, dtype=BF16, spelling="old", prompts=(12, 50, 150),
        heads=(2, 2), head_dim=80, rope=rope("linear", factor=4.0)),
    "llama-dynamic-d96": dict(
        config=LlamaConfig, dtype=FP16, spelling="old", prompts=(12, 20, 32, 50, 150),
        heads=(2, 1), head_dim=96, rope=rope("dynamic", factor=8.0), max_position=32),
    "llama-longrope-d96": dict(
        config=LlamaConfig, dtype=FP16, spelling="new", prompts=(12, 20, 32, 33, 50, 150),
        heads=(2, 1), head_dim=96, max_position=256,
        rope=rope("longrope", original_max_position_embeddings=32,
                  short_factor=long_factors(96, 1.0, 1.5),
                  long_factor=long_factors(96, 1.2, 12.0))),
    "llama-yarn-sharded": dict(
        config=LlamaConfig, dtype=BF16, spelling="new", prompts=(12, 50, 150), hidden=64,
        heads=(1, 1), head_dim=64, drop=["head_dim"], shard="90KB",
        rope=rope("yarn", factor=8.0, original_max_position_embeddings=128, beta_fast=8.0,
                  beta_slow=2.0, mscale=1.5, mscale_all_dim=0.5, truncate=False)),
    "llama-d256": dict(
        config=LlamaConfig, dtype=BF16, spelling="new", prompts=(12, 64, 150), layers=1,
        heads=(2, 1), head_dim=256, rope=rope("default"), tied=True),
}


def make_config(spec):
    query_heads, kv_heads = spec["heads"]
    return spec["config"](
        hidden_size=spec.get("hidden", 32), intermediate_size=spec.get("inter", 48),
        num_hidden_layers=spec.get("layers", 2), num_attention_heads=query_heads,
        num_key_value_heads=kv_heads, head_dim=spec["head_dim"], vocab_size=spec.get("vocab", 96),
        max_position_embeddings=spec.get("max_position", 512), hidden_act="silu",
        tie_word_embeddings=spec.get("tied", False), rope_parameters=copy.deepcopy(spec["rope"]),
        bos_token_id=0, eos_token_id=spec.get("eos", 1), pad_token_id=None,
        attn_implementation="eager", **spec.get("more", {}))


def make_model(spec, seed):
    """A random model in fp32 whose weights are representable in the checkpoint's dtype."""
    torch.manual_seed(seed)
    config = make_config(spec)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=FP32).eval()
    hidden = config.hidden_size
    # Gains over 1/sqrt(fan in): sharp attention (scores of std about 2), layers that outweigh the
    # embedding, logits of std about 2.5.
    gains = dict(q_proj=1.4, k_proj=1.4, v_proj=1.0, o_proj=1.5, gate_proj=1.5, up_proj=1.0,
                 down_proj=1.5, lm_head=2.5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            part = name.split(".")[-2]
            noise = torch.randn_like(weight)
            if part.endswith("norm"):
                centre = 1.4 if part in ("q_norm", "k_norm") else 1.0
                value = centre * (1 + 0.2 * noise)
            elif name.endswith("bias"):
                value = 0.5 * noise
            elif part == "embed_tokens":
                value = noise * (2.5 / math.sqrt(hidden) if config.tie_word_embeddings else 1.0)
            else:
                value = noise * gains[part] / math.sqrt(weight.shape[1])
            weight.copy_(value.to(spec["dtype"]).to(FP32))
    return model


def with_config(model, change):
    """A copy of `model` whose config went through `change`, with the same weights."""
    config = copy.deepcopy(model.config)
    change(config)
    other = transformers.AutoModelForCausalLM.from_config(config, dtype=FP32).eval()
    other.load_state_dict(model.state_dict())
    return other


@torch.no_grad()
def last_row(model, ids):
    # The rotary module remembers the longest text it saw; a copy makes each call the first.
    rotary = model.model.rotary_emb
    model.model.rotary_emb = copy.deepcopy(rotary)
    logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
    model.model.rotary_emb = rotary
    return logits


def has_static_rope(spec, first_length, last_length):
    """Whether all texts of these lengths use the same frequencies."""
    kind = spec["rope"]["rope_type"]
    if kind == "dynamic":
        return last_length <= spec["max_position"]
    if kind == "longrope":
        threshold = spec["rope"]["original_max_position_embeddings"]
        return first_length > threshold or last_length <= threshold
    return True


def make_golden(model, spec, prompts):
    """Logits and greedy continuations, and the smallest margin by which a greedy step is won."""
    margin = math.inf
    golden = []
    for ids in prompts:
        logits = last_row(model, ids)
        entry = dict(ids=ids, last_logits=[float(f"{x:.7g}") for x in logits.tolist()], greedy=[])
        steps = GREEDY_STEPS if has_static_rope(spec, len(ids), len(ids) + GREEDY_STEPS) else 1
        text = list(ids)
        while True:
            best = torch.topk(logits, 2)
            margin = min(margin, float(best.values[0] - best.values[1]))
            text.append(int(best.indices[0]))
            if len(text) == len(ids) + steps or margin < MIN_MARGIN:
                break
            logits = last_row(model, text)
        if steps == GREEDY_STEPS:
            entry["greedy"] = text[len(ids):]
        golden.append(entry)
        if margin < MIN_MARGIN:
            break
    return golden, margin


def weakest_part(model, spec, ids):
    """(effect, name) of the tensor or RoPE setting whose loss changes the logits least."""
    right = last_row(model, ids)
    effects = []
    with torch.no_grad():
        for name, weight in model.named_parameters():
            saved = weight.clone()
            weight.fill_(1.0 if "norm" in name else 0.0)
            effects.append((float((last_row(model, ids) - right).abs().max()), name))
            weight.copy_(saved)
    settings = set(spec["rope"]) - {"rope_type", "rope_theta"}
    for key in ["rope_type", "rope_theta", *sorted(settings)]:

        def change(config, key=key):
            value = config.rope_parameters[key]
            if key == "rope_type":
                if value != "default":
                    config.rope_parameters = rope("default", config.rope_parameters["rope_theta"])
            elif key == "truncate":
                config.rope_parameters[key] = not value
            elif isinstance(value, list):
                config.rope_parameters[key] = [1.0] * len(value)
            else:
                config.rope_parameters[key] = type(value)(value * 2)

        # The last 10 tokens stay below the threshold of longrope, where short_factor acts.
        text = ids[-10:] if key == "short_factor" else ids
        wrong = last_row(with_config(model, change), text)
        effect = float((wrong - last_row(model, text)).abs().max())
        if key != "rope_type" or spec["rope"]["rope_type"] != "default":
            effects.append((effect, key))
    return min(effects)


def find_seed(name, spec):
    vocab = spec.get("vocab", 96)
    verdict = "a greedy step won by too little"
    for seed in range(3000):
        rng = np.random.default_rng(seed)
        prompts = [rng.integers(0, vocab, n).tolist() for n in spec["prompts"]]
        model = make_model(spec, seed)
        golden, margin = make_golden(model, spec, prompts)
        if margin < MIN_MARGIN:
            continue
        spread = np.std([entry["last_logits"] for entry in golden])
        error = float((last_row(copy.deepcopy(model).double(), prompts[-1])
                       - last_row(model, prompts[-1])).abs().max())
        effect, part = weakest_part(model, spec, prompts[-1])
        if LOGIT_STD[0] < spread < LOGIT_STD[1] and error < 1e-4 and effect > MIN_EFFECT:
            noise = float((last_row(copy.deepcopy(model).to(BF16), prompts[-1]).float()
                           - last_row(model, prompts[-1])).abs().max())
            print(f"{name}: seed {seed}, margin {margin:.3f}, logit std {spread:.2f}, fp64 - fp32 "
                  f"{error:.1e}, all-bf16 - fp32 {noise:.2f}, least effect {effect:.2f} of {part}")
            return seed, model, prompts, golden, margin
        verdict = f"logit std {spread:.2f}, fp64 - fp32 {error:.1e}, effect {effect:.3f} of {part}"
    raise SystemExit(f"{name}: no seed passes; the last rejected had {verdict}")


def old_spelling(config):
    """What transformers 4 and older wrote: rope_theta and rope_scaling at the top, torch_dtype."""
    old = {k: v for k, v in config.items() if k not in ("rope_parameters", "dtype")}
    settings = dict(config["rope_parameters"])
    kind = settings.pop("rope_type")
    old["rope_theta"] = settings.pop("rope_theta")
    # Llama 3.1 was the first to write rope_type; files of the other kinds have type.
    tag = "rope_type" if kind == "llama3" else "type"
    old["rope_scaling"] = None if kind == "default" else {tag: kind, **settings}
    if kind == "longrope":  # Phi-3 files keep it outside
        old["original_max_position_embeddings"] = old["rope_scaling"].pop(
            "original_max_position_embeddings")
    old["torch_dtype"] = config["dtype"]
    return old


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def save(folder, name, spec, found):
    """Writes the folder, then checks that it reloads to the same logits in both spellings."""
    seed, model, prompts, golden, margin = found
    shutil.rmtree(folder, ignore_errors=True)
    stored = copy.deepcopy(model).to(spec["dtype"])
    stored.save_pretrained(folder, max_shard_size=spec.get("shard", "1GB"))
    shards = len(list(folder.glob("*.safetensors")))
    assert shards == (2 if "shard" in spec else 1), f"{name}: {shards} shards"

    new = json.loads((folder / "config.json").read_text())
    new = {k: v for k, v in new.items() if k not in spec.get("drop", [])} | spec.get("extra", {})
    spellings = dict(new=new, old=old_spelling(new))
    write_json(folder / "config.other_spelling.json",
               spellings["old" if spec["spelling"] == "new" else "new"])
    write_json(folder / "config.json", spellings[spec["spelling"]])

    head = json.dumps(dict(name=name, transformers=transformers.__version__,
                           torch=torch.__version__, seed=seed, min_greedy_margin=round(margin, 4)))
    lines = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in golden)
    (folder / "golden.json").write_text(head[:-1] + ',\n"prompts": [\n' + lines + "\n]}\n")

    check_reload(folder, name, golden)
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors writes private files
    size = sum(f.stat().st_size for f in folder.iterdir())
    assert size < MAX_FOLDER_BYTES, f"{name}: {size} bytes"
    return size


def check_reload(folder, name, golden):
    for config in ("config.json", "config.other_spelling.json"):
        with tempfile.TemporaryDirectory() as temp:
            copied = pathlib.Path(temp) / name
            shutil.copytree(folder, copied)
            shutil.copy(folder / config, copied / "config.json")
            model = transformers.AutoModelForCausalLM.from_pretrained(
                copied, dtype=FP32, attn_implementation="eager").eval()
        for entry in golden:
            error = np.abs(last_row(model, entry["ids"]).numpy() - entry["last_logits"]).max()
            assert error < 2e-5, f"{name}/{config}: reloaded logits differ by {error}"


def describe(name, spec, size):
    config = make_config(spec)
    return (f"| {name} | {config.model_type} | {config.num_hidden_layers} | {config.hidden_size} | "
            f"{config.intermediate_size} | {spec['heads'][0]}/{spec['heads'][1]} | "
            f"{spec['head_dim']} | {config.vocab_size} | {spec['rope']['rope_type']} | "
            f"{spec['spelling']} | {str(spec['dtype'])[6:]} | "
            f"{'tied' if spec.get('tied') else 'untied'} | "
            f"{config.max_position_embeddings} | {size / 1000:.0f} kB |")


def main():
    default = pathlib.Path(__file__).resolve().parent.parent / "tests/testdata/models"
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default=default)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which models (default: all)")
    options = parser.parse_args()
    unknown = set(options.names) - set(MODELS)
    if unknown:
        parser.error(f"unknown model {sorted(unknown)}; there are {', '.join(MODELS)}")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)  # one order of summation everywhere
    rows = []
    for name in options.names or MODELS:
        size = save(options.out / name, name, MODELS[name], find_seed(name, MODELS[name]))
        rows.append(describe(name, MODELS[name], size))
    print("| name | family | layers | hidden | inter | heads/kv | head_dim | vocab | rope "
          "| spelling | dtype | head | context | size |\n|" + "---|" * 14)
    print("\n".join(rows))


if __name__ == "__main__":
    main()
