#!/bin/bash
# Refuses C++ sources that .clang-format would write differently; --fix rewrites them.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v clang-format >/dev/null; then
  echo "check_format: no clang-format; install the Debian package clang-format" >&2
  exit 1
fi
mode=(--dry-run -Werror)
[[ "${1:-}" == --fix ]] && mode=(-i)
find src apps tests examples fuzz -type f \
  \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc' \) -print0 |
  xargs -0 --no-run-if-empty clang-format --style=file "${mode[@]}"
