#!/bin/sh
# Opens the program's pages in a headless browser and uses them (page_check.js). If node is installed, checks the syntax
# of the scripts first.
#
#   tests/pages/run.sh build/bin/thimble FOLDER [--pictures | --write]
#
# Compares each page's looks with a screenshot in looks/ of 64 x 40 shades of grey; --write replaces the screenshots.
# Empties FOLDER; with --pictures it gets a long screenshot of every page. CHROMIUM names the browser. Exit status: 0
# passed, 1 failed, 77 not run for lack of Chromium.
program=$1
folder=$2
here=$(cd "$(dirname "$0")" && pwd)
if command -v node >/dev/null; then
  for script in "$here"/../../bench/report/web/*.js "$here"/*.js; do
    node --check "$script" || exit 1
  done
fi
for name in "$CHROMIUM" chromium chromium-browser google-chrome; do
  [ -n "$name" ] && browser=$(command -v "$name") && break
done
if [ -z "$browser" ]; then
  echo "SKIPPED: no Chromium here (apt-get install chromium, or CHROMIUM=/path/to/it); the pages were opened by nobody"
  exit 77
fi
rm -rf "$folder" && mkdir -p "$folder" || exit 1
folder=$(cd "$folder" && pwd)

open_page() { # URL OPTION...: no network, a fresh profile
  url=$1
  shift
  timeout 300 "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --disable-extensions \
    --host-resolver-rules='MAP * ~NOTFOUND' --user-data-dir="$folder/profile" --window-size=1280,1000 \
    --virtual-time-budget=60000 --enable-logging=stderr "$@" "$url"
}

# check PAGE [WIDTH]: prints what is wrong with the page; fails if anything is.
check() {
  page=$1 width=${2:-1280} url="file://$1.checked.html"
  [ "$width" -ge 500 ] || url="file://$here/narrow.html?$url"
  awk -v script="$here/page_check.js" '
    { print }
    !done && /<head>/ { print "<script>"; while ((getline line < script) > 0) print line; print "</script>"; done = 1 }
  ' "$page" >"$page.checked.html"
  open_page "$url" --allow-file-access-from-files --dump-dom "--window-size=$width,1000" >"$page.dom" 2>"$page.log"
  sed -n '/<pre id="page-check">/,/<\/pre>/p' "$page.dom" | sed 's/.*<pre id="page-check">//; s/<\/pre>.*//' >"$page.result"
  # Console messages come from the browser, so they count even if the script above never ran.
  grep -E 'CONSOLE.*(Uncaught|Error|Refused|Failed)' "$page.log" | sed 's/.*CONSOLE[^]]*\]/FAILED: console:/' >>"$page.result"
  cat "$page.result"
  grep -q '^[1-9][0-9]* passed, 0 failed$' "$page.result" && ! grep -q '^FAILED' "$page.result"
}

status=0
make() { # PAGE ARGUMENT...: status 3 means that no plan fits the budget
  page=$1
  shift
  "$program" "$@" >"$page.out" 2>&1
  made=$?
  [ $made -eq 0 ] || [ $made -eq 3 ] && return
  echo "FAILED: $program $*"
  tail -n 5 "$page.out"
  status=1
}
holds() { # NAME: the page must pass
  echo "-- $1"
  check "$folder/$1.html" || { status=1; echo "FAILED: $1.html"; }
}
# A sheet of A4 within its margins is 688 px wide and uses the print styles.
narrow=400 paper=688
on_paper() { # NAME: makes the page with its print styles
  sed 's/@media print/@media all/' "$folder/$1.html" >"$folder/$1-paper.html"
}
finds() { # NAME EDIT [WIDTH]: the page must fail after this edit
  sed "$2" "$folder/$1.html" >"$folder/mutant.html"
  if cmp -s "$folder/$1.html" "$folder/mutant.html"; then
    echo "FAILED: the change '$2' changes nothing of $1.html"
    status=1
  elif check "$folder/mutant.html" ${3:-} >"$folder/mutant.said"; then
    echo "FAILED: not found in $1.html: $2"
    status=1
  else
    echo "found: $2 ($(grep -c '^FAILED' "$folder/mutant.said") complaints)"
  fi
}

# look NAME [OPTION...]: writes the page's screenshot to NAME.look as shades of grey, two hexadecimal digits each.
look() {
  name=$1
  shift
  open_page "file://$folder/$name.html" --screenshot="$folder/$name.png" "$@" >/dev/null 2>&1
  open_page "file://$here/thumbnail.html?file://$folder/$name.png" --allow-file-access-from-files --dump-dom 2>/dev/null |
    sed -n 's/^.*<pre id="thumbnail">//; /^[0-9a-f]\{128\}$/p' >"$folder/$name.look"
}
# distance A B: the mean difference of their shades, up to 255; "none" if one is no picture.
distance() {
  cat "$1" "$2" | awk '
    function shade(text, i) { return index("0123456789abcdef", substr(text, i, 1)) * 16 + index("0123456789abcdef", substr(text, i + 1, 1)) }
    { row[NR] = $0 }
    END {
      if (NR != 80) { print "none"; exit }
      for (r = 1; r <= 40; ++r) for (i = 1; i < 128; i += 2) { d = shade(row[r], i) - shade(row[r + 40], i); sum += d < 0 ? -d : d }
      printf "%.1f\n", sum / 2560
    }'
}
# Fonts differ between machines and move the mean by about 2.
most=6
looks_like() { # NAME
  look "$1"
  far=$(distance "$here/looks/$1.txt" "$folder/$1.look")
  echo "looks: $1, $far of at most $most away"
  awk -v far="$far" -v most=$most 'BEGIN { exit !(far != "none" && far + 0 <= most) }'
}

export THIMBLE_ISA=generic OMP_NUM_THREADS=2 # the pages show figures of these kernels
gpt="char-gpt --layers 3 --heads 2 --width 64 --seq 128 --batch 4"
make "$folder/planned.html" plan $gpt --budget 8MiB --html "$folder/planned.html"
make "$folder/kept.html" plan $gpt --html "$folder/kept.html"
make "$folder/forward.html" plan $gpt --inference --html "$folder/forward.html"
make "$folder/infeasible.html" plan $gpt --budget 1 --html "$folder/infeasible.html"
make "$folder/report.html" reproduce gpt-layer known-schedules step-peak --quick --out "$folder"
for name in planned kept forward infeasible report; do holds $name; done
for name in planned report; do
  on_paper $name
  echo "-- $name, 400 wide and on paper"
  check "$folder/$name.html" $narrow || { status=1; echo "FAILED: $name.html, 400 wide"; }
  check "$folder/$name-paper.html" $paper || { status=1; echo "FAILED: $name.html on paper"; }
done

for name in planned kept infeasible report; do
  if [ "$3" = --write ]; then
    look $name && mkdir -p "$here/looks" && cp "$folder/$name.look" "$here/looks/$name.txt"
  elif ! looks_like $name; then
    status=1
    echo "FAILED: $name.html does not look as it did; look at it, then run with --write"
  fi
done
sed 's/<style>/<style media="print">/' "$folder/planned.html" >"$folder/bare.html"
look bare
far=$(distance "$here/looks/planned.txt" "$folder/bare.look")
if awk -v far="$far" -v most=$most 'BEGIN { exit !(far == "none" || far + 0 <= most) }'; then
  status=1
  echo "FAILED: not found: a page without its styles ($far)"
else
  echo "found: a page without its styles ($far)"
fi

# The check itself: what it must not let pass.
finds planned 's/this\.low\[i\] + this/low[i] + this/'                # pictures that throw half-way
finds planned 's/<svg class="window"/<svg display="none" class="window"/'  # no block reaches the map
finds planned "s/tip\.hidden = false;//"                             # pointing shows nothing
finds planned "s/'keydown', e => this\.key(e)/'keydown', e => 0/"    # keys do nothing
finds planned 's/ this\.zoom(Math/ Math.hypot(Math/'                 # dragging does nothing
finds planned 's/return this\.untell();/return this.leave();/'       # a drag from an empty place is lost
finds planned 's/other === this || other\.data/other === this || 0 \&\& other.data/'  # one picture looks closer alone
finds planned 's/other\.dataset\.figure).hidden =/other.dataset.figure).title =/'     # the buttons show nothing
finds kept 's/<svg class="window"/<svg display="none" class="window"/'  # no bytes at all
finds report "s/'keydown', e => this\.key(e)/'keydown', e => 0/"
finds report "s/tip\.hidden = false;//"
finds report 's/this\.axis\.replaceChildren/[].concat/'              # the axis stays when one looks closer
finds report "s/'scroll', follow/'scroll', () => 0/"                  # the navigation stands still

finds report 's/<tr class="more"/<tr class="more" hidden/'              # a column that no line has
finds report 's/<b>/\&amp;amp;<b>/'                                     # escaped twice
finds planned 's/\.legend{margin-top:12px}/.legend{margin-left:300px}/' $narrow   # colours without names
finds planned 's/ figure \.scroll>svg text{font-size:20px}//' $narrow  # words that nobody can read
finds report-paper 's/td{padding:8px 10px/td{padding:8px 20px/; s/ th,td{padding-left:6px;padding-right:6px}//' $paper  # a table wider than the sheet

if [ "$3" = --pictures ]; then
  for name in planned kept forward infeasible report; do
    open_page "file://$folder/$name.html" --screenshot="$folder/$name.png" --window-size=1280,2600 2>/dev/null
  done
fi
rm -rf "$folder/profile"
[ $status -eq 0 ] && echo "the pages hold"
exit $status
