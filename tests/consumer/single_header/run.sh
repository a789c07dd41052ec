#!/bin/sh
# Compiles a program with only the single header, links it and runs it.
#
#   run.sh one_file|parts CXX HEADER_DIR WORK_DIR FLAG...
#
# With -DTHIMBLE_WITH_FILES among the flags, the program needs nlohmann-json, zlib and utf8proc; without it, the program
# must need no library.
set -eu
form=$1 cxx=$2 header_dir=$3 work_dir=$4
shift 4
here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$work_dir"
mkdir -p "$work_dir"

case " $* " in
*" -DTHIMBLE_WITH_FILES "*) libraries="-lz -lutf8proc" ;;
*) libraries= ;;
esac

flags="-std=c++20 -Wall -Wextra -Werror -ffp-contract=off -I $header_dir $*"
compile="$cxx $flags -MD -c $here"
cd "$work_dir"
case $form in
one_file) $compile/one_file.cpp -o one_file.o ;;
parts) # as the header's first lines describe
  seq 8 | xargs -P "$(nproc)" -I @ $compile/implementation.cpp -DTHIMBLE_PART=@ -o part@.o
  $compile/use.cpp -o use.o
  ;;
*)
  echo "run.sh: expected one_file or parts, got $form" >&2
  exit 2
  ;;
esac
if [ -z "$libraries" ] && grep -E 'nlohmann|(zlib|utf8proc)\.h' ./*.d; then
  echo "the header needs more than a compiler" >&2
  exit 1
fi
$cxx $flags ./*.o $libraries -pthread -o "$form"
"./$form"
