#!/usr/bin/env bash
# Builds Doxygen pages of the public headers in build/api; a warning is an error.
cd "$(dirname "$0")/.."
. tools/build.sh

need_packages doxygen
rm -rf build/api
mkdir -p build/api
doxygen docs/Doxyfile
say "Pages: build/api/html/index.html"
