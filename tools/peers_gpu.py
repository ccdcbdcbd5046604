#!/usr/bin/env python3
"""Compares quantspec with llama.cpp on this machine's GPU, on one file.

    tools/peers_gpu.py MODEL.gguf --llama DIR

Options and tables are those of peers_cpu.py. DIR has llama.cpp's programs, built
for CUDA: what tools/real_models.sh fetches into llama.cpp/src, with
-DGGML_CUDA=ON. Both have all layers on the first GPU.
"""

import subprocess
import sys

from peers_cpu import main


def gpu():
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
                              capture_output=True, text=True)
    except OSError as error:
        sys.exit(f"peers_gpu: nvidia-smi: {error.strerror}")
    if done.returncode != 0:
        sys.exit(f"peers_gpu: {done.stdout.strip() or 'nvidia-smi finds no GPU'}")
    return done.stdout.splitlines()[0]


if __name__ == "__main__":
    try:
        main(__doc__, gpu())
    except KeyboardInterrupt:
        sys.exit("peers_gpu: stopped")
