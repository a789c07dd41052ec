# shellcheck shell=bash disable=SC2034
# Packages, configuring, building: sourced by test.sh, .ci/run and other scripts, from the project's root.
set -euo pipefail

program_packages="g++ cmake ninja-build nlohmann-json3-dev libcli11-dev zlib1g-dev libutf8proc-dev"
test_packages="$program_packages catch2"
mpi_packages="libopenmpi-dev openmpi-bin libmpich-dev mpich" # optional
cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)

# Uses ccache if installed. Its paths are relative to this tree, so that clones share the cache.
if command -v ccache >/dev/null; then
  ccache=$(command -v ccache)
  export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER-$ccache}
  export CMAKE_CUDA_COMPILER_LAUNCHER=${CMAKE_CUDA_COMPILER_LAUNCHER-$ccache} CCACHE_BASEDIR=${CCACHE_BASEDIR-$PWD} CCACHE_NOHASHDIR=1
  export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS-pch_defines,time_macros}
fi

say() { printf '%s\n' "$*"; }

# as_root COMMAND...: runs it as root; fails if sudo needs a password and standard input is no terminal.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
    sudo "$@"
  else
    return 1
  fi
}

# need_packages PACKAGE...: installs missing packages on Debian and its relatives, or names them. Configuring still goes
# on after a failure, since the software may come from elsewhere.
need_packages() {
  local missing=() package log
  command -v dpkg-query >/dev/null || return 0
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  say "Installing ${missing[*]}"
  log=$(mktemp)
  if as_root apt-get -qq update >"$log" 2>&1 &&
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "${missing[@]}" \
      >>"$log" 2>&1; then
    rm -f "$log"
    return 0
  fi
  tail -n 5 "$log" >&2
  rm -f "$log"
  say "Could not install: ${missing[*]}" >&2
  say "As root: apt-get install ${missing[*]}" >&2
  command -v cmake >/dev/null || exit 1
}

# configure DIR OPTION...: quiet unless it fails. A new DIR is set up for full builds; without a GPU it leaves out CUDA,
# even with a toolkit, and the tests emulate a device. -DTHIMBLE_CUDA=ON compiles CUDA anyway.
configure() {
  local dir=$1 log first=()
  shift
  if [ ! -e "$dir/CMakeCache.txt" ]; then
    first=(-DTHIMBLE_UNITY=ON)
    command -v nvidia-smi >/dev/null || first+=(-DTHIMBLE_CUDA=OFF)
    if command -v ninja >/dev/null; then first+=(-G Ninja); fi
  fi
  log=$(mktemp)
  if ! cmake -B "$dir" "${first[@]}" "-DCMAKE_IGNORE_PATH=${THIMBLE_IGNORED_PATH-}" "$@" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    exit 1
  fi
  rm -f "$log"
}

# compile DIR TARGET...: builds with all cores. Prints a line for each tenth of the build steps, with the seconds left
# at this pace, and all output other than steps. With warnings=errors a compiler warning fails the build as with
# -Werror, but the options stay the same, so that all builds share the compiler cache.
compile() {
  local dir=$1 line steps tenth=0 begin=$SECONDS warned=
  local step='^\[ *([0-9]+)(/([0-9]+)|%)\]' # ninja counts "[3/120]", make "[ 2%]"
  shift
  rm -f "$dir/warned"
  say "Compiling in $dir/ on $cores cores"
  cmake --build "$dir" -j "$cores" --target "$@" 2>&1 | while IFS= read -r line; do
    if [[ $line =~ $step ]]; then
      steps=${BASH_REMATCH[3]:-100}
      if [ $((10 * BASH_REMATCH[1] / steps)) -gt "$tenth" ]; then
        tenth=$((10 * BASH_REMATCH[1] / steps))
        say "  ${BASH_REMATCH[1]} of $steps, ${SECONDS} s, about $(((SECONDS - begin) * (steps - BASH_REMATCH[1]) / BASH_REMATCH[1])) s left"
      fi
    elif [[ $line != "ninja: Entering"* && $line != "ninja: no work"* ]]; then
      say "$line"
      [[ $line != *" warning: "* || $line == *"ld: warning: "* ]] || warned=yes
    fi
    [ "${warnings-}$warned" != errorsyes ] || touch "$dir/warned"
  done || return 1
  if [ -e "$dir/warned" ]; then
    cmake --build "$dir" --target clean >/dev/null # else the next build would recompile nothing and not warn
    say "Warnings are errors here: see above" >&2
    return 1
  fi
}
