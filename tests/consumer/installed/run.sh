#!/bin/sh
# Installs a build to a separate folder, moves it, and builds and runs a program against it: with find_package, then
# with pkg-config if installed.
#
#   run.sh CMAKE GENERATOR CXX BUILD_DIR WORK_DIR
set -eu
cmake=$1 generator=$2 cxx=$3 build_dir=$4 work_dir=$5
here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$work_dir"
mkdir -p "$work_dir"

"$cmake" --install "$build_dir" --prefix "$work_dir/first" >"$work_dir/install.log"
mv "$work_dir/first" "$work_dir/prefix" # the package must not depend on where it was installed

echo "find_package:"
"$cmake" -S "$here" -B "$work_dir/build" -G "$generator" -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$work_dir/prefix" >"$work_dir/configure.log"
"$cmake" --build "$work_dir/build" >"$work_dir/build.log"
"$work_dir/build/consumer"

if ! command -v pkg-config >/dev/null; then
  echo "pkg-config: not installed, not tried"
  exit 0
fi
echo "pkg-config:"
pc=$(find "$work_dir/prefix" -name thimble.pc)
PKG_CONFIG_PATH=$(dirname "$pc")${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
export PKG_CONFIG_PATH
# shellcheck disable=SC2046  # several words
"$cxx" -std=c++20 -O2 $(pkg-config --cflags thimble) "$here/main.cpp" $(pkg-config --libs thimble) \
  -Wl,-rpath,"$(pkg-config --variable=libdir thimble)" -o "$work_dir/with_pkg_config"
"$work_dir/with_pkg_config"
