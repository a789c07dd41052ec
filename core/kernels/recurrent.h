#pragma once
// The kernel family of recurrent cells: one step of all samples, forward and backward, after the products with the
// weights.

#include <cstdint>

#include <thimble/core/device.h>
#include <thimble/core/dtype.h>

namespace thimble::kernels {

/// An LSTM's step: gates (rows, 4 width) before their functions, in the order i, f, g, o; c = f c_before + i g, h = o
/// tanh(c). Cells and gradients are in the compute type of `dtype` unless noted; all arrays are dense.
struct LstmStepArgs {
  std::int64_t rows = 0, width = 0;
  DType dtype = DType::f32;  ///< of gates, h and dy
  void* gates = nullptr;     ///< in backward replaced by their gradients
  const void* before = nullptr;
  void* cell = nullptr;      ///< written; read in backward
  void* h = nullptr;         ///< written by forward; may be null
  const void* dy = nullptr;  ///< gradient of h from the layer above
  const void* dh = nullptr;  ///< gradient of h from the later step
  void* dc = nullptr;        ///< gradient of the cell, replaced by the gradient of the cell before
};

/// A GRU's step: gates (rows, 3 width) of the input and of the state before their functions, in the order r, z, n; n =
/// tanh(x_n + r h_n), h = (1 - z) n + z h_before.
struct GruStepArgs {
  std::int64_t rows = 0, width = 0;
  DType dtype = DType::f32;  ///< of gates, states and dy
  void* x_gates = nullptr;   ///< in backward replaced by their gradients
  void* h_gates = nullptr;   ///< in backward replaced by their gradients
  const void* before = nullptr;
  void* h = nullptr;         ///< written by forward
  const void* dy = nullptr;  ///< gradient of h from the layer above
  void* dh = nullptr;        ///< from the later step; becomes dh z, h_before's gradient without the gates' part
};

struct RecurrentKernels {
  void (*lstm)(const LstmStepArgs&) = nullptr;
  void (*lstm_backward)(const LstmStepArgs&) = nullptr;
  void (*gru)(const GruStepArgs&) = nullptr;
  void (*gru_backward)(const GruStepArgs&) = nullptr;
};

extern const RecurrentKernels recurrent_cpu;
extern const RecurrentKernels* const recurrent_cuda;  ///< null in a build without CUDA

/// Throws DeviceError when this build has no kernels for the device.
const RecurrentKernels& recurrent_kernels(memory::Device device);

}  // namespace thimble::kernels
