#!/usr/bin/env bash
# Tests and measures a GPU in half an hour, the most telling stages first:
#
#   bench/gpu_first.sh [--stages NAME,NAME...] [--minutes M] [--list] [OUT]        (all but the last part; gpu-results)
#
# NAME is a stage or a part: first, second, third, rest (--list). Each stage has a time limit below 7 minutes; its
# output up to then counts, and a stage that fails, hangs or cannot run does not stop the next. With --minutes no stage
# begins after M minutes, and a running one is cut off. OUT gets results.txt, all output as it comes, and table.md, made
# from it by gpu_table.py; a further call adds its stages. Exits with 0 if no stage of this call failed.
#
# Programs come from BIN: ../bin, as bench/gpu_pack.sh packs them, or ../build/bin. THIMBLE_PYTHON (python3) runs
# PyTorch; its packages also provide cuBLAS and cuDNN, else the system does. LIMIT=SECONDS sets every stage's limit.
# DEVICE=cpu SIZES=tiny runs the same commands without a GPU, to see that they run; DEVICE=emulated runs the stages of
# tests on the CUDA device that a build without CUDA emulates.
# shellcheck disable=SC2317  # stages are called by name
set -uo pipefail
self=$(realpath "$0")
cd "$(dirname "$self")/.." || exit 1

# part, limit in seconds, name, description
stages='first  30  devices    this build, the driver, the GPU
first  150 tests      [cuda]: training, bits, graphs, memory
first  90  operators  every operator against the CPU and a reference
first  50  memory     copies, pages, compaction
first  100 speed      operators and optimizers: times, shares of the copy bandwidth
second 90  torch      the same operators of PyTorch
second 100 libraries  what cuBLASLt and cuDNN made and refused; small models, graph against eager
second 240 gpt2       GPT-2 124M, bf16, T 1024, batch 16, beside PyTorch eager and compiled
second 240 resnet50   ResNet-50, bf16, batch 256, beside PyTorch eager and compiled
second 240 fit        ResNet-50, batch 184, f32 with TF32, all kept and within 10.01 and 4.99 GiB
third  180 racecheck  compute-sanitizer over tests of tensor cores, norms, embedding, FP8
third  240 memcheck   likewise
third  120 graphs     [remap],[graph]: pages that move, recorded steps
third  120 profile    hardware counters of the slowest kernels
rest   400 train      thimble train: predicted == measured, losses
rest   400 bytes      predicted == measured: models, batches, optimizers
rest   400 techniques predicted == measured under every technique
rest   400 precision  predicted == measured under every precision policy and 8-bit state
rest   400 initcheck  compute-sanitizer over [cuda]
rest   400 synccheck  likewise
rest   400 opscheck   memcheck over the operators'"'"' tests'

usage() {
  printf 'gpu_first.sh: %s\nstages:\n%s\n' "$1" "$stages" >&2
  exit 2
}
out=gpu-results chosen='first second third' minutes=
while [ $# -gt 0 ]; do
  case $1 in
    --list) echo "$stages" && exit 0 ;;
    --stages) [ $# -ge 2 ] && chosen=${2//,/ } || usage '--stages takes names' && shift ;;
    --minutes) [[ ${2:-} =~ ^[0-9]+$ ]] && minutes=$2 || usage '--minutes takes a number' && shift ;;
    --inside) inside=$2 && shift ;; # internal: runs one stage, in a process that can be killed
    -*) usage "'$1' is no flag" ;;
    *) out=$1 ;;
  esac
  shift
done

bin=${BIN:-$([ -d bin ] && echo bin || echo build/bin)}
device=${DEVICE:-cuda}
python=${THIMBLE_PYTHON:-python3}
is_tiny=
[ "${SIZES:-full}" = tiny ] && is_tiny=1
export PYTHONUNBUFFERED=1

# ---- helpers; `left_out WHY` ends a stage that this machine cannot run

left_out() {
  echo "left out: $1"
  exit 77
}
# run COMMAND...: prints the command and its output as it comes; an error fails the stage but does not end it.
failed=0
run() {
  local start=$SECONDS
  echo "---- $*"
  stdbuf -oL -eL "$@" 2>&1 || { echo "FAILED with $?: $*" && failed=1; }
  echo "---- $((SECONDS - start)) s"
}
program() { run "$bin/$1" "${@:2}"; }
# Tests that loop over the available devices pass even without a GPU.
needs_gpu() { [ "$device" != cuda ] || "$bin/thimble" devices | grep -q '^cuda .*, found' || left_out 'this build finds no GPU'; }
cases() {
  needs_gpu
  program thimble_tests --durations yes "$@"
}
has_torch() {
  local ask='import torch'
  [ "$device" = cuda ] && ask='import torch, sys; sys.exit(not torch.cuda.is_available())'
  "$python" -c "$ask" 2>/dev/null || { echo "no PyTorch for $device in $python" && return 1; }
}
operator_files='softmax elementwise norm attention batch_norm dropout indexing matmul linear_loss loss pool reduction'
# API errors are not reported: the library checks every call, and some calls only ask and may fail.
sanitizer() {
  local tool
  needs_gpu
  tool=$(command -v compute-sanitizer || find /usr/local/cuda/bin -name compute-sanitizer 2>/dev/null | head -1)
  [ -n "$tool" ] || left_out 'no compute-sanitizer'
  "$tool" "$bin/thimble" devices 2>&1 | grep -q 'Device not supported' && left_out 'compute-sanitizer does not work here'
  run "$tool" --tool "$1" --report-api-errors no --error-exitcode 1 "$bin/thimble_tests" "${@:2}"
}

stage_devices() {
  command -v nvidia-smi >/dev/null && run nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.max.sm --format=csv
  program thimble devices
  (needs_gpu) || failed=1
}
stage_tests() { cases "[cuda]~[.]"; }
stage_operators() {
  local file
  for file in $operator_files; do cases --filenames-as-tags "[#ops_${file}_test]~[.]"; done
}
stage_memory() { program gpu_memory_benchmark "$device" "$([ -n "$is_tiny" ] && echo 64 || echo 1024)"; }
stage_speed() { program gpu_benchmark "$device" "$([ -n "$is_tiny" ] && echo 64 || echo 1)" operators,optimizers; }
stage_torch() {
  has_torch || left_out "PyTorch"
  run "$python" bench/torch/gpu.py operators --device "$device" --scale "$([ -n "$is_tiny" ] && echo 64 || echo 1)"
}
stage_libraries() {
  [ "$device" = cuda ] || left_out "libraries and graphs are a GPU's"
  program gpu_benchmark "$device" 1 libraries,steps
}
# step NAME FLAGS... runs our step, peer NAME FLAGS... PyTorch's. A line `step NAME` precedes their JSON.
step() {
  echo "step $1"
  program gpu_step_benchmark "${@:2}" --device "$device"
}
peer() {
  echo "step $1"
  run "$python" bench/torch/gpu.py train "${@:2}" --device "$device"
}
stage_gpt2() {
  local flags=(gpt2 --batch 16 --seq 1024)
  [ -n "$is_tiny" ] && flags=(gpt2 --batch 2 --seq 32 --steps 2 --layers 1 --heads 2 --width 32)
  step gpt2 "${flags[@]}" --precision bf16
  step gpt2-dropout "${flags[@]}" --precision bf16 --dropout 0.1
  step gpt2-pure "${flags[@]}" --dtype bf16
  has_torch || return
  peer gpt2-torch "${flags[@]}" --dtype autocast
  peer gpt2-pure-torch "${flags[@]}" --dtype bf16
  peer gpt2-compiled-torch "${flags[@]}" --dtype autocast --compile
}
stage_resnet50() {
  local flags=(resnet50 --batch 256 --image 224)
  [ -n "$is_tiny" ] && flags=(resnet50 --batch 2 --image 32 --steps 2)
  step resnet50 "${flags[@]}" --precision bf16
  step resnet50-pure "${flags[@]}" --dtype bf16
  has_torch || return
  peer resnet50-torch "${flags[@]}" --dtype autocast
  peer resnet50-compiled-torch "${flags[@]}" --dtype autocast --compile
}
stage_fit() {
  local flags=(resnet50 --batch 184 --image 224 --hardware h200-141gb --steps 5) budget budgets=(4.99GiB 10.01GiB)
  [ -n "$is_tiny" ] && flags=(resnet50 --batch 2 --image 64 --steps 1) budgets=(410MiB)
  [ "$device" = cuda ] && flags+=(--tf32)
  step fit-all "${flags[@]}"
  for budget in "${budgets[@]}"; do step "fit-$budget" "${flags[@]}" --budget "$budget"; done
}
small_checks='[#attention_mma_test],[#attention_mma_sight_test],[#tensor_core_test],[#cuda_norm_test],[#cuda_embedding_test],[#cuda_fp8_test]'
stage_racecheck() { sanitizer racecheck --filenames-as-tags "$small_checks~[.]"; }
stage_memcheck() { sanitizer memcheck --filenames-as-tags "$small_checks~[.]"; }
stage_graphs() { cases "[remap]~[.],[graph]~[.]"; }
stage_profile() {
  local tool
  tool=$(command -v ncu) || left_out 'no ncu'
  # 400 launches: time, shares of peak memory bandwidth and issue slots, registers.
  run "$tool" --clock-control none --launch-skip 400 --launch-count 400 --csv --metrics \
    gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,sm__inst_issued.avg.pct_of_peak_sustained_active,launch__registers_per_thread \
    "$bin/gpu_step_benchmark" gpt2 --batch 16 --seq 1024 --precision bf16 --steps 1 --device "$device"
}
train_one() {
  echo "step train-$1"
  program thimble train "${@:2}" --data synthetic --device "$device" --steps 20 --eval-batches 1 --json
}
stage_train() {
  local gpt=(char-gpt --batch 16) small=(resnet18 --batch 32 --image 64)
  [ -n "$is_tiny" ] && gpt+=(--layers 1 --heads 2 --width 32 --seq 32) small=(resnet18 --batch 4 --image 16 --width 8)
  train_one mlp mlp --batch 64
  train_one char-gpt "${gpt[@]}"
  train_one char-gpt-bf16 "${gpt[@]}" --dtype bf16
  train_one char-gpt-fp8 "${gpt[@]}" --precision fp8
  train_one resnet18 "${small[@]}"
  [ "$device" = cuda ] || return
  train_one char-gpt-graph "${gpt[@]}" --cuda-graph
  train_one char-gpt-fp8-graph "${gpt[@]}" --precision fp8 --cuda-graph
  train_one resnet50-bf16 resnet50 --batch 64 --image 224 --dtype bf16
  train_one gpt2 gpt2 --batch 4 --seq 512
  train_one gpt2-fp8 gpt2 --batch 4 --seq 512 --precision fp8
  train_one gpt2-fp8-block gpt2 --batch 4 --seq 512 --precision fp8-block
}
# reproduce NAME...: runs experiments and drops their pages; the output has their counts.
reproduce() {
  local flags=() pages
  [ -n "$is_tiny" ] && flags=(--quick)
  pages=$(mktemp -d)
  program thimble reproduce "$@" --device "$device" --out "$pages" "${flags[@]}"
  rm -rf "$pages"
}
stage_bytes() { reproduce prediction; }
stage_techniques() { reproduce techniques; }
stage_precision() { reproduce precision-bytes precision-state; }
stage_initcheck() { sanitizer initcheck "[cuda]~[.]~[remap]"; }
stage_synccheck() { sanitizer synccheck "[cuda]~[.]~[remap]"; }
# The sanitizer sees the arena as one mapping, not its blocks; NaN in fresh memory and the comparison with the CPU find
# accesses outside a block.
stage_opscheck() {
  local file tags=
  for file in $operator_files; do tags+=",[#ops_${file}_test]~[.]"; done
  sanitizer memcheck --filenames-as-tags "${tags#,}"
}

if [ -n "${inside:-}" ]; then
  "stage_$inside"
  exit "$failed"
fi

# ---- all stages, each in a separate process

names=
for word in $chosen; do
  found=$(awk -v word="$word" '$1 == word || $3 == word { print $3 }' <<<"$stages")
  [ -n "$found" ] || usage "'$word' is no stage"
  names+=" $found"
done
# cuBLASLt and cuDNN are loaded by name, from PyTorch's packages if these have them.
libraries="the system's"
packages=$("$python" -c 'import glob, sys
print(":".join(f for p in sys.path for f in glob.glob(p + "/nvidia/*/lib") + glob.glob(p + "/torch/lib")))' 2>/dev/null)
if [ -n "$packages" ]; then
  libraries="those in $packages, else the system's"
  export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$packages
fi

mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
results=$out/results.txt
say() { echo "$*" | tee -a "$results"; }
any_failed=0
say "==== call: $(date -u +%FT%TZ), stages$names"
[ ! -f built.txt ] || say "built: $(paste -sd ';' built.txt)"
say "libraries: $libraries"
[ "$device" = cuda ] || say "without a GPU: figures of $device, which only show that commands run"
for name in $names; do
  limit=${LIMIT:-$(awk -v name="$name" '$3 == name { print $2 }' <<<"$stages")}
  if [ -n "$minutes" ]; then
    left=$((60 * minutes - SECONDS))
    [ "$left" -gt 5 ] || { say "==== stage $name: no time left" && continue; }
    [ "$limit" -lt "$left" ] || limit=$left
  fi
  say "==== stage $name: begins, $limit s at most"
  start=$SECONDS
  BIN=$bin timeout -k 5 "$limit" "$self" --inside "$name" </dev/null 2>&1 | tee -a "$results"
  case ${PIPESTATUS[0]} in
    0) what=passed ;;
    77) what='left out' ;;
    124 | 137) what='TIMED OUT' any_failed=1 ;;
    *) what=FAILED any_failed=1 ;;
  esac
  say "==== stage $name: $what, $((SECONDS - start)) s"
  "$python" bench/gpu_table.py "$results" >"$out/table.tmp" 2>>"$results" && mv "$out/table.tmp" "$out/table.md"
done
cat "$out/table.md"
exit "$any_failed"
