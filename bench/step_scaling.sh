#!/bin/sh
# Measures how a training step grows with the batch, the layers and the sequence:
#
#   bench/step_scaling.sh [BUILD [THREADS [ROUNDS [STEPS]]]]        (build, 1, 3, 3)
#
# Runs BUILD/bin/step_benchmark at every point of a table, the points taking turns, ROUNDS times. The fastest of STEPS
# steps counts, and the least growth of the process. For each table prints time and growth at each point, per sample or
# per layer, and the largest distance from the line through the first and last points, in percent of the line. The last
# table comes from dry runs: the bytes that char-gpt with two layers keeps for T tokens. On a busy machine
# CLOCK=processor with one thread measures processor time instead of wall time. TABLES picks tables by name: batch,
# layers, images, sequence (default: all).
set -e
build=${1:-build}
threads=${2:-1}
rounds=${3:-3}
steps=${4:-3}
program=$build/bin/step_benchmark
clock=best_ms
clock_name="the wall's clock"
if [ "$CLOCK" = processor ]; then
  clock=processor_ms
  clock_name="processor time"
  if [ "$threads" != 1 ]; then
    echo "step_scaling.sh: CLOCK=processor with $threads threads; their times would be added up; expected 1" >&2
    exit 1
  fi
fi
if [ ! -x "$program" ]; then
  echo "step_scaling.sh: $program does not exist; build step_benchmark first" >&2
  exit 1
fi
for table in $TABLES; do
  case $table in
    batch | layers | images | sequence) ;;
    *)
      echo "step_scaling.sh: TABLES names '$table'; expected batch, layers, images or sequence" >&2
      exit 1
      ;;
  esac
done
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export OMP_NUM_THREADS="$threads"
: >"$out/figures"
: >"$out/dry"

wanted() { [ -z "$TABLES" ] || case " $TABLES " in *" $1 "*) ;; *) return 1 ;; esac }
# run FLAGS...: stores a run's output; on failure prints its last message and exits
run() {
  "$program" "$@" --threads "$threads" >"$out/line" 2>"$out/error" || {
    echo "step_scaling.sh: $program $*: $(tail -n 1 "$out/error")" >&2
    exit 1
  }
}
field() { sed -n "s/^.* $1=\([0-9.]*\).*/\1/p" "$out/line"; }
point() {  # point TABLE X FLAGS...
  wanted "$1" || return 0
  table=$1 x=$2
  shift 2
  run "$@" --steps "$steps"
  echo "$table $x $(field $clock) $(field growth_mib) $(field step_gflop) $(field ceiling_gflops)" >>"$out/figures"
}

round=0
while [ "$round" -lt "$rounds" ]; do
  for batch in 1 2 4 8 16 32; do point batch $batch char-gpt --batch $batch; done
  for layers in 1 2 4 8 16; do point layers $layers char-gpt --batch 4 --layers $layers; done
  for batch in 16 32 64 128 256; do point images $batch resnet18 --image 32 --batch $batch; done
  round=$((round + 1))
done
if wanted sequence; then
  for tokens in 1024 2048 4096 8192 16384 32768; do
    run char-gpt --batch 1 --layers 2 --seq $tokens --dry
    echo "$tokens $(field activation_bytes) $(field peak_bytes)" >>"$out/dry"
  done
fi

awk -v threads="$threads" -v clock="$clock_name" '
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
  function print_table(table, title, what, by_difference,   n, x, i, per, per_mib, span) {
    n = split(xs[table], x, " ")
    if (!n) return
    printf "\n| %s | ms | ms for each %s | MiB grown | MiB for each %s | Gflop/s | share |\n", title, what, what
    print "|---:|---:|---:|---:|---:|---:|---:|"
    for (i = 1; i <= n; ++i) {
      per = ms[table, x[i]] / x[i]
      per_mib = mib[table, x[i]] / x[i]
      if (by_difference && i > 1) {
        span = x[i] - x[i - 1]
        per = (ms[table, x[i]] - ms[table, x[i - 1]]) / span
        per_mib = (mib[table, x[i]] - mib[table, x[i - 1]]) / span
      }
      rate = 1e3 * gflop[table, x[i]] / ms[table, x[i]]
      if (by_difference && i == 1) printf "| %d | %.1f | | %.1f | |", x[i], ms[table, x[i]], mib[table, x[i]]
      else printf "| %d | %.1f | %.2f | %.1f | %.2f |", x[i], ms[table, x[i]], per, mib[table, x[i]], per_mib
      printf " %.0f | %.2f |\n", rate, rate / ceiling
    }
    print ""
    line(table, ms, "ms", what)
    line(table, mib, "MiB", what)
  }
  END {
    if (NR) printf "%d thread(s), %s; ceiling %.0f Gflop/s\n", threads, clock, ceiling
    print_table("batch", "char-gpt, batch", "sample", 0)
    print_table("layers", "char-gpt, batch 4, layers", "layer", 1)
    print_table("images", "resnet18 (32x32), batch", "sample", 0)
  }' "$out/figures"
awk '
  NR == 1 { print "\n| char-gpt, two layers, batch 1, T | activations, bytes | for each token more | peak of all, MiB |\n|---:|---:|---:|---:|" }
  {
    more = ""
    if (NR > 1) more = sprintf(" %.2f", ($2 - before) / ($1 - tokens))
    printf "| %d | %d |%s | %.1f |\n", $1, $2, more, $3 / 1048576
    tokens = $1; before = $2
  }' "$out/dry"
