#pragma once
// A net in 8-bit codes, for inference.
//
// Files (safetensors): `<step>.weight` i8, convolutions as (O, I, KH, KW), for every step with weights; `weight_scales`
// f32 and `biases` i32 (kernels/quant_conv.h), the filters of all steps one after the other; `activation_scales` f32
// and `zero_points` u8, one for each value. Metadata: `format` "thimble-int8-1", `program`, `activations` and `weights`
// (program.h). A file that is loaded and saved again keeps its bytes.

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
  /// Quantizes the net with scales of calibrate() or of a training with fake_quantize(). On a dry device only bytes
  /// count. Throws ValueError (the number of scales; scales too far apart for f32; as pack_weights()), ShapeError,
  /// DTypeError, DeviceError.
  QuantizedModel(const FoldedNet& net, const Scales& scales);

  /// Writes a file that appears whole or not at all, with `metadata` added to the net's. Throws ValueError when
  /// `metadata` has a key of the format, DeviceError on a dry device, FileError.
  void save(const std::string& path, const Metadata& metadata = {}) const;
  /// Reads a file of save(). Throws FileError (unreadable, not safetensors), ValueError naming the missing, unknown or
  /// invalid entry, ShapeError, DTypeError.
  static std::unique_ptr<QuantizedModel> load(const std::string& path, memory::Device device = cpu);
  /// The file's metadata besides the format's keys; empty for a net that was not loaded.
  const Metadata& metadata() const noexcept { return metadata_; }

  const Program& program() const noexcept { return program_; }
  const Scales& scales() const noexcept { return scales_; }
  const PackedWeights& weights(std::size_t step) const { return weights_.at(step); }
  /// Codes, scales and biases.
  std::size_t weight_bytes() const;

  /// Called with every value, in f32, when it is computed. Costs an f32 tensor per call.
  using Observer = FoldedNet::Observer;
  Tensor run(const Tensor& x, const Observer& observer = {});

 protected:
  /// (N, H, W, C) f32 -> the net's result, f32. Records nothing. Throws ValueError unless x is finite, ShapeError,
  /// DTypeError, DeviceError.
  Tensor forward(const Tensor& x) override { return run(x); }

 private:
  QuantizedModel() = default;
  Codes compute(std::size_t step, const std::vector<Codes>& values) const;
  /// The scale of a step's result. Null for an f32 result: a last linear layer or convolution without relu or residual.
  const CodeScale* result_scale(std::size_t step) const;
  /// Throws ValueError if a step's operand, in units of its result, overflows f32.
  void check_scales() const;

  Program program_;
  Scales scales_;
  std::vector<PackedWeights> weights_;  // one per step
  Metadata metadata_;
};

}  // namespace thimble::nn::quant
