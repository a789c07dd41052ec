#!/usr/bin/env bash
# Builds everything and runs all tests. Arguments go to ctest: `./test.sh -R memory` runs what has memory in its name.
cd "$(dirname "$0")"
. tools/build.sh

need_packages $test_packages
configure build -DTHIMBLE_PROGRAM=ON -DTHIMBLE_TESTS=ON -DTHIMBLE_EXAMPLES=ON
compile build all
# Most tests use one thread, some use all: half of the cores, and one, get a test each.
ctest --test-dir build --output-on-failure -j $(((cores + 2) / 2)) "$@"
