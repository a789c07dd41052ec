#!/usr/bin/env bash
# Runs the tests of the CPU kernels under every instruction set of this machine, without and with each kind of dot unit;
# prints which ran and which the machine lacks.
#
#   tools/forced_kernels.sh BUILD_FOLDER
set -euo pipefail
build=$1
program=$build/bin/thimble tests=$build/bin/thimble_tests
files="gemm gemm_bits gemm_bf16 gemm_direct conv_bf16 quant_conv dot_units fp8_linear ops_softmax ops_loss
ops_reduction formats quantize step_kernels"

filter=
for file in $files; do filter+="${filter:+,}[#${file}_test]~[.]~[slow]"; done

ran=() lacking=()
# Tests that pass but skip what the machine lacks exit with 77 (tests/support/skip.h).
run() {
  local name="isa $1, units $2" why status=0
  if ! why=$(THIMBLE_ISA=$1 THIMBLE_UNITS=$2 "$program" devices 2>&1 >/dev/null); then
    lacking+=("$name (${why#thimble: })")
    return
  fi
  printf '== %s\n' "$name"
  THIMBLE_ISA=$1 THIMBLE_UNITS=$2 "$tests" --filenames-as-tags "$filter" || status=$?
  [ "$status" -eq 0 ] || [ "$status" -eq 77 ] || exit "$status"
  ran+=("$name")
}

for isa in generic avx2 avx512; do run "$isa" none; done
for units in bf16 int8; do run avx512 "$units"; done

printf 'run under: %s\n' "${ran[@]}"
[ ${#lacking[@]} -eq 0 ] || printf 'NOT RUN, this machine lacks it: %s\n' "${lacking[@]}"
