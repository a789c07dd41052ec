#!/usr/bin/env bash
# Everything about CUDA that only a GPU can tell, in stages, with one table:
#
#   bench/gpu_check.sh [--stages NAME,NAME...] [--list] [OUT]        (all stages; gpu-check: a folder for logs)
#
# Without --stages all of them run, one after the other. Each ends within ten minutes on a server with a GPU, so they can
# also be called one by one: the build folder (BUILD, build-gpu) and OUT are kept between calls, and the table at the end
# is of all stages so far. A stage that this machine cannot run is named as left out. Exit status 0 when no stage of this
# call failed.
#
# A command that takes longer than LIMIT seconds (570) has failed. DEVICE=cpu SIZES=tiny runs the same commands without a
# GPU, to see that they run. PyTorch is what THIMBLE_PYTHON (or python3) has. Headers that Debian's packages would bring
# (Eigen, Catch2, CLI11, nlohmann-json, zlib) are also looked for under .deps/, which git ignores:
# .deps/<anything>/usr/include as `dpkg -x PACKAGE.deb .deps/NAME` leaves them.
# shellcheck disable=SC2317,SC2013  # stages are called by name; names are words
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

# name: what it shows
stages='build       configures and builds the program, the tests and the benchmarks
tests       thimble_tests [cuda]: training, bits, graphs, memory
operators   every operator against the CPU and a reference
memcheck    compute-sanitizer over [cuda]
racecheck   likewise
initcheck   likewise
synccheck   likewise
opscheck    memcheck over the operators of the stage operators
bytes       predicted == measured: 104 configurations of models, batches, optimizers
techniques  predicted == measured under every technique: 518 configurations
precision   predicted == measured under every precision policy and 8-bit state
train       thimble train: predicted == measured, losses, graphs
memory      copies, pages, and sliding blocks together by copies and by pages: laid out, in a trace, in training
operations  operators: times, share of the copy bandwidth, beside PyTorch
steps       small models: graph against eager, launches and waits in a step
libraries   training steps: what cuBLASLt and cuDNN made, what they refused within their workspaces
gpt2        GPT-2 124M, bf16, T 1024, batch 16, beside PyTorch (fused attention), eager and compiled
resnet50    ResNet-50, bf16, batch 256, beside PyTorch (channels last), eager and compiled
fit         ResNet-50, batch 184, f32 with TF32, within 10.01 GiB and 4.99 GiB'

usage() {
  printf 'gpu_check.sh: %s\n' "$1" >&2
  printf 'stages:\n%s\n' "$stages" >&2
  exit 2
}
out=gpu-check
chosen=$(cut -d' ' -f1 <<<"$stages")
while [ $# -gt 0 ]; do
  case $1 in
    --list) echo "$stages" && exit 0 ;;
    --stages)
      [ $# -ge 2 ] || usage '--stages takes names'
      chosen=$(tr ',' '\n' <<<"$2")
      for name in $chosen; do grep -q "^$name " <<<"$stages" || usage "'$name' is no stage"; done
      [ -n "$chosen" ] || usage '--stages takes names'
      shift ;;
    -*) usage "'$1' is no flag" ;;
    *) out=$1 ;;
  esac
  shift
done
build=${BUILD:-build-gpu}
device=${DEVICE:-cuda}
sizes=${SIZES:-full}
python=${THIMBLE_PYTHON:-python3}
program=$build/bin/thimble
tests=$build/bin/thimble_tests
mkdir -p "$out"
failed=0

# note NAME RESULT TEXT: a line of the table of the stage that runs.
note() { printf '%-22s %-9s %s\n' "$1" "$2" "$3" | tee -a "$summary"; }
# run NAME COMMAND...: with its output in OUT/NAME.log.
run() {
  local name=$1 start=$SECONDS
  shift
  if timeout "${LIMIT:-570}" "$@" >"$out/$name.log" 2>&1; then
    note "$name" passed "$((SECONDS - start)) s"
  else
    note "$name" FAILED "$((SECONDS - start)) s, see $out/$name.log"
    failed=1
    return 1
  fi
}
# figure FILE KEY: a number of a JSON file that has a key a line.
figure() { sed -n "s/^ *\"$2\": \([^,]*\),*$/\1/p" "$1"; }
# short FILE KEY: the number with two digits behind the point.
short() { awk -v number="$(figure "$1" "$2")" 'BEGIN { printf "%.2f", number }'; }
# ratio A B: to two digits.
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { if (b > 0) printf "%.2f", a / b; else printf "-" }'; }
# goal NAME WHAT VALUE least|most BOUND: whether a figure is where it is wanted. It fails nothing: time is no test.
goal() {
  local what
  what=$(awk -v value="$3" -v kind="$4" -v bound="$5" \
    'BEGIN { print value == "-" || value == "" ? "unknown" : (kind == "least" ? value + 0 >= bound : value + 0 <= bound) ? "met" : "MISSED" }')
  note "$1" "$what" "$2 $3, wanted at $4 $5"
}
mib() { awk -v bytes="$1" 'BEGIN { printf "%.2f MiB", bytes / 2^20 }'; }
gib() { awk -v bytes="$1" 'BEGIN { printf "%.2f GiB", bytes / 2^30 }'; }
if [ "$sizes" = tiny ]; then is_tiny=1; else is_tiny=; fi
# tiny FLAGS...: these, in a run that only shows that commands run.
tiny() { [ -n "$is_tiny" ] && echo "$@"; }

has_torch() {
  local ask='import torch'
  [ "$device" = cuda ] && ask='import torch, sys; sys.exit(not torch.cuda.is_available())'
  "$python" -c "$ask" 2>/dev/null && return
  note torch "left out" "$python has no PyTorch for $device"
  return 1
}

# asked NAME FILE: what libraries made and refused, of a run's JSON. What they refuse our kernels compute, slower.
asked() {
  local library text='' what=counted
  [ -n "$(figure "$2" cublaslt_calls)" ] || return 0
  for library in cublaslt cudnn; do
    text+="${text:+; }$library made $(figure "$2" "${library}_calls") calls and refused $(figure "$2" "${library}_refusals")"
    if [ "$(figure "$2" "${library}_refusals")" != 0 ]; then
      what=REFUSED
      text+=", the first: $(sed -n "s/^ *\"${library}_first_refused\": \"\(.*\)\",*$/\1/p" "$2")"
    fi
  done
  note "$1-libraries" "$what" "$text"
}
# asked_lines FILE: the same of gpu_benchmark's lines.
asked_lines() {
  local line
  grep '_libraries ' "$1" | while read -r line; do
    if grep -q '_refusals [1-9]' <<<"$line"; then note libraries REFUSED "$line"; else note libraries counted "$line"; fi
  done
}

# same NAME FILE: predicted and measured bytes of a run's JSON, and that its steps did not wait.
same() {
  local predicted measured waits
  predicted=$(figure "$2" predicted_peak_bytes)
  measured=$(figure "$2" measured_peak_bytes)
  waits=$(figure "$2" waits_per_step)
  if [ -n "$predicted" ] && [ "$predicted" = "$measured" ]; then
    note "$1-bytes" equal "predicted and measured $measured ($(gib "$measured"))"
  else
    note "$1-bytes" DIFFER "predicted ${predicted:-none}, measured ${measured:-none}"
    failed=1
  fi
  if [ "${waits:-0}" != 0 ]; then
    note "$1-waits" FAILED "the host waited $waits times in a step"
    failed=1
  fi
  asked "$1" "$2"
}

build() {
  local prefixes folder generator=()
  prefixes=$(find .deps -mindepth 2 -maxdepth 3 -type d -name usr 2>/dev/null | sed "s#^#$PWD/#" | tr '\n' ';')
  for folder in $(tr ';' ' ' <<<"$prefixes"); do
    export CPLUS_INCLUDE_PATH=$folder/include:$folder/include/eigen3${CPLUS_INCLUDE_PATH:+:$CPLUS_INCLUDE_PATH}
    export LIBRARY_PATH=$folder/lib/x86_64-linux-gnu${LIBRARY_PATH:+:$LIBRARY_PATH}
  done
  command -v ninja >/dev/null && generator=(-G Ninja)
  [ -f "$build/CMakeCache.txt" ] && generator=()
  configure() {
    run configure cmake -B "$build" "${generator[@]}" -DTHIMBLE_CUDA="$([ "$device" = cuda ] && echo ON || echo OFF)" \
      -DCMAKE_PREFIX_PATH="$prefixes" -DTHIMBLE_EXAMPLES=OFF
  }
  has_cudnn() { [ "$device" != cuda ] || grep -q '^CUDNN_LIBRARY:FILEPATH=/' "$build/CMakeCache.txt"; }
  configure || return
  if ! has_cudnn; then # where the toolkit has none a Python package may
    CUDNN_ROOT=$("$python" -c 'import nvidia.cudnn; print(list(nvidia.cudnn.__path__)[0])' 2>/dev/null)
    export CUDNN_ROOT
    configure || return
    has_cudnn || note cudnn "left out" "not found: convolutions are the own kernels'"
  fi
  run build cmake --build "$build" -j "$(nproc)" --target thimble_program thimble_tests gpu_benchmark \
    gpu_memory_benchmark gpu_step_benchmark || return
  "$program" devices | tee "$out/devices.txt"
  if [ "$device" = cuda ] && ! grep -q '^cuda .*, found' "$out/devices.txt"; then
    note devices FAILED "this build finds no GPU"
    failed=1
  fi
}

tests() { run cuda-tests "$tests" "[cuda]"; }

operator_files='softmax elementwise norm attention batch_norm dropout indexing matmul linear_loss loss pool reduction'
operators() {
  local file
  for file in $operator_files; do
    run "operators-$file" "$tests" --filenames-as-tags "[#ops_${file}_test]"
  done
}

# Calls that are refused are our own affair, checked one by one; some are questions whose answer is no.
sanitizer() {
  local tool
  tool=$(command -v compute-sanitizer || find /usr/local/cuda/bin -name compute-sanitizer 2>/dev/null | head -1)
  if [ -z "$tool" ]; then
    note "sanitizer-$1" "left out" "compute-sanitizer is not installed"
  elif "$tool" "$program" devices 2>&1 | grep -q 'Device not supported'; then
    note "sanitizer-$1" "left out" "compute-sanitizer does not work on this machine"
  else
    run "sanitizer-$1" "$tool" --tool "$1" --report-api-errors no --error-exitcode 1 "$tests" "${@:2}"
  fi
}
memcheck() { sanitizer memcheck "[cuda]~[.]~[remap]"; }
racecheck() { sanitizer racecheck "[cuda]~[.]~[remap]"; }
initcheck() { sanitizer initcheck "[cuda]~[.]~[remap]"; }
synccheck() { sanitizer synccheck "[cuda]~[.]~[remap]"; }
# The bounds of blocks within the arena are not the sanitizer's, which sees one mapping: NaN in fresh memory and the
# comparison with the CPU find what reads or writes beside a block there.
opscheck() {
  local file tags=
  for file in $operator_files; do tags+=",[#ops_${file}_test]~[.]"; done
  sanitizer memcheck --filenames-as-tags "${tags#,}"
}

# reproduce NAME...: these experiments on the device; the lines with the counts go to the table.
reproduce() {
  local flags=() line
  [ -n "$is_tiny" ] && flags=(--quick)
  run "reproduce-$1" "$program" reproduce "$@" --device "$device" --out "$out/report-$1" "${flags[@]}"
  note "$1-rows" counted "$(grep -o '[0-9]* rows; predicted == measured in [0-9]* of [0-9]*' "$out/reproduce-$1.log")"
  grep '^libraries: ' "$out/reproduce-$1.log" | cut -d' ' -f2- | while read -r line; do
    if grep -q 'refused [1-9]' <<<"$line"; then note "$1-libraries" REFUSED "$line"; else note "$1-libraries" counted "$line"; fi
  done
}
bytes() { reproduce prediction; }
techniques() { reproduce techniques; }
precision() { reproduce precision-bytes precision-state; }

train_one() { # NAME MODEL FLAGS...
  local name=$1 model=$2 file
  shift 2
  file=$out/train-$name.json
  # shellcheck disable=SC2016  # "$0" is the inner shell's
  run "train-$name" bash -c '"$@" >"$0"' "$file" "$program" train "$model" --data synthetic --device "$device" \
    --steps 20 --eval-batches 1 --json "$@" || return
  same "train-$name" "$file"
  note "train-$name-loss" measured "$(short "$file" loss_first) -> $(short "$file" loss_last)"
  [ -n "$(figure "$file" device_used_bytes)" ] &&
    note "train-$name-device" measured "used $(gib "$(figure "$file" device_used_bytes)"), outside of arenas \
$(gib "$(figure "$file" device_outside_bytes)"), before the first page $(gib "$(figure "$file" context_bytes)"), handles of \
libraries $(mib "$(figure "$file" handle_bytes)")"
}
train() {
  local gpt small
  read -ra gpt <<<"$(tiny --layers 1 --heads 2 --width 32 --seq 32)"
  read -ra small <<<"$(tiny --width 8)"
  train_one mlp mlp --batch 64
  train_one char-gpt char-gpt --batch 16 "${gpt[@]}"
  [ "$device" = cuda ] && train_one char-gpt-graph char-gpt --batch 16 --graph "${gpt[@]}"
  train_one char-gpt-bf16 char-gpt --batch 16 --dtype bf16 "${gpt[@]}"
  train_one char-gpt-fp8 char-gpt --batch 16 --precision fp8 "${gpt[@]}"
  [ "$device" = cuda ] && train_one char-gpt-fp8-graph char-gpt --batch 16 --precision fp8 --graph "${gpt[@]}"
  if [ -n "$is_tiny" ]; then
    train_one resnet18 resnet18 --batch 4 --image 16 "${small[@]}"
  else
    train_one resnet18 resnet18 --batch 32 --image 64
    train_one resnet50-bf16 resnet50 --batch 64 --image 224 --dtype bf16
    train_one gpt2 gpt2 --batch 4 --seq 512
    train_one gpt2-fp8 gpt2 --batch 4 --seq 512 --precision fp8
    train_one gpt2-fp8-block gpt2 --batch 4 --seq 512 --precision fp8-block
  fi
}

memory() {
  run memory "$build/bin/gpu_memory_benchmark" "$device" "$([ -n "$is_tiny" ] && echo 64 || echo 1024)" || return
  while read -r line; do note "memory" measured "$line"; done <"$out/memory.log"
}

operations() {
  local scale=1 copy
  [ -n "$is_tiny" ] && scale=64
  [ -f "$out/memory.log" ] || run memory "$build/bin/gpu_memory_benchmark" "$device" "$([ -n "$is_tiny" ] && echo 64 || echo 1024)"
  run operations "$build/bin/gpu_benchmark" "$device" "$scale" operators,optimizers || return
  copy=$(awk '$1 == "copy" { print $6 }' "$out/memory.log")
  awk -v copy="$copy" '$6 == "GB/s" && copy > 0 { printf "%s %s %.4f ms, %.0f GB/s, %.2f of the copy bandwidth\n", $1, $2,
                       $3, $5, $5 / copy }
                       $6 == "Gop/s" { printf "%s %s %.4f ms, %.1f Top/s\n", $1, $2, $3, $5 / 1000 }' \
    "$out/operations.log" | while read -r line; do note operation measured "$line"; done
  asked_lines "$out/operations.log"
  awk -v copy="$copy" '$1 ~ /^(add|gelu|batch_norm_relu|dropout)$/ && copy > 0 { printf "%s-%s %.2f\n", $1, $2, $5 / copy }' \
    "$out/operations.log" | while read -r line; do goal "${line% *}" "share of the copy bandwidth" "${line#* }" least 0.85; done
  awk '$1 ~ /^(linear|fp8).*(4096|8192)$/ { rate[$1] = $5 }
       END { for (name in rate) if (name ~ /^fp8/) { bf16 = name; sub(/^fp8[a-z_]*/, name ~ /_pass_/ ? "linear_pass_" : "linear_", bf16)
             if (bf16 in rate) printf "%s %.2f\n", name, rate[name] / rate[bf16] } }' "$out/operations.log" |
    sort | while read -r line; do goal "${line% *}" "rate over bf16's" "${line#* }" least 1; done
  has_torch || return
  run operations-torch "$python" bench/gpu_torch.py operators --device "$device" --scale "$scale" || return
  awk 'NR == FNR { torch[$1 " " $2] = $3; next }
       ($1 " " $2) in torch { printf "%s %s %.4f ms, PyTorch %.4f ms, ours / theirs %.2f\n", $1, $2, $3,
                              torch[$1 " " $2], $3 / torch[$1 " " $2] }' "$out/operations-torch.log" \
    "$out/operations.log" | while read -r line; do note operation beside "$line"; done
  awk 'NR == FNR { torch[$1 " " $2] = $3; next }
       $1 ~ /^matmul/ && ($1 " " $2) in torch { printf "%s-%s %.2f\n", $1, $2, $3 / torch[$1 " " $2] }' \
    "$out/operations-torch.log" "$out/operations.log" | while read -r line; do
    goal "${line% *}" "time over PyTorch's" "${line#* }" most 1.05
  done
}

steps() {
  local line
  [ "$device" = cuda ] || { note steps "left out" "graphs are of a GPU" && return; }
  run steps "$build/bin/gpu_benchmark" "$device" 1 steps || return
  grep -v '_libraries ' "$out/steps.log" | while read -r line; do note step measured "$line"; done
  asked_lines "$out/steps.log"
  if grep -q ' waits_per_step [1-9]' "$out/steps.log"; then
    note steps-waits FAILED "the host waits for the device inside of a step"
    failed=1
  fi
}

libraries() {
  [ "$device" = cuda ] || { note libraries "left out" "they are of a GPU" && return; }
  run libraries "$build/bin/gpu_benchmark" "$device" 1 libraries && asked_lines "$out/libraries.log"
}

# ours NAME MODEL FLAGS...: gpu_step_benchmark.
ours() {
  local name=$1
  shift
  # shellcheck disable=SC2016
  run "$name" bash -c '"$@" >"$0"' "$out/$name.json" "$build/bin/gpu_step_benchmark" "$@" --device "$device" || return
  same "$name" "$out/$name.json"
  note "$name" measured "$(short "$out/$name.json" best_ms) ms, $(short "$out/$name.json" items_per_s) items/s"
  [ -n "$(figure "$out/$name.json" unbooked_bytes)" ] &&
    note "$name-unbooked" measured "behind the books $(mib "$(figure "$out/$name.json" unbooked_bytes)"), handles of \
libraries $(mib "$(figure "$out/$name.json" handle_bytes)"), before the first page \
$(gib "$(figure "$out/$name.json" context_bytes)")"
}
# theirs NAME OURS MODEL FLAGS...: gpu_torch.py, and the ratios.
theirs() {
  local name=$1 mine=$out/$2.json file=$out/$1.json
  shift 2
  # shellcheck disable=SC2016
  run "$name" bash -c '"$@" >"$0"' "$file" "$python" bench/gpu_torch.py train "$@" --device "$device" || return
  note "$name" beside "$(short "$file" best_ms) ms, $(short "$file" items_per_s) items/s, peak \
$(gib "$(figure "$file" peak_bytes)"), reserved $(gib "$(figure "$file" reserved_bytes)"); ours / theirs: items/s \
$(ratio "$(figure "$mine" items_per_s)" "$(figure "$file" items_per_s)"), bytes \
$(ratio "$(figure "$mine" measured_peak_bytes)" "$(figure "$file" reserved_bytes)")"
}
# against THEIRS OURS FASTER BYTES: the goals beside PyTorch, for its reserved bytes and for those its tensors took.
against() {
  local mine=$out/$2.json file=$out/$1.json key
  goal "$2-speed" "items/s over PyTorch's" "$(ratio "$(figure "$mine" items_per_s)" "$(figure "$file" items_per_s)")" least "$3"
  for key in reserved_bytes peak_bytes; do
    goal "$2-memory" "bytes over PyTorch's $key" \
      "$(ratio "$(figure "$mine" measured_peak_bytes)" "$(figure "$file" "$key")")" most "$4"
  done
}

gpt2() {
  local flags=(--batch 16 --seq 1024) small
  read -ra small <<<"$(tiny --layers 1 --heads 2 --width 32)"
  [ -n "$is_tiny" ] && flags=(--batch 2 --seq 32 --steps 2)
  ours gpt2 gpt2 "${flags[@]}" "${small[@]}" --precision bf16
  ours gpt2-pure gpt2 "${flags[@]}" "${small[@]}" --dtype bf16
  has_torch || return
  theirs gpt2-torch gpt2 gpt2 "${flags[@]}" "${small[@]}" --dtype autocast && against gpt2-torch gpt2 1 0.5
  theirs gpt2-torch-compiled gpt2 gpt2 "${flags[@]}" "${small[@]}" --dtype autocast --compile
  theirs gpt2-torch-pure gpt2-pure gpt2 "${flags[@]}" "${small[@]}" --dtype bf16
}

resnet50() {
  local flags=(--batch 256 --image 224)
  [ -n "$is_tiny" ] && flags=(--batch 2 --image 32 --steps 2)
  ours resnet50 resnet50 "${flags[@]}" --precision bf16
  ours resnet50-pure resnet50 "${flags[@]}" --dtype bf16
  has_torch || return
  theirs resnet50-torch resnet50 resnet50 "${flags[@]}" --dtype autocast && against resnet50-torch resnet50 0.95 0.6
  [ -n "$is_tiny" ] || theirs resnet50-torch-compiled resnet50 resnet50 "${flags[@]}" --dtype autocast --compile
}

fit() {
  local flags=(--batch 184 --image 224 --hardware h200-141gb) budget budgets=(10.01GiB 4.99GiB) tf32=(--tf32)
  [ -n "$is_tiny" ] && flags=(--batch 2 --image 64 --steps 1) budgets=(410MiB)
  [ "$device" = cuda ] || tf32=()
  ours fit-all resnet50 "${flags[@]}" "${tf32[@]}"
  for budget in "${budgets[@]}"; do
    ours "fit-$budget" resnet50 "${flags[@]}" "${tf32[@]}" --budget "$budget" || continue
    note "fit-$budget" overhead "time $(ratio "$(figure "$out/fit-$budget.json" best_ms)" \
      "$(figure "$out/fit-all.json" best_ms)") of keeping everything, bytes $(ratio \
      "$(figure "$out/fit-$budget.json" measured_peak_bytes)" "$(figure "$out/fit-all.json" measured_peak_bytes)")"
    goal "fit-$budget" "time over keeping everything" "$(awk -v a="$(figure "$out/fit-$budget.json" best_ms)" \
      -v b="$(figure "$out/fit-all.json" best_ms)" 'BEGIN { printf "%.3f", a / b }')" most "$([ "$budget" = 4.99GiB ] &&
      echo 1.119 || echo 1.032)"
  done
}

for name in $chosen; do
  summary=$out/summary-$name.txt
  : >"$summary"
  if [ "$name" != build ] && [ ! -x "$tests" ]; then
    note "$name" FAILED "$tests does not exist: the stage build comes first"
    failed=1
    continue
  fi
  [ "$name" = build ] && command -v nvidia-smi >/dev/null &&
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | while read -r line; do
      note gpu is "$line"
    done
  start=$SECONDS
  "$name"
  note "$name" ended "$((SECONDS - start)) s"
done
echo
for name in $(cut -d' ' -f1 <<<"$stages"); do
  [ -f "$out/summary-$name.txt" ] && cat "$out/summary-$name.txt"
done | tee "$out/summary.txt"
exit "$failed"
