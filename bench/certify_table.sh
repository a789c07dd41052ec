#!/bin/sh
# Prints the table of docs/certify.md: certifies named models bit by bit at real size, each in about half the memory of
# keeping everything; then runs EXAMPLE, built from examples/own_model_in_a_budget.cpp, if given.
# `bench/certify_table.sh PROGRAM [STEPS [EXAMPLE]]` writes Markdown to standard output and exits with 1 if a
# certificate does not hold. Needs python3 to read JSON.
set -eu
program=$1
steps=${2:-2}
example=${3:-}
number() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }
failed=0
echo "| model | batch | keeping everything | budget | peak, predicted and measured | more time, by the cost model | tensors | bytes compared | equal |"
echo "|---|---:|---:|---:|---:|---:|---:|---:|---|"
while read -r model batch flags; do
  [ -n "$model" ] || continue
  # shellcheck disable=SC2086  # flags holds several words
  plan=$("$program" plan "$model" --batch "$batch" $flags --data synthetic --json)
  all=$(echo "$plan" | number keep_everything_bytes)
  least=$(echo "$plan" | number minimum_feasible_bytes)
  half=$((all / 2))
  [ "$half" -ge "$least" ] || half=$(((all + least) / 2))
  status=0
  # shellcheck disable=SC2086
  result=$("$program" certify "$model" --batch "$batch" $flags --budget "${half}" --steps "$steps" --json) || status=$?
  if [ "$status" != 0 ] && [ "$status" != 5 ]; then
    echo "certify_table: $model ended with status $status" >&2
    exit 1
  fi
  [ "$status" = 0 ] || failed=1
  echo "$result" | python3 -c '
import json, sys
r, flags, kept = json.load(sys.stdin), sys.argv[1], int(sys.argv[2])
name = r["model"] + (" `" + flags + "`" if flags else "")
peaks = sorted({r["predicted_peak_bytes"], r["planned_peak_bytes"]})
cells = [name, r["batch"], kept, r["budget_bytes"], " and ".join(format(p, ",") for p in peaks),
         "%.1f %%" % (100 * r["time_overhead"]), r["compared_tensors"], r["compared_bytes"],
         "yes" if r["holds"] else "NO"]
print("| " + " | ".join(format(c, ",") if isinstance(c, int) else c for c in cells) + " |")' "$flags" "$all"
done <<MODELS
mlp 16384
char-gpt 4 --seq 128
gpt2 2 --seq 512
bert-base 4 --seq 256
vit-b16 2
resnet18 16 --image 64
resnet50 2
googlenet 4
sharedconv 8
MODELS
if [ -n "$example" ]; then
  echo
  "$example" || failed=1
fi
exit $failed
