#!/bin/sh
# Compiles a program against the single header alone, links and runs it.
#
#   run.sh one_file|two_files CXX HEADER_DIR EIGEN_DIR WORK_DIR [FLAG...]
#
# With -DTHIMBLE_WITH_FILES among the flags, nlohmann-json and zlib must be there too; without, neither may be touched.
set -eu
form=$1 cxx=$2 header_dir=$3 eigen_dir=$4 work_dir=$5
shift 5
here=$(dirname "$0")
mkdir -p "$work_dir"

case " $* " in
*" -DTHIMBLE_WITH_FILES "*) libraries=-lz ;;
*) libraries= ;;
esac

compile() { # compile NAME: NAME.cpp -> NAME.o, with what it includes in NAME.d
  name=$1
  shift
  "$cxx" -std=c++20 -O0 -Wall -Wextra -Werror -ffp-contract=off -I "$header_dir" -isystem "$eigen_dir" "$@" \
    -MD -c "$here/$name.cpp" -o "$work_dir/$name.o"
  if [ -z "$libraries" ] && grep -E 'nlohmann|zlib\.h' "$work_dir/$name.d"; then
    echo "$name.cpp needs more than Eigen" >&2
    exit 1
  fi
}

case $form in
one_file) objects="one_file" ;;
two_files) objects="implementation use" ;;
*)
  echo "form $form: allowed are one_file and two_files" >&2
  exit 2
  ;;
esac
set -- "$@" # the flags, for every file
for object in $objects; do compile "$object" "$@"; done
cd "$work_dir"
# shellcheck disable=SC2046,SC2086  # lists of words
"$cxx" $(printf '%s.o ' $objects) "$@" $libraries -pthread -o "$form"
"./$form"
