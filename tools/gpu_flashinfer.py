#!/usr/bin/env python3
"""Times FlashInfer's decode attention of batches on this GPU: what ours is compared with.

    tools/gpu_flashinfer.py --out FILE.json      needs a GPU, PyTorch, FlashInfer, nvcc and ninja

Written for the wheels flashinfer-python 0.6.1 and apache-tvm-ffi, beside which this needs PyTorch,
requests, packaging and nvidia-ml-py, but neither CUTLASS's DSL nor cuDNN's frontend. FlashInfer compiles its
kernels on first use, into .cache of $FLASHINFER_WORKSPACE_BASE or of the home: 80 seconds on 16
processors. Only the two masks timed here are compiled, all modules at once; --whole compiles what
FlashInfer itself would, four times as much.

The batches and heads are those of `gpu_bench --only attention`; K and V are in fp16 and in fp8 (e4m3),
in pages that lie at random, queries in fp16. One query of each sequence goes to FlashInfer's decode
wrapper, on tensor cores (fa2, fa3) and without them (cuda); five, with a causal mask, to its prefill
wrapper. Every kernel is tried with pages of 16 and of 64 tokens, tokens before heads (NHD) and heads
before tokens (HND). A plan is made once, then calls are captured: the grid fits the batch, as it need
not in an engine that captures once for all batches of a size.

Not tried: XQA, and queries in fp8.

Every number is the median of replays of a CUDA graph of many calls, on random data, in turn on copies
that together are far larger than the L2 cache. Where FlashInfer refuses, or errs, it is null.
"""

import argparse
import concurrent.futures
import copy
import json
import math
import os
import pathlib
import sys
import time

import gpu_baselines
from gpu_baselines import HEAD_DIM, HEADS, Pool, copies, time_calls, time_copy

KV_HEADS = gpu_baselines.KV_HEADS["gqa"]
# apps/bench/gpu_batch_attention.cc: pages of 128 tokens
RAGGED_PAGES = [20, 19, 44, 14, 11, 49, 74, 38, 9, 47, 105, 11, 11, 22, 25, 73,
                15, 11, 38, 30, 25, 117, 22, 40, 27, 10, 11, 19, 28, 15, 13, 31]
BATCHES = {
    "8x4096": [4096] * 8,
    "32x4096": [4096] * 32,
    "32x4096 ragged": [pages * 128 for pages in RAGGED_PAGES],
    "64x4096": [4096] * 64,
    "8x32768": [32768] * 8,
    "16x32768": [32768] * 16,
}
KERNELS = {1: ["fa2", "fa3", "cuda"], 5: ["fa2", "fa3"]}  # by queries of each sequence
PAGE_TOKENS = [16, 64]
LAYOUTS = ["NHD", "HND"]
WORKSPACE_BYTES = 256 << 20
TOLERANCE = 2e-2  # of the largest output; fp16 errs by a tenth of it
START = time.monotonic()


def import_all():
    """When arguments have been read: --help needs neither."""
    global flashinfer, torch
    # What is not compiled is not called, but the module refers to it: see sources_needed().
    os.environ["FLASHINFER_EXTRA_LDFLAGS"] = os.environ.get("FLASHINFER_EXTRA_LDFLAGS", "") + " -Wl,-z,lazy"
    gpu_baselines.import_torch()
    torch = gpu_baselines.torch
    try:
        import flashinfer
        import flashinfer.jit
    except ImportError as error:
        sys.exit(f"gpu_flashinfer: needs FlashInfer: {error}")


def dtypes():
    return {"fp16": torch.float16, "fp8": torch.float8_e4m3fn}


def progress(what):
    print(f"## {time.monotonic() - START:5.1f} s: {what}", file=sys.stderr, flush=True)


def sources_needed(spec):
    """Without ragged K and V, and masks other than none (0) and causal (1): a quarter of the kernels."""
    return [s for s in spec.sources if "ragged" not in s.name and s.stem[-7:] not in ("_mask_2", "_mask_3")]


def modules():
    """What the wrappers will load, by kernel and type of K and V."""
    half, index, plain = torch.float16, torch.int32, (HEAD_DIM, HEAD_DIM, 0, False, False)
    specs = {}
    for kv, dtype in dtypes().items():
        types = (half, dtype, half, index)
        for backend in ("fa2", "fa3"):
            if (backend, kv) == ("fa3", "fp8"):  # later versions check; in 0.6.1 the compiler would find out
                print("  refused: fa3 has no kernels for queries in fp16 and K and V in fp8", file=sys.stderr)
            else:
                specs[backend, kv] = flashinfer.jit.gen_batch_prefill_module(backend, *types, *plain, False)
        specs["cuda", kv] = flashinfer.jit.gen_batch_decode_module(*types, *plain)
    return specs


def compile_all(whole):
    """What cannot be used: kernels with their types of K and V.

    NOTE: not by build_jit_specs(), whose ninja keeps its log where that of a wrapper, which loads a
    module later, does not look: all would be compiled again, one after another.
    """
    specs = modules()
    if not whole:
        for spec in specs.values():
            spec.sources = sources_needed(spec)
    for spec in specs.values():
        spec.write_ninja()  # over that of an earlier run with other sources
    unusable = {(kernel, kv) for kernel in KERNELS[1] for kv in dtypes() if (kernel, kv) not in specs}
    with concurrent.futures.ThreadPoolExecutor(len(specs)) as threads:
        built = {threads.submit(spec.build, verbose=False): name for name, spec in specs.items()}
        for future in concurrent.futures.as_completed(built):
            kernel, kv = built[future]
            try:
                future.result()  # RuntimeError with what ninja said
                progress(f"compiled {kernel} {kv}")
            except RuntimeError as error:
                unusable.add((kernel, kv))
                print(f"  {kernel} {kv} does not compile: {str(error)[-4000:]}", file=sys.stderr)
    return unusable


class Paged:
    """A batch's sequences in pages of some size that lie at random."""

    def __init__(self, tokens, page_tokens):
        self.tokens, self.page_tokens = tokens, page_tokens
        counts = torch.tensor([t // page_tokens for t in tokens], dtype=torch.int32)
        self.starts = torch.zeros(len(tokens) + 1, dtype=torch.int32)
        self.starts[1:] = torch.cumsum(counts, 0)
        self.last_tokens = torch.full((len(tokens),), page_tokens, dtype=torch.int32)  # all pages are full
        self.pages = torch.randperm(int(self.starts[-1]), device="cuda").to(torch.int32)

    def view(self, values, layout):
        inner = (self.page_tokens, KV_HEADS) if layout == "NHD" else (KV_HEADS, self.page_tokens)
        return values.view(len(self.pages), 2, *inner, HEAD_DIM)

    def sequence(self, values, layout, index):
        """K and V of one: [2, tokens, heads, dimensions]. As bytes, since few ops know fp8."""
        pages = self.pages[self.starts[index] : self.starts[index + 1]].long()
        kv = self.view(values, layout).view(torch.uint8)[pages].view(values.dtype).float()
        kv = kv if layout == "NHD" else kv.transpose(2, 3)
        return kv.transpose(0, 1).reshape(2, self.tokens[index], KV_HEADS, HEAD_DIM)


def plan(kernel, layout, paged, queries, kv_dtype, workspace):
    """A wrapper whose run() needs no host any more: nothing in it allocates or waits, given `out`."""
    shape = (HEADS, KV_HEADS, HEAD_DIM, paged.page_tokens)
    types = {"q_data_type": torch.float16, "kv_data_type": kv_dtype}
    if queries == 1:
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace,
            layout,
            use_tensor_cores=kernel != "cuda",
            backend="auto" if kernel == "cuda" else kernel,
        )
        wrapper.plan(paged.starts, paged.pages, paged.last_tokens, *shape, **types)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, layout, backend=kernel)
        rows = torch.arange(len(paged.tokens) + 1, dtype=torch.int32) * queries
        wrapper.plan(rows, paged.starts, paged.pages, paged.last_tokens, *shape, causal=True, **types)
    return wrapper


def reference(q, kv):
    """Of the queries of one sequence, which are its last tokens: [queries, heads, dimensions]."""
    k, v = kv
    count, tokens = len(q), len(k)
    grouped = q.float().view(count, KV_HEADS, HEADS // KV_HEADS, HEAD_DIM)
    scores = torch.einsum("nhgd,thd->nhgt", grouped, k) / math.sqrt(HEAD_DIM)
    last = torch.arange(tokens - count, tokens, device=k.device).view(-1, 1, 1, 1)
    scores.masked_fill_(torch.arange(tokens, device=k.device) > last, -math.inf)
    return torch.einsum("nhgt,thd->nhgd", scores.softmax(-1), v).reshape(count, HEADS, HEAD_DIM)


def check(paged, layout, q, values, out, queries):
    for index in (0, len(paged.tokens) - 1):
        rows = slice(index * queries, (index + 1) * queries)
        expected = reference(q[rows], paged.sequence(values, layout, index))
        error = float((out[rows].float() - expected).abs().max() / expected.abs().max())
        if not error < TOLERANCE:  # also where it is not a number
            raise ValueError(f"sequence {index} errs by {error:.3g}")


def time_variant(kernel, layout, paged, queries, kv_copies, q, out, workspace):
    """None where FlashInfer refuses."""
    kvs = [paged.view(values, layout) for values in kv_copies]
    try:
        wrapper = plan(kernel, layout, paged, queries, kv_copies[0].dtype, workspace)
        out.fill_(math.nan)  # what others left there would pass
        wrapper.run(q, kvs[0], out=out)
        check(paged, layout, q, kv_copies[0], out, queries)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of several types, some of FlashInfer's own
        print(f"  refused or wrong: {kernel} {layout}/{paged.page_tokens}, {queries} queries: "
              f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}", file=sys.stderr)
        return None
    return time_calls([lambda kv=kv: wrapper.run(q, kv, out=out) for kv in kvs])


def time_batch(pools, name, queries, kv, unusable, workspace, copy_rate):
    tokens = BATCHES[name]
    dtype = dtypes()[kv]
    elements = 2 * sum(tokens) * KV_HEADS * HEAD_DIM
    kv_bytes = elements * dtype.itemsize
    kv_copies = [pools[kv].take(elements) for _ in range(copies(kv_bytes))]
    q = pools["fp16"].take(len(tokens) * queries, HEADS, HEAD_DIM)
    out = torch.empty_like(q)
    seconds = {}
    for page_tokens in PAGE_TOKENS:
        paged = Paged(tokens, page_tokens)
        for kernel in KERNELS[queries]:
            for layout in LAYOUTS:
                seconds[f"{kernel} {layout}/{page_tokens}"] = (
                    time_variant(kernel, layout, paged, queries, kv_copies, q, out, workspace)
                    if (kernel, kv) not in unusable
                    else None
                )
    best, best_variant = min(((s, v) for v, s in seconds.items() if s is not None), default=(None, None))
    return {
        "batch": name,
        "tokens": tokens,
        "queries": queries,
        "kv": kv,
        "us": {variant: s and s * 1e6 for variant, s in seconds.items()},
        "best": best_variant,
        "best_us": best and best * 1e6,
        "bytes": kv_bytes,
        "share_of_copy": best and kv_bytes / best / copy_rate,
    }


def best_of(us, kernel):
    times = [t for variant, t in us.items() if variant.split()[0] == kernel and t is not None]
    return gpu_baselines.microseconds(min(times, default=None))


def print_report(report):
    print(f"{report['device']}, torch {report['torch']}, FlashInfer {report['flashinfer']}: "
          f"copy {report['copy_bytes_per_second'] / 1e12:.2f} TB/s")
    print(f"\ndecode attention, us {'':11}" + " ".join(f"{kernel:>9}" for kernel in KERNELS[1]) + "  of copy  best")
    for row in report["batches"]:
        times = " ".join(best_of(row["us"], kernel) for kernel in KERNELS[1])
        share = f"{row['share_of_copy']:8.1%}" if row["best"] else f"{'-':>8}"
        print(f"{row['batch']:15}{row['kv']:5}{row['queries']} queries  {times} {share}  {row['best'] or '-'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="FILE", help="the JSON to write")
    parser.add_argument("--whole", action="store_true", help="compile FlashInfer's modules with all masks")
    options = parser.parse_args()
    import_all()
    if not torch.cuda.is_available():
        sys.exit("gpu_flashinfer: no GPU that torch can use")
    progress("imported")
    unusable = compile_all(options.whole)
    torch.manual_seed(1)
    report = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "flashinfer": flashinfer.__version__,
        "copy_bytes_per_second": time_copy(),
        "batches": [],
    }
    pools = {"fp16": Pool(torch.float16)}
    pools["fp8"] = copy.copy(pools["fp16"])
    pools["fp8"].values = pools["fp16"].values.to(torch.float8_e4m3fn)
    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    for name in BATCHES:
        for kv in dtypes():
            for queries in KERNELS:
                report["batches"].append(
                    time_batch(pools, name, queries, kv, unusable, workspace, report["copy_bytes_per_second"])
                )
                options.out.write_text(json.dumps(report, indent=1) + "\n")
        progress(f"timed {name}")
    print_report(report)


if __name__ == "__main__":
    main()
