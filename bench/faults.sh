#!/bin/sh
# Faults on purpose, in full: 200 kills, 50 with one process id, 50 signals, 2,000 flipped bits of checkpoints. The test
# of the same name makes a tenth of them; docs/reliability.md has the figures of one run.
#
#   bench/faults.sh [BUILD]
#
# BUILD is a build folder with the program and the tests (build). Exit status 0 when nothing was lost, nothing wrong was
# loaded, and every run that went on ended with the bytes of one that was never disturbed.
set -eu

build=${1:-build}
for name in thimble thimble_tests; do
  if [ ! -x "$build/bin/$name" ]; then
    echo "$0: there is no $build/bin/$name; build with THIMBLE_PROGRAM and THIMBLE_TESTS" >&2
    exit 2
  fi
done
THIMBLE_FAULTS=full THIMBLE_PROGRAM=$(cd "$build/bin" && pwd)/thimble exec "$build/bin/thimble_tests" '[faults]'
