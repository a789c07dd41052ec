#!/usr/bin/env bash
# Builds everything and runs all tests. Arguments go to ctest: `./test.sh -R memory` runs tests named after memory.
cd "$(dirname "$0")"
. tools/build.sh

need_packages $test_packages
configure build -DTHIMBLE_PROGRAM=ON -DTHIMBLE_TESTS=ON -DTHIMBLE_EXAMPLES=ON
compile build all
# Most tests use one thread, some use all cores: run cores / 2 + 1 tests at a time.
ctest --test-dir build --output-on-failure -j $(((cores + 2) / 2)) "$@"
