#pragma once
// Frozen weights in fewer bits (Dettmers et al. 2023, arXiv:2305.14314): each is decoded before it is used and goes
// after.
//
//   nn::TensorOptions on{.dtype = DType::bf16};
//   on.coded_weights = std::make_shared<nn::quant::CodedStore>(WeightCode::nf4);
//   Net net(..., on);          // a linear layer's weight becomes codes as soon as it is made
//   nn::load_weights(net, ...);
//   nn::add_lora(net, {...});  // and adapters are trained
//
// - It is the seam of parameters that are shared out over ranks or in a tier (core/tensor/parameter_store.h): forward,
//   backward and recomputation decode by the same calls, and a dry run predicts the bytes.
// - Codes are booked as parameters under the path of their layer, and the decoded weight, while it is here, too.
// - One weight is here at a time: decoding does not overlap with anything, so none is decoded ahead.
// - A weight that was written (loaded from a file) becomes codes again when it goes, rounded to them. An update in
//   training is a write as well, of which nothing smaller than a code's step is left: the weights are to be frozen.

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
  /// Of all its parameters.
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

// ---- Weights in 8 bits, everything else as it was.

/// A linear layer with its weight in Q8_0 blocks (core/ops/matmul/lora_linear.h), 34 bytes for 32 numbers: the buffer
/// "weight_q8" (O, 34 I / 32). The weight is gone; bias stays the layer's parameter.
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

/// Puts a Q8Linear in the place of every linear layer: 1.0625 bytes a number. Returns how many layers there are.
/// Weights that a model holds itself, as GPT's embedding, which is its head too, stay. From then on the module is for
/// inference; save_weights() writes the blocks, and load_weights() reads them into a model that has been through this.
/// Throws as Q8Linear does, before the first layer has changed where a width is no multiple of 32.
std::size_t quantize_linear_weights(Module& module);

/// How far the weights are from those that they were made from: for each linear layer of `quantized` that has blocks,
/// its weight in `exact`, a model of the same make, beside what the blocks stand for. A name is the layer's path.
/// Throws ValueError where `exact` lacks the layer or its weight, ShapeError where that is another; DeviceError on a
/// dry device.
std::vector<StepError> compare_weights(const Module& exact, const Module& quantized);

}  // namespace thimble::nn::quant
