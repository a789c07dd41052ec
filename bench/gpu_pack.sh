#!/usr/bin/env bash
# Builds the programs for a GPU on a machine without one, and packs them with their scripts into one archive:
#
#   bench/gpu_pack.sh [ARCHIVE [CMAKE OPTION...]]        (thimble-gpu.tar.xz)
#
# The machine with the GPU builds nothing: `tar xf thimble-gpu.tar.xz && thimble-gpu/bench/gpu_first.sh`. It needs a
# driver for this toolkit, a glibc no older than this machine's, and cuBLAS and cuDNN of the toolkit's versions, which
# gpu_first.sh finds in PyTorch's packages. Builds for compute capability 9.0 (or ARCHITECTURES) in BUILD (build-gpu).
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/build.sh

archive=${1:-thimble-gpu.tar.xz}
build=${BUILD:-build-gpu}
programs="thimble thimble_tests gpu_benchmark gpu_memory_benchmark gpu_step_benchmark"
most=$((40 * 1000 * 1000)) # bytes: a machine lent for minutes must not spend them on the upload

configure "$build" -DTHIMBLE_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="${ARCHITECTURES:-90-real}" -DTHIMBLE_EXAMPLES=OFF \
  -DCMAKE_EXE_LINKER_FLAGS="-static-libstdc++ -static-libgcc" "${@:2}"
# shellcheck disable=SC2086  # several words
compile "$build" thimble_program ${programs#thimble }

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
packed=$folder/thimble-gpu
mkdir -p "$packed/bin" "$packed/bench/torch"
for name in $programs; do
  strip -o "$packed/bin/$name" "$build/bin/$name"
  if readelf -d "$packed/bin/$name" | grep -E 'NEEDED.*(libstdc\+\+|libgcc_s)'; then
    say "gpu_pack.sh: $name needs this machine's C++ library" >&2
    exit 1
  fi
done
if tools/kernels.py --has-cuobjdump; then # expected figures for the table; .ci/run checks the budgets
  tools/kernels.py "$build/CMakeFiles/thimble_cuda.dir" --figures "$folder/figures" >"$folder/budgets" 2>&1 || tail -n 1 "$folder/budgets"
  bench/gpu_expected.py "$folder/figures" --tsv "$packed/bench/gpu_expected.tsv" >/dev/null
else
  say "no cuobjdump: the table will have no expected figures"
fi
cp bench/gpu_first.sh bench/gpu_table.py "$packed/bench/"
cp bench/torch/gpu.py bench/torch/nets.py bench/torch/timing.py "$packed/bench/torch/"
{
  git log -1 --format='commit %h of %cs' 2>/dev/null || say "commit unknown"
  git diff --quiet HEAD 2>/dev/null || say "with changes that are not committed"
  sed -n 's/^CMAKE_CUDA_ARCHITECTURES:[A-Z]*=/architectures /p' "$build/CMakeCache.txt"
  "${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}" --version | sed -n 's/^Cuda compilation tools, /nvcc /p'
} >"$packed/built.txt"
tar -C "$folder" -cf - thimble-gpu | xz -T0 -6 >"$archive"
bytes=$(stat -c %s "$archive")
say "$archive: $bytes bytes, of $most at most"
[ "$bytes" -le "$most" ]
