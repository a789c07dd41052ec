#!/usr/bin/env bash
# Builds every fuzzing program (clang's libFuzzer with address and undefined-behaviour checks) and runs each.
#   tests/fuzz/run.sh [SECONDS] [NAME...]     defaults to 60 seconds each, for all programs
# New inputs go to build-fuzz/corpus/NAME, an input that breaks a reader to build-fuzz/NAME-crash-*, with exit status 1.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:-60}
shift || true
names=("$@")
if [ ${#names[@]} -eq 0 ]; then names=(safetensors checkpoint npy idx tokens cifar tokenizer); fi
cxx=${CLANGXX:-clang++}
if ! echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
  "$cxx" -x c++ -fsanitize=fuzzer - -o /dev/null 2>/dev/null; then
  echo "tests/fuzz/run.sh: $cxx cannot build libFuzzer programs; install clang and libclang-rt-dev, or set CLANGXX" >&2
  exit 2
fi
build="build-fuzz"
mkdir -p "$build/include/thimble"
for folder in core memory autograd optim nn; do ln -sfn "$PWD/$folder" "$build/include/thimble/$folder"; done
# shellcheck disable=SC2054  # a list for -fsanitize
flags=(-std=c++20 -O1 -g -ffp-contract=off "-I$build/include" -Itests
  -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
objects=()
for source in core/files/{bytes,crc32c,file,npy,printable}.cpp nn/data/{idx,store,store_open,text,tokens}.cpp nn/files/{safetensors,checkpoint_info,json_events}.cpp nn/tokens/*.cpp; do
  object="$build/${source//\//-}.o"
  objects+=("$object")
  "$cxx" "${flags[@]}" -fsanitize=fuzzer-no-link -c "$source" -o "$object"
done
failed=0
for name in "${names[@]}"; do
  "$cxx" "${flags[@]}" -fsanitize=fuzzer "-DTARGET=$name" tests/fuzz/program.cpp "${objects[@]}" -lz -lutf8proc -o "$build/fuzz-$name"
  mkdir -p "$build/corpus/$name" "$build/seeds/$name"
  { grep "^$name/" tests/fuzz/corpus.txt || true; } | while read -r seed bytes; do
    base64 -d <<<"$bytes" >"$build/seeds/$seed"
  done
  if [ "$name" = tokenizer ]; then cp tests/fuzz/corpus/tokenizer/* "$build/seeds/tokenizer"; fi
  # CIFAR records have 3073 bytes; two of them exceed the default input length.
  if "$build/fuzz-$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=8192 -print_final_stats=1 \
    -artifact_prefix="$build/$name-" "$build/corpus/$name" "$build/seeds/$name" >"$build/$name.log" 2>&1; then
    echo "$name: $(grep -o 'stat::number_of_executed_units:.*' "$build/$name.log" | tr -s ' ') in $seconds s, nothing found"
  else
    echo "$name: BROKEN, see $build/$name.log"
    failed=1
  fi
done
exit $failed
