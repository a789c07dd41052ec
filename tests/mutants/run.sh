#!/usr/bin/env bash
# Changes the code in one place after another and looks whether the tests notice.
#
#   tests/mutants/run.sh [-j JOBS] [-r] [PATTERN]
#
# A mutant is a patch of this folder whose first line names the files of tests that must find it ("# tests: optim clip":
# tests/optim_test.cpp and tests/clip_test.cpp). PATTERN is a regular expression over names of patches (default: all).
# With -r mutants that an earlier run has told of are not run again. Works on a copy in build-mutants/, one build folder
# for all: a mutant costs the object files it touches, a link and its tests. With ccache the first build is quick.
#
# Prints a line per mutant (found, SURVIVED, DOES NOT BUILD, DOES NOT APPLY) and "N passed, M failed" at the end; those
# of known.txt change nothing that a test could see, and are told as such (README.md says why). Status 0: none failed.
set -uo pipefail
jobs=$(nproc) resumes=
while getopts "j:r" option; do
  case $option in
    j) jobs=$OPTARG ;;
    r) resumes=1 ;;
    *) sed -n '2,4p' "$0" >&2 && exit 2 ;;
  esac
done
shift $((OPTIND - 1))
pattern=${1:-.}
cd "$(dirname "$0")/../.." || exit
root=$PWD tree=$PWD/build-mutants results=$PWD/build-mutants/results.tsv
mkdir -p "$tree"
[ -n "$resumes" ] || : >"$results"
touch "$results"

# The tree as it is, in a copy: what differs is copied anew, so that little is built again.
restore() { # FILE
  cmp -s "$1" "$tree/$1" || { mkdir -p "$tree/$(dirname "$1")" && cp "$1" "$tree/$1"; }
}
while IFS= read -r -d '' file; do
  [ -f "$file" ] && restore "$file"
done < <(git ls-files -z --cached --others --exclude-standard)

chosen=()
for patch in tests/mutants/*.patch; do
  name=$(basename "$patch" .patch)
  [[ $name =~ $pattern ]] || continue
  if [ -n "$resumes" ] && grep -q "^$name	" "$results"; then continue; fi
  chosen+=("$name")
done
[ ${#chosen[@]} -gt 0 ] || { echo "no mutant matches '$pattern'" >&2 && exit 2; }
tests_of() { sed -n '1s/^# tests: //p' "tests/mutants/$1.patch"; }

files=$(for name in "${chosen[@]}"; do tests_of "$name"; done | tr ' ' '\n' | sort -u | paste -sd'|')
emulated=OFF
for name in "${chosen[@]}"; do grep -q '^+++ b/cuda/' "tests/mutants/$name.patch" && emulated=ON; done
generator=()
command -v ninja >/dev/null && generator=(-G Ninja)
command -v mold >/dev/null && generator+=(-DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=mold) # a link per mutant
log=$tree/log.txt
build() { cmake --build "$tree/build" -j "$jobs" --target thimble_tests >"$log" 2>&1; }
run_tests() { # FILE-OF-TESTS...: stops at the first failure
  local tags=
  for file in "$@"; do tags+="${tags:+,}[#${file}_test]~[.]"; done
  (cd "$tree" && OMP_WAIT_POLICY=passive timeout 900 build/bin/thimble_tests --filenames-as-tags --abort "$tags") >"$log" 2>&1
}
cmake -S "$tree" -B "$tree/build" "${generator[@]}" -DTHIMBLE_CUDA=OFF -DTHIMBLE_WERROR=ON -DTHIMBLE_EXAMPLES=OFF \
  -DTHIMBLE_EMULATED_CUDA=$emulated -DTHIMBLE_TEST_FILES="$files" >"$log" 2>&1 || { cat "$log" && exit 1; }
echo "building ${#chosen[@]} mutants' tests: $files"
build || { tail -n 30 "$log" && exit 1; }
# shellcheck disable=SC2046
run_tests $(tr '|' ' ' <<<"$files") || { tail -n 30 "$log" && echo "the tests fail without a mutant" && exit 1; }

try() { # NAME: prints what became of it
  local patch=$root/tests/mutants/$1.patch touched
  touched=$(sed -n 's/^+++ b\///p' "$patch")
  if ! patch -d "$tree" -p1 --force --silent <"$patch" >"$log" 2>&1; then
    echo "DOES NOT APPLY"
  elif ! build; then
    cp "$log" "$tree/$1.log"
    echo "DOES NOT BUILD"
  else
    # shellcheck disable=SC2046
    if run_tests $(tests_of "$1"); then echo "SURVIVED"; else echo "found"; fi
  fi
  for file in $touched; do
    cp "$root/$file" "$tree/$file" # now: an object of the mutant must not look newer
    rm -f "$tree/$file.rej" "$tree/$file.orig"
  done
}
for name in "${chosen[@]}"; do
  started=$SECONDS
  outcome=$(try "$name")
  if [ "$outcome" = SURVIVED ] && grep -q "^$name$" tests/mutants/known.txt; then outcome="survived, as known"; fi
  printf '%s\t%s\n' "$name" "$outcome" >>"$results"
  printf '%-48s %-20s %4d s\n' "$name" "$outcome" $((SECONDS - started))
done
told() { for name in "${chosen[@]}"; do grep "^$name	" "$results" | tail -n 1; done | cut -f 2 | grep -c "$1"; }
passed=$(told '^found$\|^survived, as known$')
failed=$((${#chosen[@]} - passed))
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
