#!/usr/bin/env bash
# Renews every pinned figure and shows the changes: command output in README, the book and the documents; README's
# tables; the book's pictures, index of commands and glossary of headers; the picture of the folders; the complete
# outputs in tests/program/golden. Does not find figures in prose: read the pages that changed. Measurements of minutes
# are elsewhere: docs/lab, and tables of documents that name their command.
#
#   tools/figures.sh           builds what it needs in build/
#   tools/figures.sh FOLDER    uses the build in FOLDER, which needs the program, the tests and the examples
cd "$(dirname "$0")/.."
. tools/build.sh

build=${1:-build}
[ $# -gt 0 ] || configure build -DTHIMBLE_PROGRAM=ON -DTHIMBLE_TESTS=ON -DTHIMBLE_EXAMPLES=ON
compile "$build" thimble_program thimble_book_tests thimble_house_tests thimble_golden_tests example_{budget,tiny_tape,toy_rotor,fp8_by_hand,parallel_by_hand}

export THIMBLE_PROGRAM=$PWD/$build/bin/thimble
THIMBLE_ISA=generic OMP_NUM_THREADS=2 "$THIMBLE_PROGRAM" book --figures docs/book/figures >/dev/null
"$THIMBLE_PROGRAM" book --index docs/book/commands.md
"$build/bin/thimble_house_tests" '[.draw]' >/dev/null
"$build/bin/thimble_book_tests" '[.write]'
"$build/bin/thimble_golden_tests" '[.redraw]' >/dev/null
git --no-pager diff --stat -- README.md docs tests/program/golden
