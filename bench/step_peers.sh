#!/bin/sh
# Compares training steps here and in PyTorch, which take turns:
#
#   bench/step_peers.sh [BUILD [THREADS [ROUNDS [STEPS]]]]        (build, 2, 1, 6)
#
# Runs BUILD/bin/step_benchmark, and bench/torch/step.py with each Python in THIMBLE_PYTHON (separated by spaces, say
# "$HOME/torch/bin/python3"; PyTorch 2.5 or later). The fastest of STEPS steps in ROUNDS rounds counts. Our plans:
# `keep` keeps everything; `half` fits in half the process growth of the leanest peer; `ckpt` fits in the growth of the
# leanest peer with a checkpoint around every block. `half` and `ckpt` fuse the optimizer into backward. Memory is the
# growth of the process once the model exists. CASES picks cases by name (default: all). On a busy machine
# CLOCK=processor with one thread measures processor time instead of wall time. Prints two tables: figures, then ratios
# to each peer. Gflop/s count the products that the model asks for, for peers as well; share is their part of the
# highest f32 rate of step_benchmark's FMA loop in registers in any run. bf16 products, and Winograd convolutions, which
# do fewer products, may exceed it.
set -e
sources=$(cd "$(dirname "$0")" && pwd)
build=${1:-build}
threads=${2:-2}
rounds=${3:-1}
steps=${4:-6}
ours=$build/bin/step_benchmark
clock=best_ms
[ "$CLOCK" = processor ] && clock=processor_ms
if [ ! -x "$ours" ]; then
  echo "step_peers.sh: $ours does not exist; build step_benchmark first" >&2
  exit 1
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export OMP_NUM_THREADS="$threads"

peers=
number=0
for python in $THIMBLE_PYTHON; do
  if version=$("$python" -c 'import torch; print(torch.__version__)' 2>/dev/null); then
    number=$((number + 1))
    peers="$peers $number"
    echo "$python" >"$out/python$number"
    echo "# peer $number: PyTorch $version"
  else
    echo "# without $python: it has no PyTorch"
  fi
done
[ -n "$peers" ] || echo "# no peer: THIMBLE_PYTHON names no Python with PyTorch; ours alone"

# Runs a peer at its best: a fast BLAS if installed, the machine's widest vectors, an allocator that keeps its pages.
blas=/usr/lib/$(uname -m)-linux-gnu/openblas-openmp
peer() {  # peer NUMBER MODEL BATCH [ckpt] [bf16]
  python=$(cat "$out/python$1")
  shift
  model=$1 batch=$2
  shift 2
  (
    [ -d "$blas" ] && export LD_LIBRARY_PATH="$blas"
    if grep -q -m 1 avx512f /proc/cpuinfo; then export OPENBLAS_CORETYPE=SKYLAKEX ATEN_CPU_CAPABILITY=avx512; fi
    export MALLOC_TRIM_THRESHOLD_=4000000000 MALLOC_MMAP_THRESHOLD_=4000000000
    export GLIBC_TUNABLES=glibc.malloc.hugetlb=1
    "$python" "$sources/torch/step.py" "$model" "$batch" "$steps" "$@" 2>"$out/error"
  ) || echo "# $python: $model, $batch, $*: $(tail -n 1 "$out/error")"
}
# note CASE WHO: turns a run's line into "case who ms growth", with "gflop-of-a-step ceiling" appended for ours
note() {
  sed -n "s/^#.*/&/p; s/^step .* $clock=\([0-9.]*\).* growth_mib=\([0-9.]*\)\(.* step_gflop=\([0-9.]*\).* ceiling_gflops=\([0-9.]*\)\)\{0,1\}.*/FIGURE $1 $2 \1 \2 \4 \5/p" |
    tee "$out/line" | grep '^#' || true
  sed -n 's/^FIGURE //p' "$out/line" >>"$out/figures"
}
least() {  # least CASE PATTERN: the smallest growth among names that match
  awk -v c="$1" -v who="$2" '$1 == c && $2 ~ who && (m == "" || $4 < m) { m = $4 } END { print m }' "$out/figures"
}
own() {  # own CASE KIND MODEL BATCH FLAGS...
  case_name=$1 kind=$2 model=$3 batch=$4
  shift 4
  if "$ours" "$model" --batch "$batch" --threads "$threads" --steps "$steps" "$@" >"$out/own" 2>"$out/error"; then
    note "$case_name" "ours-$kind" <"$out/own"
  else
    echo "# $case_name, $kind: $(tail -n 1 "$out/error")"
  fi
}
run_case() {  # run_case NAME MODEL BATCH DTYPE CKPT FLAGS...
  name=$1 model=$2 batch=$3 dtype=$4 ckpt=$5
  shift 5
  [ -z "$CASES" ] || case " $CASES " in *" $name "*) ;; *) return 0 ;; esac
  bf16=
  [ "$dtype" = bf16 ] && bf16=bf16
  for p in $peers; do peer "$p" "$model" "$batch" $bf16 | note "$name" "peer-$p"; done
  own "$name" keep "$model" "$batch" --dtype "$dtype" "$@"
  bytes=$(least "$name" '^peer-[0-9]*$')
  if [ -n "$bytes" ]; then own "$name" half "$model" "$batch" --dtype "$dtype" --fuse-optimizer \
    --growth "$(half_of "$bytes")" "$@"; fi
  [ "$ckpt" = ckpt ] || return 0
  for p in $peers; do peer "$p" "$model" "$batch" ckpt $bf16 | note "$name" "peer-$p-ckpt"; done
  bytes=$(least "$name" 'ckpt$')
  if [ -n "$bytes" ]; then own "$name" ckpt "$model" "$batch" --dtype "$dtype" --fuse-optimizer \
    --growth "$(whole "$bytes")" "$@"; fi
}
# Bytes, less 2 MiB for memory outside the arena.
half_of() { awk -v m="$1" 'BEGIN { printf "%.0f", (m / 2 - 2) * 1048576 }'; }
whole() { awk -v m="$1" 'BEGIN { printf "%.0f", (m - 2) * 1048576 }'; }

: >"$out/figures"
round=0
while [ "$round" -lt "$rounds" ]; do
  run_case char-gpt-b8 char-gpt 8 f32 ckpt
  run_case char-gpt-b16 char-gpt 16 f32 none
  run_case tiny-llama-b8 tiny-llama 8 f32 ckpt
  run_case resnet50-b8 resnet50 8 f32 ckpt
  run_case gpt2-b4 gpt2 4 f32 none --seq 64
  run_case bert-base-b8 bert-base 8 f32 none --seq 128
  run_case vit-b16-b4 vit-b16 4 f32 none
  run_case resnet101-b4 resnet101 4 f32 none
  run_case googlenet-b8 googlenet 8 f32 none
  run_case resnet18-b128 resnet18 128 f32 none --image 32
  run_case char-gpt-b8-bf16 char-gpt 8 bf16 none
  run_case resnet50-b8-bf16 resnet50 8 bf16 none
  round=$((round + 1))
done

awk -v threads="$threads" '
  {
    key = $1 SUBSEP $2
    if (!(key in ms) || $3 < ms[key]) ms[key] = $3
    if ($5 > 0) gflop[$1] = $5
    if ($6 > ceiling) ceiling = $6
    if (!(key in mib) || $4 < mib[key]) mib[key] = $4
    if (!($1 in seen)) { seen[$1] = 1; cases[++case_count] = $1 }
    if (!(key in met)) { met[key] = 1; runs[++run_count] = key }
    if ($2 ~ /^peer-[0-9]+$/ && !($2 in is_peer)) { is_peer[$2] = 1; peers[++peer_count] = $2 }
  }
  function ratio(table, a, b) { return (a in table) && (b in table) && table[b] > 0 ? sprintf("%.2f", table[a] / table[b]) : "-" }
  END {
    printf "\n| %s thread(s) | who | ms | MiB grown | Gflop/s | share |\n|---|---|---:|---:|---:|---:|\n", threads
    for (i = 1; i <= run_count; ++i) {
      split(runs[i], part, SUBSEP)
      printf "| %s | %s | %.1f | %.0f |", part[1], part[2], ms[runs[i]], mib[runs[i]]
      rate = 1e3 * gflop[part[1]] / ms[runs[i]]
      if (rate > 0) printf " %.0f | %.2f |\n", rate, rate / ceiling
      else print " - | - |"
    }
    if (!peer_count) exit
    print "\n| ours over | peer | keep: time | memory | half: time | memory | ckpt plan over peer that keeps: time |"
    print "|---|---|---:|---:|---:|---:|---:|"
    for (i = 1; i <= case_count; ++i) for (p = 1; p <= peer_count; ++p) {
      c = cases[i]; peer = c SUBSEP peers[p]
      keep = c SUBSEP "ours-keep"; half = c SUBSEP "ours-half"; ckpt = c SUBSEP "ours-ckpt"
      printf "| %s | %s | %s | %s | %s | %s | %s |\n", c, peers[p], ratio(ms, keep, peer), ratio(mib, keep, peer),
        ratio(ms, half, peer), ratio(mib, half, peer), ratio(ms, ckpt, peer)
    }
  }' "$out/figures"
