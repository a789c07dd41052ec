#!/usr/bin/env bash
# Everything about CUDA that only a GPU can tell, in one run and one table:
#
#   bench/gpu_check.sh [OUT]        (gpu-check: a folder for logs)
#
# Builds with CUDA, runs the tests on the GPU (every operator against the CPU's kernels and a reference, training against
# the CPU, predicted against measured bytes), the small ones again under compute-sanitizer, trains models and compares
# predicted with measured peaks, and times operators, beside PyTorch where THIMBLE_PYTHON (or python3) has it. Stages
# that this machine cannot run are named as left out. Exit status 0 when no stage failed.
#
# Headers that Debian's packages would bring (Eigen, Catch2, CLI11, nlohmann-json, zlib) are also looked for under
# .deps/, which git ignores: .deps/<anything>/usr/include as `dpkg -x PACKAGE.deb .deps/NAME` leaves them.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-gpu-check}
build=${BUILD:-build-gpu}
jobs=$(nproc)
mkdir -p "$out"
summary=$out/summary.txt
: >"$summary"
failed=0

note() { printf '%-26s %-9s %s\n' "$1" "$2" "$3" | tee -a "$summary"; }
# stage NAME COMMAND...: runs it with its output in OUT/NAME.log.
stage() {
  local name=$1 start=$SECONDS
  shift
  if "$@" >"$out/$name.log" 2>&1; then
    note "$name" passed "$((SECONDS - start)) s"
  else
    note "$name" FAILED "$((SECONDS - start)) s, see $out/$name.log"
    failed=1
    return 1
  fi
}

command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader |
  while read -r line; do note gpu is "$line"; done

prefixes=$(find .deps -mindepth 2 -maxdepth 3 -type d -name usr 2>/dev/null | sed "s#^#$PWD/#" | tr '\n' ';')
for folder in $(tr ';' ' ' <<<"$prefixes"); do
  export CPLUS_INCLUDE_PATH=$folder/include:$folder/include/eigen3${CPLUS_INCLUDE_PATH:+:$CPLUS_INCLUDE_PATH}
  export LIBRARY_PATH=$folder/lib/x86_64-linux-gnu${LIBRARY_PATH:+:$LIBRARY_PATH}
done
generator=()
command -v ninja >/dev/null && generator=(-G Ninja)
stage configure cmake -B "$build" "${generator[@]}" -DTHIMBLE_CUDA=ON -DCMAKE_PREFIX_PATH="$prefixes" \
  -DTHIMBLE_EXAMPLES=OFF || exit 1
stage build cmake --build "$build" -j "$jobs" --target thimble_program thimble_tests gpu_benchmark || exit 1
program=$build/bin/thimble
tests=$build/bin/thimble_tests

"$program" devices | tee "$out/devices.txt"
if ! grep -q '^cuda .*, found' "$out/devices.txt"; then
  note devices FAILED "this build finds no GPU, so nothing below can be run"
  exit 1
fi
stage cuda-tests "$tests" "[cuda]"
for file in softmax elementwise norm attention batch_norm dropout indexing matmul linear_loss loss pool reduction; do
  stage "operators-$file" "$tests" --filenames-as-tags "[#ops_${file}_test]"
done
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck initcheck synccheck; do
    stage "sanitizer-$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 "$tests" "[cuda]~[.]"
  done
else
  note sanitizer "left out" "compute-sanitizer is not installed"
fi

# figure FILE KEY: a number of a run's JSON.
figure() { sed -n "s/^ *\"$2\": \([^,]*\),*$/\1/p" "$1"; }
train() { # NAME MODEL FLAGS...
  local name=$1 model=$2 file
  shift 2
  file=$out/$name.json
  stage "train-$name" bash -c '"$@" >"$0"' "$file" "$program" train "$model" --data synthetic --device cuda \
    --steps 20 --eval-batches 1 --json "$@" || return
  local predicted measured
  predicted=$(figure "$file" predicted_peak_bytes)
  measured=$(figure "$file" measured_peak_bytes)
  if [ "$predicted" = "$measured" ]; then
    note "bytes-$name" equal "predicted and measured $measured, $(figure "$file" ms_per_step) ms per step"
  else
    note "bytes-$name" DIFFER "predicted $predicted, measured $measured"
    failed=1
  fi
}
train mlp mlp --batch 64
train char-gpt char-gpt --batch 16
train char-gpt-graph char-gpt --batch 16 --graph
train char-gpt-bf16 char-gpt --batch 16 --dtype bf16
train resnet18 resnet18 --batch 32 --image 64
train resnet50-bf16 resnet50 --batch 64 --image 224 --dtype bf16
train gpt2 gpt2 --batch 4 --seq 512
train char-gpt-fp8 char-gpt --batch 16 --precision fp8
train char-gpt-fp8-graph char-gpt --batch 16 --precision fp8 --graph
train gpt2-fp8 gpt2 --batch 4 --seq 512 --precision fp8
train gpt2-fp8-block gpt2 --batch 4 --seq 512 --precision fp8-block

stage operators-times bash -c "$build/bin/gpu_benchmark cuda | tee $out/times.txt"
python=${THIMBLE_PYTHON:-python3}
if "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  stage torch-times bash -c "$python bench/gpu_torch.py | tee $out/times-torch.txt"
  awk 'NR == FNR { torch[$1 " " $2] = $3; next }
       ($1 " " $2) in torch { printf "%-22s %-6s %10.4f ms, PyTorch %10.4f ms, ratio %.2f\n", $1, $2, $3,
                              torch[$1 " " $2], $3 / torch[$1 " " $2] }' "$out/times-torch.txt" "$out/times.txt" |
    tee -a "$summary"
else
  note torch "left out" "$python has no PyTorch with a GPU"
fi
echo
cat "$summary"
exit "$failed"
