#!/bin/sh
# Trains on text under an MPI launcher. Four processes, each within a budget, write the file that one process writes; so
# do eight, with tensor, pipeline and data parallelism; so does a run that loses a rank to signal 9 and resumes from its
# last checkpoint with another number of ranks. The other ranks end within 10 s with a nonzero status. Processes started
# with different flags are refused by name before the first step.
#
#   mpi_train.sh MPIRUN THIMBLE TEXT WORK_DIR [KILLS]
#
# TEXT is a text file or `synthetic`. KILLS (4) are spread evenly over a run and hit the ranks in turn.
set -eu
mpirun=$1 thimble=$2 text=$3 work=$4 kills=${5:-4}
if [ "$mpirun" = none ]; then
  echo "SKIPPED: this MPI was not found"
  exit 77
fi
rm -rf "$work"
mkdir -p "$work"
# Open MPI refuses more ranks than processors, and root, unless told otherwise.
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

fail() {
  echo "FAILED: $*" >&2
  cat "$work/out" "$work/err" >&2
  exit 1
}
train() { # train WORD...: a run that must succeed
  "$@" --data "$text" --layers 2 --width 96 --seq 64 --batch 8 --steps 12 --threads 1 --dropout 0.1 --eval-batches 2 \
    >"$work/out" 2>"$work/err" || fail "$*"
}

train "$thimble" train char-gpt --micro-batches 4 --save "$work/one"
budget=4MiB
train timeout 120 "$mpirun" -n 4 "$thimble" train char-gpt --zero 3 --budget $budget --save "$work/four" --json
cmp "$work/one" "$work/four" || fail "four processes have another file"
peaks=$(sed -n 's/.*"measured_peak_bytes": \([0-9]*\).*/\1/p' "$work/out" | tail -n 4 | tr '\n' ' ')
processes=$(sed -n 's/.*"process_peak_bytes": \([0-9]*\).*/\1/p' "$work/out" | tail -n 4 | tr '\n' ' ')
[ "$(echo "$peaks" | wc -w)" -eq 4 ] || fail "no peaks of four ranks"
for peak in $peaks; do [ "$peak" -gt 0 ] && [ "$peak" -le 4194304 ] || fail "a rank committed $peak bytes"; done
echo "four processes in $budget each: the file of one; arenas $peaks, processes $processes"

# ---- Eight processes in a layout

train "$thimble" train char-gpt --tp 2 --sequence-parallel --pp 2 --micro-batches 4 --save "$work/parts"
train timeout 240 "$mpirun" -n 8 "$thimble" train char-gpt --tp 2 --sequence-parallel --pp 2 --zero 1 --micro-batches 2 \
  --save "$work/eight"
cmp "$work/parts" "$work/eight" || fail "eight processes, in 2 parts, 2 stages and 2 shares of the batch, have another file"
echo "eight processes in 2 parts, 2 stages and 2 shares of the batch: the file of one"

# ---- Ranks that were started differently

# differ TEXT FLAGS FLAGS [MORE]: starts two processes, each with its FLAGS and both with MORE. They must print TEXT
# before the first step; if TEXT is empty, they must train and write the file of ranks that are alike.
differ() {
  said=$1 flags0=$2 flags1=$3 more=${4:-}
  rm -f "$work/differ"
  status=0 begin=$(milliseconds)
  # shellcheck disable=SC2086
  set -- train char-gpt --width 32 --heads 2 --seq 32 --threads 1 --eval-batches 1 --save "$work/differ" $more
  # shellcheck disable=SC2086
  timeout 120 "$mpirun" -n 1 "$thimble" "$@" $flags0 : -n 1 "$thimble" "$@" $flags1 >"$work/out" 2>"$work/err" || status=$?
  took=$(($(milliseconds) - begin))
  if [ -z "$said" ]; then
    [ $status -eq 0 ] || fail "'$flags0' and '$flags1': status $status"
    cmp "$work/alike" "$work/differ" || fail "'$flags0' and '$flags1' have another file"
    return 0
  fi
  [ $status -eq 2 ] || fail "'$flags0' and '$flags1': status $status"
  [ "$(grep -c '^thimble: train: expected the same on all ranks, got on ranks 0 and 1 ' "$work/err")" -eq 1 ] ||
    fail "'$flags0' and '$flags1': not one line"
  grep -qF -- "$said" "$work/err" || fail "'$flags0' and '$flags1': not \"$said\""
  if grep -q '^step ' "$work/err"; then fail "'$flags0' and '$flags1': a step"; fi
  [ ! -e "$work/differ" ] || fail "'$flags0' and '$flags1': a file"
}
milliseconds() { echo $(($(date +%s%N) / 1000000)); }
data="--data $text" sizes="--layers 2 --batch 4 --steps 3"
all="$data $sizes"
# shellcheck disable=SC2086
timeout 120 "$mpirun" -n 2 "$thimble" train char-gpt --width 32 --heads 2 --seq 32 --threads 1 \
  --eval-batches 1 --save "$work/alike" $all >"$work/out" 2>"$work/err" || fail "two that are alike"
[ "$text" = synthetic ] || cp "$text" "$work/copy"
best=$("$thimble" devices 2>/dev/null | sed -n 's/.*\(avx512\|avx2\).*/\1/p' | head -n 1)
if [ -n "$best" ]; then differ "--isa $best and generic" "--isa $best" "--isa generic" "$all"; fi
differ "--seed 1 and 2" "--seed 1" "--seed 2" "$all"
differ "--clip 0 and 1" "--clip 0" "--clip 1" "$all"
differ "--optimizer adamw and sgd" "--optimizer adamw" "--optimizer sgd" "$all"
differ "--lr 0.001 and 0.002" "--lr 0.001" "--lr 0.002" "$all"
differ "--schedule cosine and constant" "" "--schedule constant" "$all"
differ "--warmup 0 and 1" "" "--warmup 1" "$all"
differ "--weight-decay 0.1 and 0" "" "--weight-decay 0" "$all"
differ "--beta2 0.99 and 0.9" "" "--beta2 0.9" "$all"
differ "--dropout 0 and 0.1" "--dropout 0" "--dropout 0.1" "$all"
differ "--micro-batches of a rank 1 and 2" "" "--micro-batches 2" "$all"
differ "--batch 4 and 8" "--batch 4" "--batch 8" "$data --layers 2 --steps 3"
differ "--steps 3 and 4" "--steps 3" "--steps 4" "$data --layers 2 --batch 4"
differ "--zero 0 and 1" "" "--zero 1" "$all"
differ "--bucket 26214400 and 0" "" "--bucket 0" "$all"
differ "--eval-every 0 and 1" "" "--eval-every 1" "$all"
differ "--save-every 0 and 1" "" "--save-every 1" "$all"
differ "--precision none and O1" "" "--precision O1" "$all"
differ "--state f32 and bf16" "" "--state bf16" "$all"
differ "--layers 2 and 3" "--layers 2" "--layers 3" "$data --batch 4 --steps 3"
differ "--head full and chunked" "" "--head chunked" "$all"
differ "--tp 1 and 2" "" "--tp 2" "$all"
differ "--trace not given and given" "" "--trace $work/trace" "$all"
differ "--budget none and 1073741824" "" "--budget 1GiB" "$all --zero 3"
differ "" "--budget 1GiB" "--recompute-blocks" "$all"
differ "" "--json" "" "$all"
if [ "$text" != synthetic ]; then
  differ "" "--data $text" "--data $work/copy" "$sizes"
  tac "$text" >"$work/reversed"
  differ "--data " "--data $text" "--data $work/reversed" "$sizes"
  differ "--save-weights " "" "--save-weights $work/other" "$all"
fi
echo "processes that differ: refused by name on one line, with status 2"

# ---- A rank that is killed

begin=$(milliseconds)
train timeout 120 "$mpirun" -n 4 "$thimble" train char-gpt --zero 2 --save-every 1 --save "$work/whole"
took=$(($(milliseconds) - begin))
cmp "$work/one" "$work/whole" || fail "a run that saves every step has another file"

i=0 resumed=0 too_late=0 stuck=0
while [ $i -lt "$kills" ]; do
  rank=$((i % 4)) delay=$((took * (i + 1) / (kills + 1)))
  rm -f "$work"/run* "$work"/pid.*
  # shellcheck disable=SC2016
  timeout 120 "$mpirun" -n 4 sh -c '
    echo $$ >"$0/pid.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"; exec "$@"' "$work" "$thimble" train char-gpt --zero 2 \
    --save-every 1 --save "$work/run" --data "$text" --layers 2 --width 96 --seq 64 --batch 8 --steps 12 --threads 1 \
    --dropout 0.1 --eval-batches 2 >"$work/out" 2>"$work/err" &
  launcher=$!
  sleep "$((delay / 1000)).$(printf %03d $((delay % 1000)))"
  killed=
  if [ -s "$work/pid.$rank" ] && kill -9 "$(cat "$work/pid.$rank")" 2>/dev/null; then killed=yes; fi
  begin=$(milliseconds) status=0
  for pid in $(cat "$work"/pid.* 2>/dev/null); do
    while kill -0 "$pid" 2>/dev/null; do
      [ $(($(milliseconds) - begin)) -le 10000 ] || fail "kill $i: process $pid is still there"
      sleep 0.1
    done
  done
  # mpirun of Open MPI 4.1 may hang if a rank is killed before it contacts mpirun.
  (
    sleep 10
    pkill -9 -P $launcher
    kill -9 $launcher
  ) 2>/dev/null &
  watch=$!
  wait $launcher || status=$?
  kill $watch 2>/dev/null || stuck=$((stuck + 1))
  if [ -n "$killed" ]; then
    [ $status -ne 0 ] || fail "kill $i of rank $rank after $delay ms: status 0"
  else
    too_late=$((too_late + 1))
  fi
  # The kill must leave no trace: resume from the last checkpoint, or start over if there is none.
  go_on=
  if [ -e "$work/run" ]; then go_on="--resume $work/run" resumed=$((resumed + 1)); fi
  if [ -n "$killed" ] && ! cmp -s "$work/one" "$work/run"; then
    # shellcheck disable=SC2086
    train timeout 120 "$thimble" train char-gpt --ranks 2 --micro-batches 2 --zero 1 $go_on --save "$work/run"
    cmp "$work/one" "$work/run" || fail "kill $i of rank $rank after $delay ms: the run that goes on has another file"
  fi
  i=$((i + 1))
done
echo "$kills kills: $resumed gone on from a checkpoint, $too_late came too early or too late, $stuck launchers stayed; every file is that of one process"
