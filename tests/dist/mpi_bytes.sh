#!/bin/sh
# Checks the program's bytes under an MPI launcher: models, precisions, 2 to 8 processes and every ZeRO stage, with a
# budget in every third run. A run exits with 5 if a rank commits other bytes than predicted; its last loss must equal
# the loss on one process.
#
#   mpi_bytes.sh MPIRUN THIMBLE WORK_DIR
set -eu
mpirun=$1 thimble=$2 work=$3
rm -rf "$work"
mkdir -p "$work"
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

fail() {
  echo "FAILED: $*" >&2
  cat "$work/err" >&2
  exit 1
}
figure() { sed -n "s/^  \"$1\": \\(.*\\),\$/\\1/p" "$2"; }

runs=0 ranks_in_all=0
for model in char-gpt bert-base resnet18; do
  case $model in
    char-gpt) sizes="--layers 2 --width 96 --seq 32" ;;
    bert-base) sizes="--layers 2 --width 64 --heads 2 --seq 32" ;;
    *) sizes="--width 8 --image 16" ;;
  esac
  for arithmetic in "" "--precision bf16" "--precision O2"; do
    # shellcheck disable=SC2086
    "$thimble" train $model $sizes $arithmetic --data synthetic --batch 24 --micro-batches 24 --steps 3 --eval-batches 1 \
      --threads 1 --json >"$work/one" 2>"$work/err" || fail "$model $arithmetic"
    for n in 2 3 4 8; do
      for zero in 0 1 2 3; do
        budget=
        [ $((runs % 3)) -ne 2 ] || budget="--budget 12MiB"
        command="$model $sizes $arithmetic --data synthetic --batch 24 --micro-batches $((24 / n)) --zero $zero $budget"
        # shellcheck disable=SC2086
        timeout 120 "$mpirun" -n $n "$thimble" train $command --steps 3 --eval-batches 1 --threads 1 --json \
          >"$work/several" 2>"$work/err" || fail "status $? of -n $n $command"
        [ "$(figure loss_last "$work/one")" = "$(figure loss_last "$work/several")" ] || fail "another loss: -n $n $command"
        [ "$(grep -c '"measured_peak_bytes"' "$work/several")" -eq $((n + 1)) ] || fail "no figures of $n ranks: $command"
        runs=$((runs + 1)) ranks_in_all=$((ranks_in_all + n))
      done
    done
  done
done
echo "$runs runs, $ranks_in_all ranks: each committed what was predicted, and the losses are those of one process"
