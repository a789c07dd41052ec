#!/bin/sh
# Checks that a budget covers the whole process: for models, ways to run them and thread counts, prints the bytes
# predicted for the arena, the bound stated for all else, and the kernel's count. Repeats each run under an RLIMIT_DATA
# of that sum, in whole pages, and in a control group of that size if one can be made.
#
#   bench/process_table.sh PROGRAM [MODEL...]
#
# PROGRAM is thimble; MODELs default to all of mlp char-gpt resnet18 resnet50 bert-base gpt2. FOLDER (/var/tmp) holds
# offloaded tensors and checkpoints; THREADS ("1 2") lists thread counts. Needs prlimit (util-linux). Exits with 0 if
# every row has predicted + outside >= process >= arena and every run finished under its limits.
set -eu

if [ $# -lt 1 ]; then
  echo "usage: $0 PROGRAM [MODEL...]" >&2
  exit 2
fi
program=$1
shift
[ $# -gt 0 ] || set -- mlp char-gpt resnet18 resnet50 bert-base gpt2
folder=$(mktemp -d "${FOLDER:-/var/tmp}/process-table.XXXXXX")
group= # the control group of the current run
failures=0 rows=0
cleanup() {
  [ -z "$group" ] || rmdir "$group" 2>/dev/null || true
  rm -rf "$folder"
}
trap cleanup EXIT

flags_of() { # MODEL
  case $1 in
    mlp) echo "--image 28 --batch 16" ;;
    char-gpt) echo "--layers 3 --heads 6 --width 192 --seq 64 --batch 4" ;;
    resnet18) echo "--image 32 --batch 4" ;;
    resnet50) echo "--image 64 --batch 2" ;;
    bert-base) echo "--layers 2 --heads 4 --width 256 --seq 64 --batch 2" ;;
    gpt2) echo "--layers 1 --heads 12 --width 768 --seq 32 --batch 1" ;;
    *) echo "$0: no sizes for $1" >&2 && exit 2 ;;
  esac
}

figure() { # FILE KEY
  sed -n "s/^  \"$2\": \([^,]*\),*$/\1/p" "$folder/$1.json"
}

train() { # NAME FLAGS RUNNER...
  name=$1 flags=$2
  shift 2
  # shellcheck disable=SC2086  # flags holds several words
  "$@" "$program" train $flags --data synthetic --eval-batches 1 --json >"$folder/$name.json" 2>"$folder/$name.txt"
}

# Makes a control group for one run, of version 1 or 2, whichever this process may write to; fails if neither.
make_group() { # BYTES
  for parent in /sys/fs/cgroup/memory /sys/fs/cgroup; do
    for file in memory.limit_in_bytes memory.max; do
      group=$parent/process-table-$$
      mkdir "$group" 2>/dev/null || continue
      if [ -w "$group/$file" ] && echo "$1" >"$group/$file" 2>/dev/null; then return 0; fi
      rmdir "$group" 2>/dev/null || true
    done
  done
  group=
  return 1
}

in_group() { # COMMAND...
  GROUP=$group sh -c 'echo $$ >"$GROUP/cgroup.procs" && exec "$@"' in_group "$@"
}

limited() { # FLAGS SUM
  result=yes
  if ! train limited "$1" prlimit --data="$2"; then result="no: $(tail -n 1 "$folder/limited.txt")"; fi
  grouped="-"
  if make_group "$2"; then
    grouped=yes
    if ! train grouped "$1" in_group; then grouped="no: $(tail -n 1 "$folder/grouped.txt")"; fi
    rmdir "$group" 2>/dev/null || true
    group=
  fi
}

row() { # MODEL WAY THREADS FLAGS
  model=$1 way=$2 threads=$3 flags=$4
  export OMP_NUM_THREADS="$threads"
  rows=$((rows + 1))
  status=0
  train run "$flags" env || status=$?
  if [ "$status" -ne 0 ]; then
    failures=$((failures + 1))
    echo "| $model | $way | $threads | status $status: $(tail -n 1 "$folder/run.txt") |"
    return
  fi
  predicted=$(figure run predicted_peak_bytes) outside=$(figure run outside_bytes)
  data=$(sed -n 's/^    "data_bytes": \([^,]*\),*$/\1/p' "$folder/run.json")
  process=$(figure run process_peak_bytes) arena=$(figure run measured_peak_bytes)
  sum=$((predicted + outside))
  limited "$flags" $(((sum + 4095) / 4096 * 4096)) # limits are whole pages
  verdict=holds
  if [ "$sum" -lt "$process" ] || [ "$process" -lt "$arena" ] || [ "$result" != yes ]; then verdict=FAILS; fi
  if [ "$grouped" != yes ] && [ "$grouped" != - ]; then verdict=FAILS; fi
  [ "$verdict" = holds ] || failures=$((failures + 1))
  echo "| $model | $way | $threads | $predicted | $outside | $data | $process | $arena | $result | $grouped | $verdict |"
}

echo "| model | run | threads | predicted arena | outside, at most | data of that | process peak | arena peak | in RLIMIT_DATA | in a control group | |"
echo "|---|---|--:|--:|--:|--:|--:|--:|---|---|---|"
for model in "$@"; do
  base="$model $(flags_of "$model")"
  for threads in ${THREADS:-1 2}; do
    row "$model" plain "$threads" "$base --steps 3"
    peak=$(figure run predicted_peak_bytes)
    least=$(OMP_NUM_THREADS=$threads sh -c "'$program' plan $base --json" |
      sed -n 's/^  "minimum_feasible_bytes": \([^,]*\),*$/\1/p')
    row "$model" budget "$threads" "$base --steps 3 --budget $(((peak + least) / 2))"
    row "$model" save "$threads" "$base --steps 3 --save $folder/checkpoint"
    # Resumes a run of four steps after its second.
    OMP_NUM_THREADS=$threads train first "$base --steps 2 --schedule constant --warmup 0 --save $folder/half" env
    row "$model" resume "$threads" "$base --steps 4 --schedule constant --warmup 0 --resume $folder/half"
    row "$model" offload "$threads" \
      "$base --steps 3 --offload $folder --budget $(((peak + least) / 2))"
    row "$model" "offload, state, save" "$threads" \
      "$base --steps 3 --offload $folder --offload-optimizer --save $folder/checkpoint --save-every 2"
  done
done
echo "$rows rows, $failures fail"
[ "$failures" -eq 0 ]
