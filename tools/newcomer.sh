#!/usr/bin/env bash
# Runs a command as on a fresh Debian: it finds only the commands of essential packages, of git, and of the packages
# that test.sh installs, with their dependencies. No MPI, no browser, no Python.
#
#   tools/newcomer.sh FOLDER COMMAND...      FOLDER, within the project, gets a link to each command in FOLDER/bin
#
# Without Debian's packages the command runs unchanged.
cd "$(dirname "$0")/.."
. tools/build.sh

folder=$PWD/$1
shift
command -v dpkg-query >/dev/null || exec "$@"

# The packages, each once: a breadth-first walk over installed packages; takes the first installed of `a | b`.
# shellcheck disable=SC2016  # the formats are dpkg-query's
packages=$(dpkg-query -W -f '${db:Status-Status};${Package};${Essential};${Pre-Depends}, ${Depends};${Provides}\n' |
  awk -F ';' -v roots="$test_packages git" '
    function names(list) { gsub(/\([^)]*\)|:any| /, "", list); return list }
    $1 == "installed" {
      needs[$2] = names($4); is_here[$2] = 1
      if ($3 == "yes") roots = roots " " $2
      n = split(names($5), p, ","); for (i = 1; i <= n; i++) if (!(p[i] in giver)) giver[p[i]] = $2
    }
    END {
      n = split(roots, queue, " ")
      for (i = 1; i <= n; i++) {
        name = queue[i]
        if (name in seen || !(name in is_here)) continue
        seen[name] = 1
        print name
        count = split(needs[name], all, ",")
        for (j = 1; j <= count; j++) {
          options = split(all[j], option, "|")
          for (k = 1; k <= options; k++) {
            found = option[k] in is_here ? option[k] : option[k] in giver ? giver[option[k]] : ""
            if (found != "") { queue[++n] = found; break }
          }
        }
      }
    }')

rm -rf "${folder:?}/bin"
mkdir -p "$folder/bin"
# shellcheck disable=SC2086  # a list of words
dpkg-query -L $packages | grep -E '^(/usr)?/s?bin/[^/]+$' | sort -u | xargs ln -sf -t "$folder/bin"
# Names from update-alternatives that lead to one of these commands.
for name in awk c++ c++filt cc c89 c99 nawk pager; do
  to=$(readlink -f "/usr/bin/$name") || continue
  [ ! -e "$folder/bin/$(basename "$to")" ] || ln -sf "$to" "$folder/bin/$name"
done

# CMake also looks for programs outside PATH.
unset THIMBLE_PYTHON
export THIMBLE_IGNORED_PATH="/usr/local/bin;/usr/local/sbin;/usr/bin;/usr/sbin;/bin;/sbin"
export PATH=$folder/bin THIMBLE_DATA=$folder/no_data
exec "$@"
