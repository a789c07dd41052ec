#!/bin/sh
# Runs ranks under an MPI launcher: the table of cases on 1 to 4 processes, then every way to fail. A failure ends all
# ranks within 10 s with a nonzero status and the message of the rank that failed first, and leaves no process.
#
#   mpi.sh MPIRUN MPI_RANKS WORK_DIR
set -eu
mpirun=$1 ranks=$2 work=$3
if [ "$mpirun" = none ]; then
  echo "SKIPPED: this MPI was not found"
  exit 77
fi
rm -rf "$work"
mkdir -p "$work"
PIDS=$work
export PIDS

# Open MPI refuses more ranks than processors, and root, unless told otherwise.
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

launch() { # launch N WORD...
  n=$1
  shift
  timeout 120 "$mpirun" -n "$n" "$ranks" "$@"
}
fail() {
  echo "FAILED: $*" >&2
  cat "$work/out" "$work/err" >&2
  exit 1
}

for n in 1 2 3 4; do
  launch "$n" cases >"$work/out" 2>"$work/err" || fail "cases on $n ranks"
  echo "all cases on $n ranks"
done

# ends_all N WORD TEXT: all ranks end, and the first line of standard error has TEXT, ahead of the launcher's messages.
ends_all() {
  n=$1 word=$2 text=$3
  : >"$work/pids"
  begin=$(date +%s)
  status=0
  launch "$n" "$word" >"$work/out" 2>"$work/err" || status=$?
  [ $status -ne 0 ] || fail "$word on $n ranks: status 0"
  took=$(($(date +%s) - begin))
  [ "$took" -le 10 ] || fail "$word on $n ranks: took $took s"
  if [ -n "$text" ]; then
    sed '/^$/d' "$work/err" | head -n 1 | grep -qF "$text" || fail "$word on $n ranks: the first line is not \"$text\""
  fi
  [ "$(wc -l <"$work/pids")" -eq "$n" ] || fail "$word: $n ranks did not start"
  while read -r pid; do
    while kill -0 "$pid" 2>/dev/null; do # the launcher may end before its last rank
      [ $(($(date +%s) - begin)) -le 10 ] || fail "$word on $n ranks: process $pid is still there"
      sleep 0.2
    done
  done <"$work/pids"
  echo "$word on $n ranks: $took s: $(sed '/^$/d' "$work/err" | head -n 1)"
}

for n in 2 4; do
  ends_all $n throw "rank 1 of $n: matmul: inner sizes differ, lhs (2, 3), rhs (4, 5)"
  # With several ranks left, MPICH's mpirun returns 9, the signal it ends them with.
  [ $status -eq 7 ] || [ $n -gt 2 ] || fail "throw on $n ranks: status $status, not that of its error"
  ends_all $n unwind "rank 1 of $n: arena: no room"
  ends_all $n memory "rank 1 of $n: std::bad_alloc"
  ends_all $n thread "rank 1 of $n: barrier: "
  ends_all $n abort "rank 1 of $n: the data is gone"
  ends_all $n kill ""
  ends_all $n hang ": barrier: rank "
  grep -qF " has waited for 3000 ms for " "$work/err" || fail "hang: no timeout"
done
count=$("$ranks" count)
i=0
while [ $i -lt "$count" ]; do
  ends_all 3 "fault$i" "rank "
  "$ranks" texts $i >"$work/texts"
  while read -r text; do
    grep -qF "$text" "$work/err" || fail "fault$i: no \"$text\""
  done <"$work/texts"
  i=$((i + 1))
done
