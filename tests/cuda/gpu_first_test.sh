#!/usr/bin/env bash
# Runs bench/gpu_first.sh and bench/gpu_table.py with programs that pass, fail, hang and are missing:
#
#   tests/cuda/gpu_first_test.sh OUT        OUT is emptied
set -euo pipefail
out=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
command -v python3 >/dev/null || exit 77
rm -rf "$out"
mkdir -p "$out/bin"
out=$(cd "$out" && pwd)

# fake NAME: makes a program from standard input.
fake() {
  { echo '#!/usr/bin/env bash' && cat; } >"$out/bin/$1"
  chmod +x "$out/bin/$1"
}
fake thimble <<<'echo "cuda   built, found"'
fake thimble_tests <<<'echo "test cases: 3 | 2 passed | 1 failed"; exit 1'
fake gpu_memory_benchmark <<<'echo "copy                 2048 MiB     0.5000 ms    4000.0 GB/s"'
# Prints two of three lines, then hangs and leaves a child process.
fake gpu_benchmark <<E2
echo "add                    bf16       0.0250 ms    3600.0 GB/s"
echo "gelu                   bf16       0.0500 ms    1000.0 GB/s"
sleep 600 &
echo \$! >"$out/hanging"
wait
echo "softmax                bf16       0.0500 ms    1000.0 GB/s"
E2
fake gpu_step_benchmark <<'E2'
[ "$1" = gpt2 ] || exit 3
cat <<'JSON'
{
  "best_ms": 50.0,
  "items_per_s": 327680.0,
  "predicted_peak_bytes": 2097152,
  "measured_peak_bytes": 4194304,
  "waits_per_step": 0,
  "cublaslt_calls": 7,
  "cublaslt_refusals": 2,
  "cublaslt_first_refused": "matmul (3, 5)"
}
JSON
E2
# A Python whose PyTorch answers only the train command.
mkdir -p "$out/python/torch"
fake python <<E2
case "\$*" in
  *torch/gpu.py*) echo '{' && echo '  "best_ms": 40.0, "items_per_s": 409600.0, "reserved_bytes": 8388608, "peak_bytes": 8000000' && echo '}' ;;
  '-c import torch'*) exit 0 ;;
  *) exec python3 "\$@" ;;
esac
E2

status=0
BIN=$out/bin THIMBLE_PYTHON=$out/bin/python LIMIT=4 "$root/bench/gpu_first.sh" \
  --stages devices,tests,memory,speed,gpt2,fit "$out/results" >"$out/said" 2>&1 || status=$?

failed=0
# has WHAT PATTERN FILE
has() { grep -qE -- "$2" "$out/results/$3" || { echo "not in $3: $1: $2" && failed=1; }; }
[ "$status" = 1 ] || { echo "exit status $status, 1 expected" && failed=1; }
[ "$(find "$out/results" -type f | wc -l)" -le 4 ] || { echo "more than 4 files" && failed=1; }
has 'a stage that passes' '^\| devices \| passed' table.md
has 'one that fails' '^\| tests \| \*\*FAILED\*\* .*2 passed / 1 failed' table.md
has 'one that hangs' '^\| speed \| \*\*TIMED OUT\*\*' table.md
has 'the next' '^\| gpt2 \| passed' table.md
has 'a program that fails' '^\| fit \| \*\*FAILED\*\* .*FAILED with 3' table.md
has 'a figure and its goal' '^\| add bf16 \| 0.0250 ms \| 3600 GB/s, 0.90 of a copy .*0.85 of a copy: met' table.md
has 'a figure that misses it' '^\| gelu bf16 .*0.25 of a copy .*missed' table.md
has 'bytes that differ' '^\| gpt2: bytes \| predicted 2097152, measured 4194304 .*missed' table.md
has 'what was refused' '^\| gpt2: cublaslt refused \| 2 of 7; first matmul \(3, 5\)' table.md
has 'PyTorch' '^\| gpt2 beside gpt2-torch: items/s \| 0.80 of PyTorch.s \| at least 1 \| \*\*missed\*\*' table.md
has 'its bytes' '^\| gpt2 beside gpt2-torch: bytes \| 0.50 of its reserved_bytes \| at most 0.5 \| met' table.md
if grep -q softmax "$out/results/results.txt"; then echo "a line from behind the end of its stage" && failed=1; fi
# A zombie counts as gone.
hangs() { grep -qs '^State:[[:space:]]*[^Z]' "/proc/$(cat "$out/hanging")/status"; }
for _ in {1..50}; do hangs && sleep 0.1; done
if hangs; then echo "a process of the stage that hung goes on" && failed=1; fi

# A second call replaces the stages that it reruns and keeps the rest.
fake thimble_tests <<<'echo "All tests passed (3 assertions in 3 test cases)"'
BIN=$out/bin THIMBLE_PYTHON=$out/bin/python LIMIT=4 "$root/bench/gpu_first.sh" --stages tests "$out/results" >>"$out/said" 2>&1 ||
  { echo "the second call failed" && failed=1; }
has 'the second run' '^\| tests \| passed .*All tests passed' table.md
has 'the first call' '^\| speed \| \*\*TIMED OUT\*\*' table.md
# Without a GPU, tests that pass prove nothing: they ran only on the CPU.
fake thimble <<<'echo "cuda   built, not found"'
BIN=$out/bin THIMBLE_PYTHON=$out/bin/python LIMIT=4 "$root/bench/gpu_first.sh" --stages devices,tests "$out/results" >>"$out/said" 2>&1 &&
  { echo "a call without a GPU passed" && failed=1; }
has 'no GPU' '^\| devices \| \*\*FAILED\*\* .*finds no GPU' table.md
has 'tests without one' '^\| tests \| left out .*finds no GPU' table.md
[ "$failed" = 0 ] || tail -n 40 "$out/said"
exit "$failed"
