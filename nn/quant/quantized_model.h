#pragma once
// A net in 8-bit codes, for inference.
//
// Files (safetensors): `<step>.weight` i8, convolutions as (O, I, KH, KW), for every step that has one; `weight_scales`
// f32 and `biases` i32 (kernels/quant_conv.h), the filters of all steps one after the other; `activation_scales` f32
// and `zero_points` u8, one for each value. Metadata: `format` "thimble-int8-1", `program` (program.h), `activations`
// and `weights` (scale.h). A file that is loaded and saved again has the same bytes.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <thimble/nn/files/tensor_io.h>
#include <thimble/nn/layers/module.h>
#include <thimble/nn/quant/codes.h>
#include <thimble/nn/quant/folded_net.h>

namespace thimble::nn::quant {

class QuantizedModel final : public Layer {
 public:
  /// The net in the given scales, as calibrate() chose them or a training with fake_quantize() kept them. On a dry
  /// device its bytes alone. Throws ValueError (the number of scales; scales too far apart for f32; what pack_weights()
  /// refuses), ShapeError, DTypeError, DeviceError.
  QuantizedModel(const FoldedNet& net, const Scales& scales);

  /// Writes a file; it appears whole or not at all. `metadata` is added to the net's own. Throws ValueError when it has
  /// one of those keys, DeviceError on a dry device, FileError.
  void save(const std::string& path, const Metadata& metadata = {}) const;
  /// Reads what save() wrote. Throws FileError (unreadable, not safetensors), ValueError naming what is missing,
  /// unknown or out of range, ShapeError, DTypeError.
  static std::unique_ptr<QuantizedModel> load(const std::string& path, memory::Device device = cpu);
  /// What the file said besides what the net knows, or was given; empty for a net that was not loaded.
  const Metadata& metadata() const noexcept { return metadata_; }

  const Program& program() const noexcept { return program_; }
  const Scales& scales() const noexcept { return scales_; }
  /// Of a step that has them.
  const PackedWeights& weights(std::size_t step) const { return weights_.at(step); }
  /// What the weights take: codes, scales and biases.
  std::size_t weight_bytes() const;

  /// Called with every value, in f32, when it is computed: for reports. Costs an f32 tensor each.
  using Observer = FoldedNet::Observer;
  Tensor run(const Tensor& x, const Observer& observer = {});

 protected:
  /// (N, H, W, C) f32 -> the net's result, f32. Nothing is recorded. Throws ValueError where x is not finite,
  /// ShapeError, DTypeError, DeviceError.
  Tensor forward(const Tensor& x) override { return run(x); }

 private:
  QuantizedModel() = default;
  Codes compute(std::size_t step, const std::vector<Codes>& values) const;
  /// The scale of a step's result; null for an f32 result: that of a last linear layer or convolution.
  const CodeScale* result_scale(std::size_t step) const;
  /// Throws ValueError where what a step adds, in units of its result, is beyond f32.
  void check_scales() const;

  Program program_;
  Scales scales_;
  std::vector<PackedWeights> weights_;  // one for each step
  Metadata metadata_;
};

}  // namespace thimble::nn::quant
