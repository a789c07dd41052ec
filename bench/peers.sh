#!/bin/sh
# Compares matmul here and in other libraries, on the same shapes and in one run:
#
#   bench/peers.sh [BUILD [THREADS [ROUNDS]]]        (build, 1, 3)
#
# Builds the programs of bench/peers against the library in BUILD, and against OpenBLAS and oneDNN if installed;
# includes PyTorch if THIMBLE_PYTHON names a Python that has it. The programs take turns ROUNDS times; the best of each
# figure counts. Honours CXX, CXXFLAGS and OPENBLAS_FLAGS (say -L/usr/lib/x86_64-linux-gnu/openblas-openmp -lopenblas).
# Prints Gop/s, and our ratio to the best peer.
set -e
sources=$(cd "$(dirname "$0")" && pwd)/peers
build=${1:-build}
threads=${2:-1}
rounds=${3:-3}
if [ ! -f "$build/libthimble.a" ]; then
  echo "peers.sh: $build/libthimble.a does not exist; build the library first" >&2
  exit 1
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
compiler="${CXX:-c++} -std=c++20 -O2 ${CXXFLAGS:-}"
export OMP_NUM_THREADS="$threads"

flags_of() {  # PACKAGE FALLBACK: its flags; FALLBACK if pkg-config does not know it
  pkg-config --cflags --libs "$1" 2>/dev/null || echo "$2"
}
# build_peer NAME FLAGS: builds the program, or prints why it is left out
build_peer() {
  if $compiler "$sources/matmul_$1.cpp" -o "$out/$1" $2 -fopenmp 2>"$out/$1.log"; then
    programs="$programs $1"
  else
    echo "# without $1: $(grep -m 1 -E 'error|cannot find' "$out/$1.log")"
  fi
}
programs=
build_peer thimble "-I$build/include $build/libthimble.a -lz -lpthread"
[ -n "$programs" ] || exit 1
build_peer openblas "${OPENBLAS_FLAGS:-$(flags_of openblas -lopenblas)}"
build_peer onednn "$(flags_of dnnl -ldnnl)"

# Old releases of OpenBLAS fall back to slow kernels on processors they do not know; naming the core type helps.
has_avx512=$(grep -c -m 1 avx512f /proc/cpuinfo || true)
round=0
while [ "$round" -lt "$rounds" ]; do
  for program in $programs; do
    "$out/$program" "$threads" | sed "s/^/$program /" >>"$out/figures"
    if [ "$program" = openblas ] && [ "$has_avx512" = 1 ]; then
      OPENBLAS_CORETYPE=SKYLAKEX "$out/openblas" "$threads" | sed "s/^/$program /" >>"$out/figures"
    fi
  done
  if [ -n "$THIMBLE_PYTHON" ]; then
    sed -n 's/^ *{"\(.*\)},$/{"\1}/; /{"/{s/}, *{/\n/g; s/[{}",]/ /g; p}' "$sources/shapes.h" | awk 'NF == 4' |
      "$THIMBLE_PYTHON" "$sources/../torch/matmul.py" "$threads" | sed "s/^/torch /" >>"$out/figures"
  fi
  round=$((round + 1))
done

awk -v threads="$threads" '
  {
    program = $1; kind = $2; shape = $3
    if (sub("-packed", "", kind)) program = "onednn-packed"
    if ($4 > best[program, kind, shape]) best[program, kind, shape] = $4
    if (!(shape in seen)) { seen[shape] = 1; shapes[++shape_count] = shape }
  }
  function figure(program) { return best[program, kind, shape] > 0 ? sprintf("%.0f", best[program, kind, shape]) : "-" }
  function larger(a, program) { return best[program, kind, shape] > a ? best[program, kind, shape] : a }
  END {
    printf "| %s thread(s), Gop/s | | Thimble | OpenBLAS | oneDNN | oneDNN, packed | PyTorch | ratio | to packed |\n", threads
    print "|---|---|---:|---:|---:|---:|---:|---:|---:|"
    split("f32 bf16", kinds, " ")
    for (i = 1; i <= 2; ++i) {
      kind = kinds[i]
      count = at_least = 0; worst = 1e9
      for (j = 1; j <= shape_count; ++j) {
        shape = shapes[j]
        if (best["thimble", kind, shape] == 0) continue
        ours = best["thimble", kind, shape]
        peer = larger(larger(larger(0, "openblas"), "onednn"), "torch")
        ratio = peer > 0 ? ours / peer : 0
        packed = best["onednn-packed", kind, shape]
        packed_ratio = packed > 0 ? ours / packed : 0
        printf "| %s | %s | %s | %s | %s | %s | %s | %.2f | %.2f |\n", kind, shape, figure("thimble"), figure("openblas"),
          figure("onednn"), figure("onednn-packed"), figure("torch"), ratio, packed_ratio
        ++count; at_least += ratio >= 1
        if (ratio < worst) worst = ratio
      }
      if (count) summary = summary sprintf("%s: at least the best peer on %d of %d shapes, worst ratio %.2f\n", kind, at_least, count, worst)
    }
    printf "\n%s", summary
  }' "$out/figures"
