#!/usr/bin/env bash
# Builds the program and reproduces the memory-scaling experiments on this machine.
#
#   ./reproduce.sh                 all experiments in their quick form, into report/
#   ./reproduce.sh ARGUMENT...     thimble reproduce ARGUMENT..., as in: ./reproduce.sh all --device cuda --out full
cd "$(dirname "$0")"
. tools/build.sh

say "Takes $((1 + 6 / cores)) to $((4 + 14 / cores)) minutes on $cores cores: packages, the program, a first result, all experiments"
need_packages $program_packages
if [ -e build/CMakeCache.txt ]; then
  configure build -DTHIMBLE_PROGRAM=ON
else
  configure build -DTHIMBLE_TESTS=OFF -DTHIMBLE_EXAMPLES=OFF
fi
compile build thimble_program

if [ $# -eq 0 ]; then
  set -- train char-gpt --data synthetic --seq 64 --steps 10 --budget 200MiB
  say "First result: thimble $*"
  build/bin/thimble "$@"
  say "Now all experiments, $SECONDS s so far"
  set -- all --quick
fi
out=
previous=
for argument in "$@"; do
  case $argument in --out=*) out=${argument#--out=} ;; esac
  [ "$previous" != --out ] || out=$argument
  previous=$argument
done
if [ -z "$out" ]; then
  out=report
  set -- "$@" --out "$out"
fi
build/bin/thimble reproduce "$@"
say "Report: $out/report.html ($SECONDS s in all)"
