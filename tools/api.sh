#!/usr/bin/env bash
# Makes pages of the public headers' comments with Doxygen, into build/api; a warning is an error.
cd "$(dirname "$0")/.."
. tools/build.sh

need_packages doxygen
rm -rf build/api
mkdir -p build/api
doxygen docs/Doxyfile
say "Pages: build/api/html/index.html"
