#!/bin/sh
# Measures how a training step grows with the batch and the layers:
#
#   bench/step_scaling.sh [BUILD [THREADS [ROUNDS [STEPS]]]]        (build, 1, 3, 3)
#
# Runs BUILD/bin/step_benchmark at every point of a table, the points taking turns, ROUNDS times. The fastest of STEPS
# steps counts, and the least growth of the process. For each table prints time and growth at each point, per sample or
# per layer, and the largest distance from the line through the first and last points, in percent of the line. On a busy
# machine CLOCK=processor with one thread measures processor time instead of wall time.
set -e
program=${1:-build}/bin/step_benchmark
threads=${2:-1}
rounds=${3:-3}
steps=${4:-3}
clock=best_ms
[ "$CLOCK" != processor ] || clock=processor_ms
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export OMP_NUM_THREADS="$threads"

field() { sed -n "s/^.* $1=\([0-9.]*\).*/\1/p" "$out/line"; }
point() {  # point TABLE X FLAGS...
  table=$1 x=$2
  shift 2
  "$program" "$@" --threads "$threads" --steps "$steps" >"$out/line"
  echo "$table $x $(field $clock) $(field growth_mib) $(field step_gflop) $(field ceiling_gflops)" >>"$out/figures"
}

round=0
while [ "$round" -lt "$rounds" ]; do
  for batch in 1 2 4 8 16 32; do point batch $batch char-gpt --batch $batch; done
  for layers in 1 2 4 8 16; do point layers $layers char-gpt --batch 4 --layers $layers; done
  for batch in 16 32 64 128 256; do point images $batch resnet18 --image 32 --batch $batch; done
  round=$((round + 1))
done

awk -v threads="$threads" -v clock="$clock" '
  {
    key = $1 SUBSEP $2
    if (!(key in ms)) { xs[$1] = xs[$1] " " $2; ms[key] = $3; mib[key] = $4 }
    if ($3 < ms[key]) ms[key] = $3
    if ($4 < mib[key]) mib[key] = $4
    gflop[key] = $5
    if ($6 > ceiling) ceiling = $6
  }
  # The line through the first and last point, and the largest distance from it.
  function line(table, values, unit, what,   n, x, i, slope, base, at, far, where) {
    n = split(xs[table], x, " ")
    slope = (values[table, x[n]] - values[table, x[1]]) / (x[n] - x[1])
    base = values[table, x[1]] - slope * x[1]
    for (i = 2; i < n; ++i) {
      at = 100 * (values[table, x[i]] / (base + slope * x[i]) - 1)
      if (at * at > far * far) { far = at; where = x[i] }
    }
    printf "- %s: %.2f %s and %.2f for each %s; farthest from that line: %+.1f %%%s\n", unit == "ms" ? "time" : "growth",
      base, unit, slope, what, far, where == "" ? "" : " at " where
  }
  function print_table(table, title, what, by_difference,   n, x, i, from, span) {
    n = split(xs[table], x, " ")
    printf "\n| %s | ms | ms for each %s | MiB grown | MiB for each %s | Gflop/s | share |\n", title, what, what
    print "|---:|---:|---:|---:|---:|---:|---:|"
    for (i = 1; i <= n; ++i) {
      from = by_difference && i > 1 ? x[i - 1] : 0
      span = x[i] - from
      rate = 1e3 * gflop[table, x[i]] / ms[table, x[i]]
      if (by_difference && i == 1) printf "| %d | %.1f | | %.1f | |", x[i], ms[table, x[i]], mib[table, x[i]]
      else printf "| %d | %.1f | %.2f | %.1f | %.2f |", x[i], ms[table, x[i]], (ms[table, x[i]] - ms[table, from]) / span,
        mib[table, x[i]], (mib[table, x[i]] - mib[table, from]) / span
      printf " %.0f | %.2f |\n", rate, rate / ceiling
    }
    print ""
    line(table, ms, "ms", what)
    line(table, mib, "MiB", what)
  }
  END {
    printf "%d thread(s), %s; ceiling %.0f Gflop/s\n", threads, clock, ceiling
    print_table("batch", "char-gpt, batch", "sample", 0)
    print_table("layers", "char-gpt, batch 4, layers", "layer", 1)
    print_table("images", "resnet18 (32x32), batch", "sample", 0)
  }' "$out/figures"
