#pragma once
// The usual layers. Names of parameters and buffers are PyTorch's ("weight", "bias", "running_mean", ...).

#include <thimble/autograd/functions/elementwise.h>
#include <thimble/autograd/functions/matmul.h>
#include <thimble/nn/layers/module.h>
#include <thimble/nn/precision/fp8.h>

namespace thimble::nn {

namespace init {
struct PartOf;
}

/// t as an operand of a product that computes in `compute`: cast, recorded, so that its gradient comes back in t's own
/// dtype; t itself without a dtype to compute in, or when it is undefined.
Tensor as_operand(const Tensor& t, std::optional<DType> compute);

/// A linear layer as a part of one that is cut (models/transformer/cut_block.h). It begins with the values that the
/// whole would have there.
struct LinearPart {
  bool by_inputs = false;  ///< a part of the inputs and all outputs; else all inputs and a part of the outputs
  std::int64_t parts = 1, part = 0;
  std::int64_t stretches = 1;  ///< of outputs, each cut by itself
  RandomSite weight, bias;     ///< where the whole's values are drawn
  char joint = '.';            ///< in names of the whole's parameters, between its own name and "weight" or "bias"
};

struct LinearOptions {
  bool has_bias = true;
  /// Weight (I, O), as GPT-2's files have it, instead of (O, I).
  bool weight_is_in_out = false;
  kernels::Activation activation = kernels::Activation::none;  ///< fused into the product
  /// Deviation of the normal the weight starts from (bias 0). Negative: uniform in +-1/sqrt(I), weight and bias (He et
  /// al. 2015 with a = sqrt(5), PyTorch's default).
  double deviation = -1;
  /// Instead of 1/sqrt(I), of a negative deviation: the bound of the uniform values of the weight; the bias is 0.
  double bound = -1;
  std::optional<LinearPart> part = {};  ///< none: it is whole
};

/// A low-rank adapter of a linear layer (Hu et al. 2021, arXiv:2106.09685).
struct AdapterOptions {
  std::int64_t rank = 8;  ///< r
  double alpha = 8;       ///< the adapter's product is scaled by alpha / r
  double dropout = 0;     ///< of what the adapter reads, while training
};

/// (..., I) -> (..., O). In FP8 where the options have a recipe and 16 divides I and O (nn/precision/fp8.h).
class Linear final : public Layer {
 public:
  /// Of a part, `in` and `out` are the whole's.
  Linear(std::int64_t in, std::int64_t out, const TensorOptions& on = {}, const LinearOptions& options = {});
  Parameter weight, bias;

  /// Puts Q8_0 blocks (core/ops/matmul/linear_q8.h) in the weight's place, which is gone from then on: 34 bytes for 32
  /// numbers. They are the buffer "weight_q8" (O, 34 I / 32), and bias stays a parameter. Throws ShapeError unless 32
  /// divides I, DTypeError, DeviceError, ValueError as quantize_q8() does, and where it was called before.
  void quantize_weight();
  /// I; before that.
  std::int64_t inputs() const { return weight.size(options_.weight_is_in_out ? 0 : 1); }
  std::int64_t outputs() const { return weight.size(options_.weight_is_in_out ? 1 : 0); }
  bool weight_is_in_out() const noexcept { return options_.weight_is_in_out; }
  kernels::Activation activation() const noexcept { return options_.activation; }
  std::optional<DType> compute() const noexcept { return compute_; }  ///< what its product computes in
  /// Whether it is one of the linear layers inside of a model's blocks (TensorOptions::outside_blocks).
  bool is_in_block() const noexcept { return is_in_block_; }
  bool has_quantized_weight() const noexcept { return weight_q8.defined(); }
  Buffer weight_q8;
  Fp8Status fp8_status() const override { return fp8_.status(); }

  /// From now on y = act(x W + bias + alpha / r (x A^T) B^T): A, "lora_A.weight" (r, I), begins uniform in +-1/sqrt(I),
  /// B, "lora_B.weight" (O, r), at 0, so that nothing changes at first. Both are f32 (f64 beside f64), whatever the
  /// weight is, and are cast to the input's dtype where they are used. What is frozen stays so. Throws ValueError for
  /// options out of range, a second adapter, a quantized weight and one in FP8.
  void add_adapter(const AdapterOptions& options);
  /// Throws what add_adapter() would throw.
  void check_adapter(const AdapterOptions& options) const;
  const std::optional<AdapterOptions>& adapter() const noexcept { return adapter_; }
  /// Adds the adapter's product to the weight, rounded to its dtype, and uses it no longer; takes it off again, which
  /// gives the weight back up to that rounding. Not recorded. Throws ValueError without an adapter, where it was done
  /// already, and for a coded weight, which would be rounded to its codes.
  void merge_adapter();
  void unmerge_adapter();
  /// Throws what merge_adapter() would throw.
  void check_merge() const;
  bool is_merged() const noexcept { return is_merged_; }
  std::optional<PlaceInWhole> place_in_whole(const Tensor& parameter) const override;
  Parameter lora_a, lora_b;

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  Tensor with_adapter(const Tensor& x, const Tensor& addend);
  void add_to_weight(double sign);

  LinearOptions options_;
  std::int64_t cut_size_ = 0;  // of a part: the whole's inputs or outputs, of which it has some
  std::optional<DType> compute_;
  Fp8Product fp8_;
  std::optional<AdapterOptions> adapter_;
  bool is_merged_ = false, is_coded_, is_in_block_;
};

/// (N, H, W, I) -> (N, OH, OW, O), square kernels; weight (O, K, K, I / groups), written to files as OIHW. Falls back
/// where the options have a recipe for FP8.
class Conv2d final : public Layer {
 public:
  Conv2d(std::int64_t in, std::int64_t out, std::int64_t kernel, const Conv2dOptions& options = {},
         bool has_bias = false, const TensorOptions& on = {});
  Parameter weight, bias;
  Fp8Status fp8_status() const override { return {false, fp8_fallback_}; }

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  Conv2dOptions options_;
  std::optional<DType> compute_;
  std::string fp8_fallback_;
};

/// Batch normalisation over all axes but the last (Ioffe & Szegedy 2015, algorithm 1), with running statistics.
class BatchNorm2d final : public Layer {
 public:
  explicit BatchNorm2d(std::int64_t channels, const TensorOptions& on = {}, double momentum = 0.1,
                       double epsilon = 1e-5);
  Parameter weight, bias;
  Buffer running_mean, running_var, num_batches_tracked;

  /// relu(norm(x)) as one operator: bitwise the composition, one buffer fewer.
  Tensor with_relu(const Tensor& x);
  /// relu(norm(x) + residual) as one operator.
  Tensor with_add_relu(const Tensor& x, const Tensor& residual);

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  void count_batch();
  double momentum_, epsilon_;
};

/// Over the last axis (Ba et al. 2016, equation 4).
class LayerNorm final : public Layer {
 public:
  explicit LayerNorm(std::int64_t width, const TensorOptions& on = {}, double epsilon = 1e-5);
  Parameter weight, bias;
  double epsilon() const noexcept { return epsilon_; }

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  double epsilon_;
};

/// Over the last axis, without mean and bias (Zhang & Sennrich 2019, equation 4).
class RmsNorm final : public Layer {
 public:
  explicit RmsNorm(std::int64_t width, const TensorOptions& on = {}, double epsilon = 1e-6);
  Parameter weight;
  double epsilon() const noexcept { return epsilon_; }

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  double epsilon_;
};

/// Over groups of channels (Wu & He 2018, equation 7).
class GroupNorm final : public Layer {
 public:
  GroupNorm(std::int64_t groups, std::int64_t channels, const TensorOptions& on = {}, double epsilon = 1e-5);
  Parameter weight, bias;

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  std::int64_t groups_;
  double epsilon_;
};

/// A table as a part of one that is cut by rows. It begins with the values that the whole would have there.
struct TablePart {
  std::int64_t parts = 1, part = 0;
  RandomSite weight;  ///< where the whole's values are drawn
};

/// Ids (...) -> rows (..., C) of a table (V, C). A part of a table gives zeros where another part has the row.
class Embedding final : public Layer {
 public:
  /// Of a part, `count` is the whole's.
  Embedding(std::int64_t count, std::int64_t width, const TensorOptions& on = {}, double deviation = 1,
            const std::optional<TablePart>& part = {});
  Parameter weight;
  std::optional<PlaceInWhole> place_in_whole(const Tensor&) const override;

 protected:
  Tensor forward(const Tensor& ids) override;

 private:
  std::optional<TablePart> part_;
  std::int64_t all_ = 0;  // of a part: rows of the whole
};

/// Inverted dropout (Srivastava et al. 2014) while training; keeps nothing, or a one-byte mask in the textbook form.
class Dropout final : public Layer {
 public:
  /// Throws ValueError unless 0 <= p < 1.
  explicit Dropout(double p, bool is_textbook = false);
  double probability() const noexcept { return p_; }
  bool is_textbook() const noexcept { return is_textbook_; }

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  double p_;
  bool is_textbook_;
};

/// An activation function as a layer: `Activation(relu)`.
class Activation final : public Layer {
 public:
  explicit Activation(Tensor (*function)(const Tensor&)) : function_(function) {}

 protected:
  Tensor forward(const Tensor& x) override { return function_(x); }

 private:
  Tensor (*function_)(const Tensor&);
};

}  // namespace thimble::nn
