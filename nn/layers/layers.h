#pragma once
// Common layers, with PyTorch's names of parameters and buffers ("weight", "bias", "running_mean", ...).

#include <thimble/autograd/functions/elementwise.h>
#include <thimble/autograd/functions/matmul.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/nn/layers/fp8.h>
#include <thimble/nn/layers/module.h>

namespace thimble::nn {

/// t as an operand of a product in dtype `compute`: a recorded cast, so its gradient comes back in t's dtype. Returns t
/// itself without `compute`, or if t is undefined.
Tensor as_operand(const Tensor& t, std::optional<DType> compute);

struct LinearOptions {
  bool has_bias = true;
  /// Weight (I, O), as in GPT-2's files, instead of (O, I).
  bool weight_is_in_out = false;
  kernels::Activation activation = kernels::Activation::none;  ///< fused into the product
  /// The weight starts normal with this deviation, the bias at 0. If negative, both start uniform in +-1/sqrt(I) (He et
  /// al. 2015 with a = sqrt(5), PyTorch's default).
  double deviation = -1;
  /// With a negative deviation: the weight starts uniform in +-bound instead of +-1/sqrt(I), the bias at 0.
  double bound = -1;
  /// Prefix of the names "weight" and "bias", such as torch.nn.MultiheadAttention's "in_proj_".
  std::string prefix = {};
};

/// (..., I) -> (..., O): act(x W^T + bias).
class Linear : public Layer {
 public:
  Linear(std::int64_t in, std::int64_t out, const TensorOptions& on = {}, const LinearOptions& options = {});
  Parameter weight, bias;

  std::int64_t inputs() const noexcept { return in_; }    ///< I
  std::int64_t outputs() const noexcept { return out_; }  ///< O
  const LinearOptions& options() const noexcept { return options_; }
  bool weight_is_in_out() const noexcept { return options_.weight_is_in_out; }
  kernels::Activation activation() const noexcept { return options_.activation; }
  std::optional<DType> compute() const noexcept { return compute_; }  ///< dtype of its product
  /// Whether it is inside a model's blocks (TensorOptions::outside_blocks).
  bool is_in_block() const noexcept { return is_in_block_; }

 protected:
  /// For a shard (nn/parallel/shards.h): `in` and `out` are the shard's, and the parameters are not made yet.
  struct Shard {};
  Linear(Shard, std::int64_t in, std::int64_t out, const TensorOptions& on, const LinearOptions& options);

  Tensor forward(const Tensor& x) override;

 private:
  std::int64_t in_, out_;
  LinearOptions options_;
  std::optional<DType> compute_;
  bool is_in_block_;
};

/// (N, H, W, I) -> (N, OH, OW, O), square kernels; weight (O, K, K, I / groups), written to files as OIHW. Falls back
/// from FP8.
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

/// (N, L, I) -> (N, OL, O); weight (O, K, I / groups), written to files as (O, I, K). Starts like PyTorch's, uniform in
/// +-1 / sqrt(fan-in).
class Conv1d final : public Layer {
 public:
  Conv1d(std::int64_t in, std::int64_t out, std::int64_t kernel, const Conv2dOptions& options = {},
         bool has_bias = true, const TensorOptions& on = {});
  Parameter weight, bias;

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  Conv2dOptions options_;
  std::optional<DType> compute_;
};

/// (N, H, W, I) -> (N, OH, OW, O), the transpose of a convolution; weight (I, K, K, O / groups), written to files as
/// (I, O / groups, K, K). Starts like PyTorch's, uniform in +-1 / sqrt(O / groups K^2).
class ConvTranspose2d final : public Layer {
 public:
  ConvTranspose2d(std::int64_t in, std::int64_t out, std::int64_t kernel, const Conv2dOptions& options = {},
                  std::int64_t output_padding = 0, bool has_bias = true, const TensorOptions& on = {});
  Parameter weight, bias;

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  Conv2dOptions options_;
  std::int64_t output_padding_;
  std::optional<DType> compute_;
};

/// Batch normalisation over all axes but the last (Ioffe & Szegedy 2015, algorithm 1), with running statistics.
class BatchNorm2d final : public Layer {
 public:
  explicit BatchNorm2d(std::int64_t channels, const TensorOptions& on = {}, double momentum = 0.1,
                       double epsilon = 1e-5);
  Parameter weight, bias;
  Buffer running_mean, running_var, num_batches_tracked;

  /// relu(norm(x)), relu6(norm(x)) and relu(norm(x) + residual) as one operator: the same bits, one buffer fewer.
  Tensor with_relu(const Tensor& x);
  Tensor with_relu6(const Tensor& x);
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

/// Over each channel of each sample (Ulyanov et al. 2016, equation 2). PyTorch's default has no weight and bias.
class InstanceNorm2d final : public Layer {
 public:
  explicit InstanceNorm2d(std::int64_t channels, bool is_affine = false, const TensorOptions& on = {},
                          double epsilon = 1e-5);
  Parameter weight, bias;

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  double epsilon_;
};

/// Ids (...) -> rows (..., C) of a table (V, C).
class Embedding final : public Layer {
 public:
  Embedding(std::int64_t count, std::int64_t width, const TensorOptions& on = {}, double deviation = 1);
  Parameter weight;

 protected:
  Tensor forward(const Tensor& ids) override;
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

/// Replacements for a model's layers as soon as they are made. A replaced layer makes no parameters, so the whole layer
/// is never in memory.
class LayerRules {
 public:
  virtual ~LayerRules() = default;
  /// The replacement of a layer under the current path, or null to keep the layer.
  virtual std::unique_ptr<Layer> for_linear(Linear& made, const TensorOptions& on) const = 0;
  virtual std::unique_ptr<Layer> for_table(const Shape& shape, const TensorOptions& on, double deviation) const = 0;
};

/// The axis that shards divide. column: outputs; row: inputs; vocabulary: rows of a table; element: a layer without
/// parameters runs shard by shard.
enum class Sharding : std::uint8_t { column, row, vocabulary, element };

struct ShardedChild {
  std::string name;  ///< the end of its path: "attn.c_attn"
  Sharding kind;
  std::int64_t projections = 1;  ///< column: concatenated tensors of equal size, each sharded separately
};

/// Tensor parallelism (Shoeybi et al. 2019, arXiv:1909.08053, section 3): y = forward(x), which begins with
/// column-sharded layers and ends with `last`, a row-sharded layer. If they are sharded, calls forward for each shard
/// of this rank, with the shard's widths; y is the sum over all shards plus the bias of `last`. Otherwise calls it
/// once.
Tensor run_sharded(Tensor x, const Linear& last, FunctionRef<Tensor(Tensor)> forward);

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
