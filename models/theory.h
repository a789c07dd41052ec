#pragma once
// The memory of training a model in closed form, from its sizes, without model or tape. Tests compare it with the
// ledger, as integers.
//
// Glossary
// - term     one kind of tensor that backward reads, with its elements per sample
// - layer    one of the similar blocks of a model's chain: GPT's h.0, GoogLeNet's inception3a
// - outside  tensors kept by the rest of the model: the batch, the input of the layers, the head, the loss
// - kept     by the tape between forward and backward. Parameters, which backward reads, too, count as state
//
// Each family has one function that makes its theory, in models/<family>/theory.cpp, from the methods below. The
// model's row in models/registry.cpp names it.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/core/dtype.h>
#include <thimble/core/shape.h>
#include <thimble/core/tensor/resource.h>
#include <thimble/models/model.h>
#include <thimble/nn/precision/precision.h>
#include <thimble/optim/moments.h>

namespace thimble::models {

/// One kind of tensor that backward reads.
struct Term {
  std::string name;
  memory::Category category = memory::Category::activation;  ///< in the ledger
  DType dtype = DType::f32;
  std::int64_t per_sample = 0;  ///< elements per sample
  std::int64_t constant = 0;    ///< elements that do not depend on the batch

  std::int64_t elements(std::int64_t batch) const noexcept { return per_sample * batch + constant; }
  std::int64_t bytes(std::int64_t batch) const noexcept {
    return elements(batch) * static_cast<std::int64_t>(size_of(dtype));
  }
};

/// Bytes of all terms of a category.
std::int64_t bytes_of(const std::vector<Term>& terms, memory::Category category, std::int64_t batch);

/// A list of terms under a policy. Values have the compute dtype of products unless noted, images the dtype of
/// parameters, statistics and log-sum-exps f32 (f64 for f64).
class TermList {
 public:
  explicit TermList(const nn::Precision& precision)
      : precision_(precision), dtype_(precision.compute.value_or(precision.parameters)) {}
  void values(const char* name, std::int64_t per_sample) { values(name, per_sample, dtype_); }
  void values(const char* name, std::int64_t per_sample, DType dtype);
  void statistics(const char* name, std::int64_t per_sample);
  void mask(const char* name, std::int64_t per_sample) { values(name, per_sample, DType::u8); }
  /// Class numbers or token ids of the batch.
  void ids(const char* name, std::int64_t per_sample);
  /// Images of the batch, and if products cast their operands, "input cast", the copy that the first product keeps.
  void images(const char* name, std::int64_t per_sample);
  /// "batch-norm mean" and "batch-norm rstd" of each channel, whatever the batch.
  void batch_norms(std::int64_t channels);
  /// The tensors that the loss over class scores keeps: "logits", "logsumexp", "targets".
  void classes(std::int64_t count);
  /// If products cast their operands: the copies of weights.
  void casts(const char* name, std::int64_t elements);

  std::vector<Term> terms;

 private:
  nn::Precision precision_;
  DType dtype_;
};

/// `count` equal parameters.
struct ParameterTheory {
  Shape shape;
  bool is_norm = false;  ///< of a norm, which policies may give another dtype
  std::int64_t count = 1;
};

/// The kept tensors of one layer.
struct LayerTheory {
  std::string path;        ///< the ledger books them at and below this path: "gpt.h.0"
  std::vector<Term> kept;  ///< in the order of the forward
};

/// Bytes of one parameter.
struct ParameterBytes {
  std::int64_t parameter = 0, gradient = 0;
  std::int64_t moments = 0;  ///< f32 (f64 for f64)
  std::int64_t extra = 0;    ///< the f32 master copy, or the compensation of Kahan's sum
  std::int64_t total() const noexcept { return parameter + gradient + moments + extra; }
};

/// With Adam (`moments` 2), for weights and for norms' parameters (`is_norm`):
///
///   O0, O1           4 + 4 + 8      16     4 + 4 + 8      16
///   O2, bf16         2 + 2 + 8 + 4  16     4 + 4 + 8      16
///   O3               2 + 2 + 8      12     2 + 2 + 8      12
///   bf16-stochastic  2 + 2 + 8      12     2 + 2 + 8      12
///   bf16-kahan       2 + 2 + 8 + 2  14     2 + 2 + 8 + 2  14
///   fp8 (all three)  as bf16
///
/// Throws ValueError for negative moments.
ParameterBytes parameter_bytes(const nn::Precision& precision, std::int64_t moments, bool is_norm = false);

/// Bytes that do not depend on the batch.
struct ModelState {
  std::int64_t parameter_elements = 0;
  std::int64_t parameters = 0;
  std::int64_t buffers = 0;  ///< statistics of batch norms, state of FP8 layers
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;  ///< moments, master copies, compensations

  std::int64_t total() const noexcept { return parameters + buffers + gradients + optimizer; }
};

/// The bytes of training one model, under one policy (nn/precision/precision.h).
struct Theory {
  explicit Theory(const nn::Precision& policy = {}) : precision(policy) {}

  nn::Precision precision;
  std::vector<ParameterTheory> parameters;
  std::int64_t buffers = 0;         ///< bytes
  std::vector<LayerTheory> layers;  ///< empty if everything is outside
  std::vector<Term> outside;
  std::string unknown;  ///< if not empty, names a part without a closed form, and layers and outside are empty

  // For a family's theory.

  void weight(const Shape& shape, std::int64_t count = 1) { parameters.push_back({shape, false, count}); }
  /// Gain and bias of `count` norms over `width` elements.
  void norm(std::int64_t width, std::int64_t count = 1) { parameters.push_back({{width}, true, 2 * count}); }
  /// A batch norm, with running mean and variance in f32 (f64 for f64) and a count of batches (i64).
  void batch_norm(std::int64_t channels);
  /// A convolution without a bias, (out, kernel, kernel, in), and its batch norm.
  void conv_norm(std::int64_t out, std::int64_t kernel, std::int64_t in);
  /// A linear layer, (out, in) and (out).
  void linear(std::int64_t out, std::int64_t in);
  /// Elements of all parameters except norms and biases: the operands of products.
  std::int64_t weight_elements() const;

  // Results.

  /// With `moments` values of optimizer state per parameter: 0 for plain SGD, 1 with momentum, 2 for Adam. A narrow
  /// `format` (optim/moments.h; ignores its list of exceptions) stores each moment of a parameter of n elements, n >=
  /// format.smallest, in n + 4 ceil(n / 256) bytes in u8, 2 n in bf16. Throws ValueError for another dtype, and for
  /// negative moments.
  ModelState state(std::int64_t moments, const optim::MomentFormat& format = {}) const;
  /// With Adafactor's second moment and no first one: 4 (rows + columns) bytes for a parameter that, as a matrix
  /// (elements / last axis, last axis), has more than one row and column, else 4 per element (Shazeer and Stern 2018,
  /// arXiv:1804.04235, section 3).
  ModelState factored_state() const;
  /// Parameters of a net of convolutions and linear layers in 8 bits (nn/quant/quantized_model.h), for inference on the
  /// CPU with folded batch norms: for each filter its codes, padded for the kernels (core/kernels/quant_conv.h), a
  /// scale, a bias and a factor.
  std::int64_t int8_bytes() const;

  /// Bytes of a category that the whole model keeps with `batch` samples. With `is_recomputed`, each layer of a
  /// transformer runs under checkpoint() and keeps only its result. Throws ValueError if `unknown` is not empty, and
  /// for recomputed layers if products read casts or codes.
  std::int64_t kept_bytes(memory::Category category, std::int64_t batch, bool is_recomputed = false) const;
  /// Live bytes when backward begins, before any gradient: parameters, buffers, optimizer state, the batch and its kept
  /// tensors. Throws ValueError as kept_bytes and state do.
  std::int64_t held_bytes(std::int64_t moments, std::int64_t batch) const;
};

/// The kept tensor of a transformer's layer under checkpoint(): "layer output".
std::vector<Term> recomputed(const LayerTheory& layer);

/// The theory of a named model (models/registry.cpp). Throws ValueError as make_model does.
Theory make_theory(std::string_view name, const ModelOptions& options = {}, const nn::Precision& precision = {});
/// With everything in `dtype`.
Theory make_theory(std::string_view name, const ModelOptions& options, DType dtype);

}  // namespace thimble::models
