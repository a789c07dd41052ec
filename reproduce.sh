#!/usr/bin/env bash
# Builds the program and reproduces the memory-scaling experiments on this machine.
#
#   ./reproduce.sh                 all experiments in their quick form, into report/
#   ./reproduce.sh ARGUMENT...     thimble reproduce ARGUMENT..., as in: ./reproduce.sh all --device cuda --out full
cd "$(dirname "$0")"
. tools/build.sh

need_packages $program_packages
if [ -e build/CMakeCache.txt ]; then
  configure build -DTHIMBLE_PROGRAM=ON
else
  configure build -DTHIMBLE_TESTS=OFF -DTHIMBLE_EXAMPLES=OFF
fi
compile build thimble_program

[ $# -gt 0 ] || set -- all --quick
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
