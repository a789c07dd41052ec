#!/usr/bin/env bash
# Runs tools/kernels.py on the machine code below, whose figures are counted by hand:
#
#   tests/cuda/kernel_budgets_test.sh OUT        OUT is emptied
set -euo pipefail
out=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
command -v python3 >/dev/null && command -v c++filt >/dev/null || exit 77
rm -rf "$out"
mkdir -p "$out"
out=$(cd "$out" && pwd)
touch "$out/fake.cu.o"

name() { echo "_ZN7thimble12cuda_kernels13kernel_detail9run_$1INS_7kernels16fake_cuda_detail${#2}${2}EEEvlT_"; }
# code KIND NAME: prints a function of the instructions on standard input, 16 bytes each, from address 0.
code() {
  printf '\t\tFunction : %s\n' "$(name "$1" "$2")"
  awk '{ printf "        /*%04x*/  %s ;  /* 0x0 */\n", 16 * (NR - 1), $0 }'
}
{
  # A thread's path has 9 instructions, 16 bytes read and 16 written. The call at 0x120 is not on it, nor is the
  # longer path from 0x0a0, which moves no words.
  code items Wide <<'E2'
S2R R0, SR_TID.X
@P1 BRA 0xa0
LDG.E.128 R4, desc[UR4][R2.64]
FADD R4, R4, R4
@P0 BRA 0x120
MUFU.RCP R4, R4
STG.E.128 desc[UR4][R2.64], R4
ISETP.GE.AND P0, PT, R0, R1, PT
NOP
EXIT
LDG.E.U16 R4, desc[UR4][R2.64]
FADD R4, R4, R4
FADD R4, R4, R4
FADD R4, R4, R4
FADD R4, R4, R4
STG.E.U16 desc[UR4][R2.64], R4
BRA 0x70
NOP
CALL.REL.NOINC 0x150
BRA 0x60
NOP
RET.REL.NODEC R20 0x0
E2
  # A loop around a loop that loads 2 or 4 bytes; by 2 it takes 5 instructions.
  code teams Narrow <<'E2'
S2R R0, SR_TID.X
MOV R5, RZ
@P0 BRA 0x50
LDG.E.U16 R4, desc[UR4][R2.64]
BRA 0x60
LDG.E R4, desc[UR4][R2.64]
FADD R5, R5, R4
@!P1 BRA 0x20
STG.E desc[UR4][R2.64], R5
@!P2 BRA 0x10
EXIT
E2
  # A loop of 9 instructions that loads 32 bytes, 8 at a time, after one load of 16.
  code teams Eights <<'E2'
S2R R0, SR_TID.X
LDG.E.128 R8, desc[UR4][R2.64]
LDG.E.64 R4, desc[UR4][R2.64]
FADD R8, R8, R4
LDG.E.64 R4, desc[UR4][R2.64]
FADD R8, R8, R4
LDG.E.64 R4, desc[UR4][R2.64]
FADD R8, R8, R4
LDG.E.64 R4, desc[UR4][R2.64]
FADD R8, R8, R4
@!P1 BRA 0x20
STG.E desc[UR4][R2.64], R8
EXIT
E2
} >"$out/sass"
{
  printf ' Function %s:\n  REG:20 STACK:8 SHARED:1024 LOCAL:0\n' "$(name items Wide)"
  printf ' Function %s:\n  REG:33 STACK:0 SHARED:1280 LOCAL:0\n' "$(name teams Narrow)"
  printf ' Function %s:\n  REG:16 STACK:0 SHARED:1024 LOCAL:0\n' "$(name teams Eights)"
} >"$out/resources"
cat >"$out/cuobjdump" <<E2
#!/usr/bin/env bash
case "\$*" in *-sass*) cat "$out/sass" ;; *) cat "$out/resources" ;; esac
E2
chmod +x "$out/cuobjdump"

failed=0
# gate EXIT: checks the exit status with the budgets on standard input.
gate() {
  local status=0
  cat >"$out/budgets"
  CUOBJDUMP=$out/cuobjdump "$root/tools/kernels.py" "$out" --budgets "$out/budgets" --figures "$out/figures" >"$out/said" 2>&1 || status=$?
  [ "$status" = "$1" ] || { echo "exit status $status, $1 expected" && cat "$out/budgets" "$out/said" && failed=1; }
}
says() { grep -qF -- "$1" "$out/said" || { echo "not said: $1" && cat "$out/said" && failed=1; }; }

gate 0 <<<$'# a comment\nfake::Wide  20  8  1024  0  0  0.3\nfake::{Narrow,Other}  33  0  1280  1  0  2.5  exception: why\nfake::Eights  16  0  1024  0  0  0.3'
# registers stack shared narrow tails instructions moved loaded half eighth tensor
for figures in $'fake::Wide\t20\t8\t1024\t0\t0\t9\t32\t16\t1\t1\t0' $'fake::Narrow\t33\t0\t1280\t1\t0\t5\t2\t2\t0\t0\t0' \
  $'fake::Eights\t16\t0\t1024\t0\t0\t9\t32\t32\t0\t0\t0'; do
  grep -qxF "$figures" "$out/figures" || { echo "not in the figures: $figures" && cat "$out/figures" && failed=1; }
done
gate 1 <<<$'fake::Wide  19  8  1024  0  0  0.3\nfake::*  33  0  1280  1  0  2.5'
says 'fake::Wide: registers 20, 19 allowed'
gate 1 <<<$'fake::Wide  20  0  1024  0  0  0.3\nfake::*  33  0  1280  0  0  2.4'
says 'fake::Wide: stack 8, 0 allowed'
says 'fake::Narrow: narrow 1, 0 allowed'
says 'fake::Narrow: per_byte 2.5, 2.4 allowed'
gate 1 <<<$'fake::{Wide,Eights}  20  8  1024  0  0  0.3\nother::*  33  0  1280  1  0  2.5'
says 'fake::Narrow: no row of the budgets is for it'
says 'other::*: no kernel has this name'
gate 1 <<<'fake::*  20  8'
says "'fake::*  20  8' is not NAME registers"
exit "$failed"
