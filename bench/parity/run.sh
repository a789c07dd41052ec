#!/bin/sh
# Trains the same models on the same batches with Thimble and with PyTorch, and compares the results.
#
#   THIMBLE_PYTHON=python3 bench/parity/run.sh build/bin/thimble_parity [flags of bench/torch/parity.py]
#   THIMBLE_PYTHON=python3 bench/parity/run.sh --llama build/bin/thimble_parity [flags of bench/torch/hub.py]
#   THIMBLE_PYTHON=python3 bench/parity/run.sh --lora build/bin/thimble_parity [flags of bench/torch/hub.py]
#
# THIMBLE_PYTHON names a Python with torch, numpy and safetensors; --llama and --lora also need transformers and peft.
# Exit status: 0 passed, 1 failed, 77 not run.
script=$(dirname "$0")/../torch/parity.py
adapters=
if [ "$1" = --llama ] || [ "$1" = --lora ]; then
  script=$(dirname "$0")/../torch/hub.py
  [ "$1" = --llama ] || adapters=--adapters=yes
  shift
fi
if [ -z "$THIMBLE_PYTHON" ]; then
  echo "not run: THIMBLE_PYTHON does not name a Python with torch, numpy and safetensors"
  exit 77
fi
if ! command -v "$THIMBLE_PYTHON" >/dev/null; then
  echo "not run: THIMBLE_PYTHON=$THIMBLE_PYTHON is not a program"
  exit 77
fi
exec "$THIMBLE_PYTHON" "$script" "$@" $adapters
