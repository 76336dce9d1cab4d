#!/usr/bin/env bash
# Everything that only a GPU can show, from the repository, into one directory: bash tests/gpu/record.sh DIRECTORY
# Needs a stack (DYNO_STACK_PYTHON, else the running Python) and Dyno's own packages (requirements/tools.in, test.in).
# Each step goes on where the one before failed; the last line counts the failures.
set -uo pipefail
out=${1:?usage: bash tests/gpu/record.sh DIRECTORY}
mkdir -p "$out"
cd "$(dirname "$0")/../.." || exit
export DYNO_STACK_PYTHON=${DYNO_STACK_PYTHON:-$(command -v python3)}
failures=0

step() { # name, command...: its output and its seconds are kept
    local name=$1 began=$SECONDS code
    shift
    "$@" >"$out/$name.out" 2>"$out/$name.err"
    code=$?
    printf '%-24s exit code %d, %d s\n' "$name" "$code" "$((SECONDS - began))" | tee -a "$out/steps.txt"
    [ "$code" -eq 0 ] || { failures=$((failures + 1)) && tail -n 15 "$out/$name.out" "$out/$name.err"; }
}

cold() { # an empty cache of compiled kernels, as in a container started with --rm
    env TORCHINDUCTOR_CACHE_DIR="$out/cache/inductor" TRITON_CACHE_DIR="$out/cache/triton" "$@"
}

nvidia-smi >"$out/nvidia-smi.txt" 2>&1
step selftest-cold cold python3 -m healthcheck selftest --json "$out/selftest-cold.json"
step selftest-warm cold python3 -m healthcheck selftest --json "$out/selftest-warm.json"
rm -rf "$out/cache"
step bench python3 -m healthcheck.cli.bench run --output "$out/bench"
step timer python3 -m tests.gpu.record_timer
step tests python3 -m pytest tests/gpu -m gpu -q -p no:cacheprovider

# Beside another process on the same GPU the figures have to be marked: exit code 0, a warning in the report.
python3 -c 'import torch
a = torch.rand(8192, 8192, device="cuda")
while True: a @ a; torch.cuda.synchronize()' &
beside=$!
sleep 8
step disturbed python3 -m healthcheck.cli.bench run streams --short --json "$out/disturbed.json"
kill "$beside"
grep -q '"disturbed": ".' "$out/disturbed.json" || { echo "disturbed: not marked" && failures=$((failures + 1)); }

echo "$failures failures"
[ "$failures" -eq 0 ]
