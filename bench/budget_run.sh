#!/bin/sh
# Trains a 12-layer GPT with dropout in less than a third of the memory of keeping everything, under RLIMIT_DATA, and
# compares every loss bit for bit with a run without a budget.
#
#   bench/budget_run.sh PROGRAM TEXT [STEPS]
#
# PROGRAM is thimble, TEXT a text file; STEPS defaults to 200. Needs prlimit (util-linux). Exits with 0 if all losses
# and all bytes of the checkpoint are equal.
set -eu

program=$1 text=$2 steps=${3:-200}
budget_mib=72
rest_mib=64 # outside the arena: code, heap, thread stacks, the text
limit=$(((budget_mib + rest_mib) * 1024 * 1024))
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

train() { # NAME FLAGS RUNNER...
  name=$1 flags=$2
  shift 2
  "$@" "$program" train char-gpt --data "$text" --layers 12 --heads 4 --width 128 --seq 128 --batch 16 --dropout 0.1 \
    --steps "$steps" --eval-batches 4 --save "$folder/$name.safetensors" --log "$folder/$name" --json $flags \
    >"$folder/$name.json" 2>"$folder/$name.txt"
}

figure() { # NAME KEY
  sed -n "s/^ *\"$2\": \([^,]*\),*$/\1/p" "$folder/$1.json"
}

# The 'loss' curve of an event file, each value as its four bytes.
losses() {
  od -An -v -tx1 "$folder/$1"/events.* | tr -d ' \n' | grep -o '0a046c6f737315........'
}

train free "" env
train planned "--budget ${budget_mib}MiB" prlimit --data="$limit"
if train refused "" prlimit --data="$limit"; then
  echo "$0: the limit of $limit bytes did not stop the run without a budget" >&2
  exit 1
fi

echo "run                  predicted    measured    process peak   ms per step   loss after $steps steps   validation loss"
for name in free planned; do
  echo "$name: $(figure $name predicted_peak_bytes) $(figure $name measured_peak_bytes) $(figure $name rss_peak_bytes)" \
    "$(figure $name ms_per_step) $(figure $name loss_last) $(figure $name validation_loss)"
done
echo "time by the cost model: $(figure planned time_overhead) over keeping everything"
echo "without a budget under the same limit: $(tail -n 1 "$folder/refused.txt")"

losses free >"$folder/free.losses"
losses planned >"$folder/planned.losses"
echo "$(wc -l <"$folder/free.losses") losses"
cmp "$folder/free.losses" "$folder/planned.losses"
cmp "$folder/free.safetensors" "$folder/planned.safetensors"
[ "$(wc -l <"$folder/free.losses")" -eq "$steps" ]
echo "equal: every loss, and the checkpoint byte for byte"
