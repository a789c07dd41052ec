#!/usr/bin/env bash
# clang-tidy over the library and the program. The sources of a folder are checked as one, so headers are read once.
#
#   tools/tidy.sh BUILD [FOLDER...]     BUILD has been configured; as in: tools/tidy.sh build core dist
cd "$(dirname "$0")/.."
. tools/build.sh

build=$1
shift
[ $# -gt 0 ] || set -- core memory autograd optim dist nn models bench
tidy=$(command -v clang-tidy-14 || command -v clang-tidy)
mkdir -p "$build/tidy"
for folder in "$@"; do
  # Not with the others: what needs CUDA or an MPI, and programs of their own.
  git ls-files "$folder/*.cpp" | grep -vE '^dist/(nccl\.cpp|module/)|^bench/(main\.cpp|parity/|peers/|benchmarks/)' |
    sed "s|.*|#include \"$PWD/&\"|" >"$build/tidy/$folder.cpp"
done
printf '%s\n' "$@" | xargs -P "$cores" -I {} "$tidy" --quiet "$build/tidy/{}.cpp" -- -std=c++20 -I "$build/include" \
  -DTHIMBLE_MODULES_FROM_BIN='"."'
