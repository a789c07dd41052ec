#!/bin/sh
# Injects faults in full: 200 kills, 50 with one process id, 50 signals, 2,000 flipped checkpoint bits. The test of the
# same name makes a tenth of them; docs/reliability.md has the figures of one run.
#
#   bench/faults.sh [BUILD]
#
# BUILD is a build folder with the program and the tests (build). Exits with 0 if nothing was lost, no damaged
# checkpoint was loaded, and every resumed run ended with the bytes of an undisturbed one.
set -eu

build=${1:-build}
for name in thimble thimble_tests; do
  if [ ! -x "$build/bin/$name" ]; then
    echo "$0: there is no $build/bin/$name; build with THIMBLE_PROGRAM and THIMBLE_TESTS" >&2
    exit 2
  fi
done
THIMBLE_FAULTS=full THIMBLE_PROGRAM=$(cd "$build/bin" && pwd)/thimble exec "$build/bin/thimble_tests" '[faults]'
