#!/bin/sh
# Trains the same models on the same batches with Thimble and with PyTorch, and compares.
#
#   THIMBLE_PYTHON=python3 bench/parity/run.sh build/bin/thimble_parity [flags of parity.py]
#   THIMBLE_PYTHON=python3 bench/parity/run.sh --llama build/bin/thimble_parity [flags of llama.py]
#   THIMBLE_PYTHON=python3 bench/parity/run.sh --lora build/bin/thimble_parity [flags of lora.py]
#
# THIMBLE_PYTHON names a Python with torch and numpy, for the second with transformers, for the third with peft as well. Exit status: 0 passed,
# 1 failed, 77 not run.
folder=$(dirname "$0")
script=parity.py
if [ "$1" = --llama ] || [ "$1" = --lora ]; then
  script=${1#--}.py
  shift
fi
if [ -z "$THIMBLE_PYTHON" ]; then
  echo "not run: THIMBLE_PYTHON does not name a Python with torch and numpy"
  exit 77
fi
if ! command -v "$THIMBLE_PYTHON" >/dev/null; then
  echo "not run: THIMBLE_PYTHON=$THIMBLE_PYTHON is not a program"
  exit 77
fi
exec "$THIMBLE_PYTHON" "$folder/$script" "$@"
