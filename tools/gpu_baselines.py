#!/usr/bin/env python3
"""Times what PyTorch has on this GPU: what the CUDA backend's kernels are compared with.

    tools/gpu_baselines.py --out FILE.json        needs a GPU and PyTorch; two minutes

Copy bandwidth and the rate of a large matrix product; decode attention in fp16 by FlashAttention
and by cuDNN; linear layers in bf16 by cuBLAS; causal prefill attention. Where query heads share K
and V, each attention kernel is also given a group's query heads as further rows of one head
("grouped"): the same products without reading K and V again, less the mask among the new tokens.

Every number is the median of replays of a CUDA graph of many calls, on random data, in turn on
copies that together are far larger than the L2 cache.
"""

import argparse
import itertools
import json
import pathlib
import sys

HEADS, HEAD_DIM = 32, 128
KV_HEADS = {"mha": 32, "gqa": 8}
TOKENS = [4096, 8192, 32768, 131072, 262144]
QUERIES = [1, 4, 8]
PREFILL_TOKENS = [8192, 32768]
ROWS = [1, 4, 8, 17, 32, 64, 128]
LINEARS = {  # outputs, inputs, of Llama-2-7B and Llama-3.1-8B
    "7b/qkv": (12288, 4096),
    "8b/qkv": (6144, 4096),
    "o": (4096, 4096),
    "7b/gate-up": (22016, 4096),
    "8b/gate-up": (28672, 4096),
    "7b/down": (4096, 11008),
    "8b/down": (4096, 14336),
    "7b/head": (32000, 4096),
    "8b/head": (128256, 4096),
}
BACKENDS = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}  # of PyTorch's SDPBackend
BEYOND_L2 = 1 << 30  # bytes through which calls rotate
REPLAYS = 7


def import_torch():
    """When arguments have been read: --help needs none."""
    global F, SDPBackend, sdpa_kernel, torch
    try:
        import torch
        import torch.nn.functional as F
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError as error:
        sys.exit(f"gpu_baselines: needs PyTorch 2.5 or later: {error}")


class Pool:
    """Random values, of which every operand is a slice: the next one each time."""

    def __init__(self, dtype):
        self.values = torch.empty(9 << 29, dtype=dtype, device="cuda").normal_()  # 9 GiB
        self.at = 0

    def take(self, *shape):
        count = torch.Size(shape).numel()
        if self.at + count > self.values.numel():
            self.at = 0
        self.at += count
        return self.values[self.at - count : self.at].view(shape)


def median(values):
    return sorted(values)[len(values) // 2]


def time_calls(calls, seconds=0.02):
    """Seconds of one call, when they are made in turn."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def milliseconds(run):
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # before capture: plans are made, workspaces allocated
        calls[0]()
        each = min(milliseconds(calls[i % len(calls)]) for i in range(3))
    torch.cuda.current_stream().wait_stream(stream)
    count = max(2, min(400, round(seconds * 1e3 / each)))
    count = -(-count // len(calls)) * len(calls) if count > len(calls) else count
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in itertools.islice(itertools.cycle(calls), count):
            call()
    graph.replay()
    return median([milliseconds(graph.replay) for _ in range(REPLAYS)]) * 1e-3 / count


def copies(bytes_each):
    return max(2, -(-BEYOND_L2 // bytes_each)) if bytes_each < 2 * BEYOND_L2 else 1


def time_copy(rounds=20):
    """Bytes per second read and written. NOTE: not in a graph, where copies are a third slower."""
    values = torch.empty(1 << 31, dtype=torch.uint8, device="cuda").random_()
    to = torch.empty_like(values)
    times = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        to.copy_(values)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return 2 * values.numel() / median(times)


def time_matmul(pool, size=8192):
    a, b = pool.take(size, size), pool.take(size, size)
    return 2 * size**3 / time_calls([lambda: a @ b], seconds=0.005)


def attention_call(backend, q, k, v, **options):
    def call():
        with sdpa_kernel([getattr(SDPBackend, backend)]):
            return F.scaled_dot_product_attention(q, k, v, **options)

    return call


def try_time(calls):
    """None where PyTorch refuses."""
    try:
        return time_calls(calls)
    except RuntimeError as error:
        print(f"  refused: {str(error).splitlines()[0]}", file=sys.stderr)
        return None


def time_decode_attention(pool, shape, tokens, queries):
    kv_heads = KV_HEADS[shape]
    kv_bytes = 2 * kv_heads * tokens * HEAD_DIM * 2
    kv = [
        (pool.take(1, kv_heads, tokens, HEAD_DIM), pool.take(1, kv_heads, tokens, HEAD_DIM))
        for _ in range(copies(kv_bytes))
    ]
    q = pool.take(1, HEADS, queries, HEAD_DIM)
    grouped = q.view(1, kv_heads, HEADS // kv_heads * queries, HEAD_DIM)
    seconds = {}
    for name, backend in BACKENDS.items():
        gqa = {"enable_gqa": True} if kv_heads < HEADS else {}
        seconds[name] = try_time([attention_call(backend, q, k, v, **gqa) for k, v in kv])
        if gqa:
            seconds[name + " grouped"] = try_time([attention_call(backend, grouped, k, v) for k, v in kv])
    best = min((s, name) for name, s in seconds.items() if s is not None)
    return {
        "shape": shape,
        "tokens": tokens,
        "queries": queries,
        "us": {name: s and s * 1e6 for name, s in seconds.items()},
        "best": best[1],
        "best_us": best[0] * 1e6,
        "bytes": kv_bytes,
        "bytes_per_second": kv_bytes / best[0],
    }


def time_linear(pool, name, rows):
    outputs, inputs = LINEARS[name]
    weight_bytes = outputs * inputs * 2
    weights = [pool.take(outputs, inputs) for _ in range(copies(weight_bytes))]
    x = pool.take(rows, inputs)
    us = {"linear": time_calls([lambda w=w: F.linear(x, w) for w in weights]) * 1e6}
    if rows == 1:
        us["mv"] = time_calls([lambda w=w: torch.mv(w, x[0]) for w in weights]) * 1e6
    best = min(us.values())
    return {
        "name": name,
        "outputs": outputs,
        "inputs": inputs,
        "rows": rows,
        "us": us,
        "best_us": best,
        "bytes": weight_bytes,
        "bytes_per_second": weight_bytes / best * 1e6,
    }


def time_prefill(pool, shape, tokens):
    kv_heads = KV_HEADS[shape]
    q = pool.take(1, HEADS, tokens, HEAD_DIM)
    k, v = (pool.take(1, kv_heads, tokens, HEAD_DIM) for _ in range(2))
    options = {"is_causal": True} | ({"enable_gqa": True} if kv_heads < HEADS else {})
    seconds = {name: try_time([attention_call(b, q, k, v, **options)]) for name, b in BACKENDS.items()}
    best = min(s for s in seconds.values() if s is not None)
    return {
        "shape": shape,
        "tokens": tokens,
        "us": {name: s and s * 1e6 for name, s in seconds.items()},
        "best_us": best * 1e6,
        "flops_per_second": 2 * HEADS * HEAD_DIM * tokens * tokens / best,
    }


def measure():
    torch.manual_seed(1)
    report = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "copy_bytes_per_second": time_copy(),
    }
    pool = Pool(torch.bfloat16)
    report["matmul_flops_per_second"] = time_matmul(pool)
    report["linear"] = [time_linear(pool, name, rows) for name in LINEARS for rows in ROWS]
    del pool
    pool = Pool(torch.float16)
    report["attention"] = [
        time_decode_attention(pool, shape, tokens, queries)
        for shape in KV_HEADS
        for tokens in TOKENS
        for queries in QUERIES
    ]
    report["prefill"] = [time_prefill(pool, shape, tokens) for shape in KV_HEADS for tokens in PREFILL_TOKENS]
    return report


def microseconds(value):
    return f"{value:9.1f}" if value else f"{'-':>9}"


def print_report(report):
    copy = report["copy_bytes_per_second"]
    print(f"{report['device']}, torch {report['torch']}, cuDNN {report['cudnn']}: copy {copy / 1e12:.2f} TB/s, "
          f"bf16 product {report['matmul_flops_per_second'] / 1e12:.0f} TFLOP/s")
    names = ["flash", "cudnn", "flash grouped", "cudnn grouped"]
    print(f"\ndecode attention, fp16, us {'':8} " + " ".join(f"{n:>13}" for n in names) + "  best of copy")
    for row in report["attention"]:
        times = " ".join(f"{microseconds(row['us'].get(n)):>13}" for n in names)
        print(f"{row['shape']} {row['tokens']:>7} tokens {row['queries']} queries      {times}  "
              f"{row['bytes_per_second'] / copy:11.1%}")
    print("\nlinear, bf16, us (share of copy)" + "".join(f"{f'{rows} rows':>17}" for rows in ROWS))
    for name, (outputs, inputs) in LINEARS.items():
        rows = [r for r in report["linear"] if r["name"] == name]
        print(f"{name:11} {f'{outputs}x{inputs}':14}      "
              + "".join(f"{r['best_us']:10.1f} {r['bytes_per_second'] / copy:5.0%} " for r in rows))
    print("\ncausal prefill, fp16, ms             flash     cudnn   best TFLOP/s")
    for row in report["prefill"]:
        times = " ".join(f"{microseconds(t and t / 1e3)}" for t in row["us"].values())
        print(f"{row['shape']} {row['tokens']:>7} tokens            {times}   {row['flops_per_second'] / 1e12:12.0f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="FILE", help="the JSON to write")
    options = parser.parse_args()
    import_torch()
    if not torch.cuda.is_available():
        sys.exit("gpu_baselines: no GPU that torch can use")
    report = measure()
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print_report(report)


if __name__ == "__main__":
    main()
