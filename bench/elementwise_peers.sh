#!/bin/sh
# Compares kernels bound by memory bandwidth, here and in PyTorch, in one run:
#
#   bench/elementwise_peers.sh [BUILD [THREADS [ROUNDS]]]        (build, 1, 2)
#
# BUILD/bin/kernel_benchmark and bench/torch/elementwise.py (run by THIMBLE_PYTHON) take turns; the best of each figure
# counts. Prints milliseconds, our share of the triad's rate, and our time over PyTorch's. PyTorch's allocator keeps its
# pages.
set -e
sources=$(cd "$(dirname "$0")" && pwd)
build=${1:-build}
threads=${2:-1}
rounds=${3:-2}
ours=$build/bin/kernel_benchmark
if [ ! -x "$ours" ]; then
  echo "elementwise_peers.sh: $ours does not exist; build kernel_benchmark first" >&2
  exit 1
fi
if ! "${THIMBLE_PYTHON:-python3}" -c 'import torch' 2>/dev/null; then
  echo "elementwise_peers.sh: ${THIMBLE_PYTHON:-python3} has no torch; name a Python that has it in THIMBLE_PYTHON" >&2
  exit 1
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export OMP_NUM_THREADS="$threads"
round=0
while [ "$round" -lt "$rounds" ]; do
  "$ours" --threads "$threads" >"$out/run"
  grep 'threads:' "$out/run"
  sed -n 's/^| \(.*\) |$/ours|\1/p' "$out/run" | sed 's/ *| */|/g' >>"$out/figures"
  MALLOC_TRIM_THRESHOLD_=4000000000 MALLOC_MMAP_THRESHOLD_=4000000000 GLIBC_TUNABLES=glibc.malloc.hugetlb=1 \
    "${THIMBLE_PYTHON:-python3}" "$sources/torch/elementwise.py" "$threads" | sed 's/^/torch|/' >>"$out/figures"
  round=$((round + 1))
done
awk -F'|' '
  function least(key, value) { if (value != "" && (!(key in best) || value + 0 < best[key])) best[key] = value + 0 }
  function most(key, value) { if (value != "" && value + 0 > share[key]) share[key] = value + 0 }
  function show(key) { return key in best ? sprintf("%.2f", best[key]) : "" }
  function ratio(name, way) {
    return best["ours" name way] > 0 && best["torch" name way] > 0 ? sprintf("%.2f", best["ours" name way] / best["torch" name way]) : ""
  }
  $2 ~ /^operator/ || $2 ~ /^-/ { next }
  !($2 in seen) { seen[$2] = 1; names[++count] = $2 }
  $1 == "ours" { least("ours" $2 "f", $3); least("ours" $2 "b", $6); most($2 "f", $5); most($2 "b", $8) }
  $1 == "torch" { least("torch" $2 "f", $3); least("torch" $2 "b", $4) }
  END {
    print "| | forward or update, ms | share of the triad | PyTorch | ratio | backward, ms | share | PyTorch | ratio |"
    print "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for (i = 1; i <= count; ++i) {
      name = names[i]
      if (!(("ours" name "f") in best)) continue
      printf "| %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", name, show("ours" name "f"), share[name "f"],
        show("torch" name "f"), ratio(name, "f"), show("ours" name "b"), share[name "b"], show("torch" name "b"), ratio(name, "b")
    }
  }' "$out/figures"
