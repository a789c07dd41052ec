#!/usr/bin/env bash
# Changes the code in one place at a time and checks whether the tests notice.
#
#   tests/mutants/run.sh [-j JOBS] [-r] [-n] [PATTERN]
#
# mutants.txt has a row per mutant (README.md). PATTERN is a regular expression over names (default: all). -r skips
# mutants that an earlier run reported. -n runs none, but checks that each row's text occurs once in its file and that
# its tests exist (`ctest -R house.mutants`). Works on a copy in build-mutants/, with one build for all; a mutant costs
# one object file, a link with its tests, and their run. With ccache the first build is quick.
#
# Prints a line per mutant (found, SURVIVED, DOES NOT BUILD) and "N passed, M failed". Exits with 0 if none failed.
set -uo pipefail
export LC_ALL=C # text is bytes
jobs=$(nproc) resumes='' only_looks=''
while getopts "j:rn" option; do
  case $option in
    j) jobs=$OPTARG ;;
    r) resumes=1 ;;
    n) only_looks=1 ;;
    *) sed -n '2,4p' "$0" >&2 && exit 2 ;;
  esac
done
shift $((OPTIND - 1))
pattern=${1:-.}
cd "$(dirname "$0")/../.." || exit
tree=$PWD/build-mutants
build=$tree/build results=$tree/results.tsv log=$tree/log.txt

# ---- The table
declare -A tests_of file_of objects_of survives old new
names=() name=''
while IFS= read -r line; do
  case $line in
    '' | '#'*) ;;
    '== '*': '*': '*)
      line=${line#== } name=${line%%: *} line=${line#*: } names+=("$name")
      file_of[$name]=${line%%: *} tests_of[$name]=${line#*: }
      ;;
    'objects: '*) objects_of[$name]=${line#objects: } ;;
    'survives: '*) survives[$name]=${line#survives: } ;;
    -*) old[$name]+=${line#-}$'\n' ;;
    +*) new[$name]+=${line#+}$'\n' ;;
    *) echo "mutants.txt: $name: '$line' is no line of a row" >&2 && exit 2 ;;
  esac
done <tests/mutants/mutants.txt

# Prints a row's file with the new text in place of the old, or why that is impossible. The old text excludes its last
# newline, so it may end within a line; without new text the whole line goes.
mutated() { # NAME
  local text before after from=${old[$1]:-} to=${new[$1]:-}
  [ -n "$from" ] && [ -n "${tests_of[$1]:-}" ] || { echo "lacks tests or old text" && return 1; }
  [ -f "${file_of[$1]:-}" ] || { echo "its file ${file_of[$1]:-} is gone" && return 1; }
  text=$(<"${file_of[$1]}")$'\n'
  [ -z "$to" ] || from=${from%$'\n'} to=${to%$'\n'}
  [[ $text == *"$from"* ]] || { echo "its text is gone from ${file_of[$1]}" && return 1; }
  before=${text%%"$from"*}
  after=${text:${#before}+${#from}}
  [[ $after != *"$from"* ]] || { echo "its text is in ${file_of[$1]} more than once" && return 1; }
  printf '%s' "$before$to$after"
}

chosen=()
for name in "${names[@]}"; do
  [[ $name =~ $pattern ]] || continue
  if [ -n "$resumes" ] && grep -qs "^$name	" "$results"; then continue; fi
  chosen+=("$name")
done
[ ${#chosen[@]} -gt 0 ] || { echo "no mutant matches '$pattern'" >&2 && exit 2; }
twice=$(printf '%s\n' "${names[@]}" | sort | uniq -d)
[ -z "$twice" ] || { echo "mutants.txt: rows of one name: $twice" >&2 && exit 1; }
if [ -n "$only_looks" ]; then
  failed=0 all_tests=" $(find tests -name '*_test.cpp' -printf '%f ') "
  for name in "${chosen[@]}"; do
    why=''
    for file in ${tests_of[$name]:-}; do
      [[ $all_tests == *" ${file}_test.cpp "* ]] || why="names a test that is gone: $file"
    done
    [ -z "${objects_of[$name]:-}" ] || [ -f "${objects_of[$name]}" ] || why="${objects_of[$name]} is gone"
    [ -n "$why" ] || text=$(mutated "$name") || why=$text
    [ -z "$why" ] || { echo "$name: $why" && failed=$((failed + 1)); }
  done
  echo "${#chosen[@]} mutants, $failed do not apply"
  exit $((failed > 0))
fi

mkdir -p "$tree"
[ -n "$resumes" ] || : >"$results"
touch "$results"

# ---- A copy of the tree: only files that differ are copied, so that little is rebuilt
while IFS= read -r -d '' file; do
  [ -f "$file" ] || continue
  cmp -s "$file" "$tree/$file" || { mkdir -p "$tree/$(dirname "$file")" && cp "$file" "$tree/$file"; }
done < <(git ls-files -z --cached --others --exclude-standard)
while IFS= read -r file; do # files gone from the tree
  [ -f "$file" ] || rm -f "$tree/$file"
done < <(cd "$tree" && find . \( -path ./build -o -path ./work \) -prune -o -path './*/*' -type f -print)

files=$(for name in "${chosen[@]}"; do echo "${tests_of[$name]}"; done | tr ' ' '\n' | sort -u | paste -sd'|')
emulated=OFF
for name in "${chosen[@]}"; do [[ ${file_of[$name]} != cuda/* && ${tests_of[$name]} != *capture* ]] || emulated=ON; done
linker=()
command -v mold >/dev/null && linker=(-DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=mold) # each mutant needs a link
cmake -S "$tree" -B "$build" -G Ninja "${linker[@]}" -DTHIMBLE_CUDA=OFF -DTHIMBLE_WERROR=ON -DTHIMBLE_EXAMPLES=OFF \
  -DTHIMBLE_EMULATED_CUDA=$emulated -DTHIMBLE_TEST_FILES="$files" >"$log" 2>&1 || { cat "$log" && exit 1; }
build_all() { cmake --build "$build" -j "$jobs" --target thimble_tests >"$log" 2>&1; }
run_tests() { # PROGRAM LOG FILE-OF-TESTS...: stops at the first failure
  local program=$1 log=$2 tags=
  shift 2
  for file in "$@"; do tags+="${tags:+,}[#${file}_test]~[.]"; done
  (cd "$tree" && timeout 900 "$program" --filenames-as-tags --abort "$tags") >"$log" 2>&1
  local status=$?
  [ $status -eq 0 ] || [ $status -eq 77 ] # 77: passed, but skipped what the machine lacks
}
echo "building the tests of ${#chosen[@]} mutants: $files"
build_all || { tail -n 30 "$log" && exit 1; }
# shellcheck disable=SC2046
run_tests "$build/bin/thimble_tests" "$log" $(tr '|' ' ' <<<"$files") || { tail -n 30 "$log" && echo "the tests fail without a mutant" && exit 1; }
commands=$(ninja -C "$build" -t commands thimble_tests)

# Compiles a mutant's source in a separate folder, whose headers come before the tree's, and links it with the mutant's
# tests, before the libraries that hold the original. -O1 suffices, since optimization changes no result
# (-ffp-contract=off, no fast math).
compile_one() { # FOLDER SOURCE OBJECT
  local folder=$1 source=$2 object=$3 command from
  case $source in
    cuda/*.cu) from=$build/emulated/$(basename "$source" .cu).cpp ;;
    *) from=$tree/$source ;;
  esac
  command=$(grep -F -- " -c $from" <<<"$commands" | head -n 1)
  [ -n "$command" ] || { echo "nothing compiles $source" && return 1; }
  case $source in
    cuda/*.cu) echo "#include \"$folder/$source\"" >"$object.cpp" && source=$object.cpp ;;
    *) [ -f "$folder/$source" ] && source=$folder/$source || source=$from ;;
  esac
  command=$(sed -E "s/ -M[DTF]( [^ ]*\.(o|d))?//g; s/ -o .*//; s| -I| -I$folder/include -I|" <<<"$command")
  (cd "$build" && bash -c "$command -o $object -O1 -Wno-error -c $source")
}
link_one() { # FOLDER NAME
  local folder=$1 name=$2 words=() word source tests replaced=" "
  source=${objects_of[$name]:-${file_of[$name]}} tests=" ${tests_of[$name]} "
  compile_one "$folder" "$source" "$folder/object.o" || return 1
  [[ $source == cuda/* ]] && replaced+="$(basename "$source" .cu).cpp.o "
  for word in $(tail -n 1 <<<"$commands"); do
    case $word in
      */emulated/*.o) [[ $replaced == *" ${word##*/} "* ]] || words+=("$word") ;;
      */tests/*_test.cpp.o)
        source=${word##*/}
        [[ $tests == *" ${source%_test.cpp.o} "* ]] && words+=("$word")
        ;;
      bin/thimble_tests) words+=("$folder/mutant" "$folder/object.o") ;;
      *) words+=("$word") ;;
    esac
  done
  (cd "$build" && bash -c "${words[*]}")
}

try() { # NAME: prints the outcome
  local folder=$tree/work/$1 outcome started=$SECONDS text
  mkdir -p "$folder/include" && ln -sfn .. "$folder/include/thimble"
  if ! text=$(cd "$tree" && mutated "$1"); then
    outcome="DOES NOT APPLY"
  elif ! { mkdir -p "$folder/$(dirname "${file_of[$1]}")" && echo "$text" >"$folder/${file_of[$1]}"; }; then
    outcome="DISK FULL"
  elif ! link_one "$folder" "$1" >"$folder/log" 2>&1; then
    outcome="DOES NOT BUILD"
    cp "$folder/log" "$tree/$1.log"
  else
    # shellcheck disable=SC2046
    run_tests "$folder/mutant" "$folder/log" ${tests_of[$1]} && outcome=SURVIVED || outcome=found
    if [ $outcome = SURVIVED ] && [ -n "${survives[$1]:-}" ]; then outcome="survived, as known"; fi
  fi
  printf '%s\t%s\n' "$1" "$outcome" >>"$results"
  printf '%-48s %-20s %4d s\n' "$1" "$outcome" $((SECONDS - started))
  rm -rf "$folder"
}
running=0
for name in "${chosen[@]}"; do
  if [ $running -ge "$jobs" ]; then wait -n && running=$((running - 1)) || running=$((running - 1)); fi
  try "$name" &
  running=$((running + 1))
done
wait
told() { for name in "${chosen[@]}"; do grep "^$name	" "$results" | tail -n 1; done | cut -f 2 | grep -c "$1"; }
passed=$(told '^found$\|^survived, as known$')
failed=$((${#chosen[@]} - passed))
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
