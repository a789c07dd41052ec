#!/usr/bin/env bash
# Checks a change before each commit, in less than a minute: format, house rules, scripts, and that clang accepts each
# changed source without a warning.
#
#   tools/check.sh [BASE]      checks files that differ from BASE (main), committed or not
cd "$(dirname "$0")/.."
. tools/build.sh

base=$(git merge-base "${1:-main}" HEAD)
mapfile -t changed < <({ git diff --name-only --diff-filter=d "$base" && git ls-files -o --exclude-standard; } | sort -u)
status=0
# check NAME COMMAND...: runs a check; a failure does not stop the others.
check() {
  local name=$1 log
  shift
  log=$(mktemp)
  if "$@" >"$log" 2>&1; then
    say "$name: fine ($SECONDS s)"
  else
    cat "$log"
    say "$name: FAILED ($SECONDS s)"
    status=1
  fi
  rm -f "$log"
}
# of PATTERN: the changed files that match.
of() { printf '%s\n' "${changed[@]}" | grep -E "$1" || true; }

configure build-check -DTHIMBLE_UNITY=OFF -DTHIMBLE_CUDA=OFF -DTHIMBLE_WERROR=ON -DTHIMBLE_MPI=OFF
mapfile -t code < <(of '\.(h|cpp|cuh|cu)$')
mapfile -t scripts < <(of '\.sh$|^\.ci/run$')
mapfile -t sources < <(of '\.cpp$')
mapfile -t headers < <(of '^(autograd|core|dist|memory|models|nn|optim)/.*\.h$')

if [ ${#code[@]} -gt 0 ]; then check "format" clang-format-14 --dry-run -Werror "${code[@]}"; fi
if [ ${#scripts[@]} -gt 0 ]; then check "scripts" shellcheck -x -S warning "${scripts[@]}"; fi
clang=(clang++ -std=c++20 -Wall -Wextra -Wpedantic -Wconversion -Wno-sign-conversion -Wno-pragma-once-outside-header
  -Werror -fsyntax-only -I build-check/include -I tests '-DTHIMBLE_MODULES_FROM_BIN="."')
syntax() { printf '%s\0' "$@" | xargs -0 -P "$cores" -n 4 "${clang[@]}" -x c++; }
# Leaves out sources that need CUDA, an MPI, std::source_location or definitions from CMake.
mapfile -t sources < <(printf '%s\n' "${sources[@]}" |
  grep -vE '^$|^(cuda/|dist/nccl\.cpp|dist/module/|tests/(emulated|house|consumer|cuda)/|tests/support/operator_table\.cpp)' || true)
if [ ${#sources[@]} -gt 0 ]; then check "clang, changed sources" syntax "${sources[@]}"; fi
if [ ${#headers[@]} -gt 0 ]; then check "clang, changed headers" syntax "${headers[@]}"; fi
compile build-check thimble_house_tests >/dev/null
check "house" build-check/bin/thimble_house_tests
exit $status
