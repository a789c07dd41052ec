#!/usr/bin/env bash
# Runs clang-tidy over the library and the program. A folder's sources are checked as one, so headers are read once.
#
#   tools/tidy.sh BUILD [FOLDER...]     BUILD is configured, as in: tools/tidy.sh build core dist
cd "$(dirname "$0")/.."
. tools/build.sh

build=$1
shift
[ $# -gt 0 ] || set -- core memory autograd optim dist nn models bench
tidy=$(command -v clang-tidy-14 || command -v clang-tidy)
mkdir -p "$build/tidy"
for folder in "$@"; do
  # Leaves out sources that need CUDA or an MPI, and separate programs.
  git ls-files "$folder/*.cpp" | grep -vE '^dist/(nccl\.cpp|module/)|^bench/(main\.cpp|parity/|peers/|benchmarks/)' |
    sed "s|.*|#include \"$PWD/&\"|" >"$build/tidy/$folder.cpp"
done
printf '%s\n' "$@" | xargs -P "$cores" -I {} "$tidy" --quiet "$build/tidy/{}.cpp" -- -std=c++20 -I "$build/include" \
  -DTHIMBLE_MODULES_FROM_BIN='"."'
