#pragma once
// Thimble's public face: the headers for programs, in reading order. Headers not named here are inner: other headers
// include them, they may change with any version, and a program that needs one includes it by its path.

// Tensors: values that share storage, on a device; copies, random values, text.
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/ops/text.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/core/tensor/view.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/version.h>

// Memory: arenas and their ledgers, budgets, a process's other bytes, tensors on a disk or on the host.
#include <thimble/memory/offload/tier.h>
#include <thimble/memory/offload/tier_store.h>
#include <thimble/memory/process/outside.h>
#include <thimble/memory/stack.h>
#include <thimble/memory/summary.h>
#include <thimble/memory/units.h>

// Differentiable functions, gradients, checkpoint segments, user operators.
#include <thimble/autograd/apply.h>
#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/autograd/gradcheck.h>
#include <thimble/core/numbers/math.h>

// Optimizers and their companions.
#include <thimble/optim/adafactor.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/clip.h>
#include <thimble/optim/grad_scaler.h>
#include <thimble/optim/matrix/muon.h>
#include <thimble/optim/matrix/projected.h>
#include <thimble/optim/schedule.h>
#include <thimble/optim/sgd.h>

// Modules, the training step, and a trainer that keeps a user's model within a number of bytes.
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/layers/recurrent.h>
#include <thimble/nn/layers/weight_average.h>
#include <thimble/nn/precision/precision.h>
#include <thimble/nn/step/read.h>
#include <thimble/nn/step/step.h>
#include <thimble/nn/trainer/trainer.h>

// Data and files.
#include <thimble/core/files/npy.h>
#include <thimble/nn/data/source.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/tokens/tokenizer_file.h>

// Adapters over frozen weights, optionally in fewer bits.
#include <thimble/nn/lora/adapter_files.h>
#include <thimble/nn/lora/lora.h>
#include <thimble/nn/quant/weight_only.h>

// Nets in 8 bits.
#include <thimble/nn/quant/quantized_model.h>

// Many ranks: communicators, ranks as threads, as processes, on GPUs.
#include <thimble/dist/alike.h>
#include <thimble/dist/communicator.h>
#include <thimble/dist/data_parallel.h>
#include <thimble/dist/mpi.h>
#include <thimble/dist/nccl.h>
#include <thimble/dist/threads.h>

// The library's models, by name. models/models.h has plans and training runs of these; programs that train their own
// models need none of it.
#include <thimble/models/model.h>
