#pragma once
// Frozen weights in fewer bits (Dettmers et al. 2023, arXiv:2305.14314), decoded before each use and freed after it.
//
//   nn::TensorOptions on{.dtype = DType::bf16};
//   on.coded_weights = std::make_shared<nn::quant::CodedStore>(WeightCode::nf4);
//   Net net(..., on);          // a linear layer's weight becomes codes as soon as it is made
//   nn::load_weights(net, ...);
//   nn::add_lora(net, {...});  // trains adapters
//
// - The store implements the interface of sharded and offloaded parameters (core/tensor/parameter_store.h): forward,
//   backward and recomputation decode by its calls, and a dry run predicts the bytes.
// - Codes, and a weight while it is decoded, are booked as parameters under the path of their layer.
// - One weight is decoded at a time: decoding overlaps with nothing, so no weight is decoded ahead.
// - A weight that was written (loaded from a file) is rounded to codes again after its use. An update in training is a
//   write, too, and changes below a code's step are lost: freeze the weights.

#include <cstddef>
#include <cstdint>
#include <vector>

#include <thimble/core/ops/quant/weight_code.h>
#include <thimble/memory/offload/unit_store.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/quant/error_report.h>

namespace thimble::nn::quant {

class CodedStore final : public memory::UnitStore {
 public:
  explicit CodedStore(WeightCode code) : UnitStore({.read_ahead = 0}), code_(code) {}

  WeightCode code() const noexcept { return code_; }
  /// The codes of a parameter of this store (core/ops/quant/quantize.h).
  const Tensor& codes(const memory::Storage& storage) const { return parts_[storage.index_in_store()].codes; }
  /// Bytes of all codes.
  std::size_t code_bytes() const noexcept;
  std::size_t bytes_elsewhere() const override { return 0; }

 private:
  struct Part {
    Tensor codes;
    std::int64_t elements = 0;
    DType dtype = DType::f32;  // of the decoded weight
  };

  void add(std::uint32_t parameter, const Tensor& tensor) override;
  void begin_write(std::uint32_t parameter, const memory::Storage& storage, const std::byte* at) override;
  void end_write(std::uint32_t) override {}
  void begin_read(std::uint32_t parameter, const memory::Storage& storage, std::byte* at) override;
  void end_read(std::uint32_t) override {}
  void drop(std::uint32_t parameter) noexcept override;

  WeightCode code_;
  std::vector<Part> parts_;
};

// ---- 8-bit weights

/// A linear layer with its weight in Q8_0 blocks (core/ops/matmul/lora_linear.h), 34 bytes for 32 numbers: the buffer
/// "weight_q8" (O, 34 I / 32) replaces the weight. The bias stays a parameter.
class Q8Linear final : public Layer {
 public:
  /// Throws ShapeError unless 32 divides I, DTypeError, DeviceError, ValueError as quantize_q8() does, and ValueError
  /// for a layer that is replaced already.
  explicit Q8Linear(Linear& base);
  std::string_view difference() const override { return "has a quantized weight"; }
  Buffer weight_q8;

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  Linear& base_;
};

/// Replaces every linear layer with a Q8Linear, 1.0625 bytes a number, and returns the number of layers. Other weights
/// stay, such as GPT's embedding, which is also its head. The module can then only infer; save_weights() writes the
/// blocks, and load_weights() reads them into a model that was quantized, too. Throws as Q8Linear does; if a width is
/// no multiple of 32, before the first layer changes.
std::size_t quantize_linear_weights(Module& module);

/// Quantization errors of weights: compares the decoded blocks of each Q8Linear in `quantized` with the weight in
/// `exact`, an unquantized model of equal layers. Errors are named by the layer's path. Throws ValueError if `exact`
/// lacks the layer or its weight, ShapeError for another size, DeviceError on a dry device.
std::vector<StepError> compare_weights(const Module& exact, const Module& quantized);

}  // namespace thimble::nn::quant
