#pragma once
// The memory of training a model in closed form: only from its sizes, without building it and without a tape. Tests
// compare it with the ledger, as integers.
//
// Glossary
// - term     one kind of tensor that backward needs, with its elements for each sample
// - layer    one of the equal or similar parts in a model's chain: GPT's h.0, GoogLeNet's inception3a
// - outside  tensors kept by the rest of the model: the batch, the input of the layers, the head, the loss
// - kept     by the tape between forward and backward. Parameters, which backward reads as well, are the model's state
//
// A family has one function that makes its theory, declared beside its model and written in models/<family>/theory.cpp
// from the blocks below. The model's row in models/registry.cpp names it, and make_theory() finds it there.

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

/// One kind of tensor that backward needs.
struct Term {
  std::string name;
  Category category = Category::activation;  ///< that the ledger books it under
  DType dtype = DType::f32;
  std::int64_t per_sample = 0;  ///< elements for each sample
  std::int64_t constant = 0;    ///< elements for any batch

  std::int64_t elements(std::int64_t batch) const noexcept { return per_sample * batch + constant; }
  std::int64_t bytes(std::int64_t batch) const noexcept {
    return elements(batch) * static_cast<std::int64_t>(size_of(dtype));
  }
};

/// Bytes of all terms of a category.
std::int64_t bytes_of(const std::vector<Term>& terms, Category category, std::int64_t batch);

/// A list of terms under a policy. Values have the compute dtype of products unless noted, images that of parameters,
/// statistics and log-sum-exps f32 (f64 for f64).
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
  /// Images of the batch; and if products cast their operands, "input cast", the copy that the first one keeps.
  void images(const char* name, std::int64_t per_sample);
  /// "batch-norm mean" and "batch-norm rstd" of so many channels, for every batch.
  void batch_norms(std::int64_t channels);
  /// The tensors that the loss over class scores keeps: "logits", "logsumexp", "targets".
  void classes(std::int64_t count);
  /// If products cast their operands: copies of weights with so many elements.
  void casts(const char* name, std::int64_t elements);

  std::vector<Term> terms;

 private:
  nn::Precision precision_;
  DType dtype_;
};

/// A parameter, or several alike.
struct ParameterTheory {
  Shape shape;
  bool is_norm = false;  ///< of a norm: policies may give it another dtype
  std::int64_t count = 1;
};

/// The kept tensors of one layer.
struct LayerTheory {
  std::string path;        ///< booked at and below this path: "gpt.h.0"
  std::vector<Term> kept;  ///< in the order that a forward makes it
};

/// Bytes of one parameter.
struct ParameterBytes {
  std::int64_t parameter = 0, gradient = 0;
  std::int64_t moments = 0;  ///< f32 (f64 for f64)
  std::int64_t extra = 0;    ///< its f32 master copy, or the compensation of Kahan's sum
  std::int64_t total() const noexcept { return parameter + gradient + moments + extra; }
};

/// With Adam (`moments` 2), of weights and of norms' parameters (`is_norm`):
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
  std::int64_t buffers = 0;    ///< statistics of batch norms, state of FP8 layers
  std::int64_t gradients = 0;  ///< as the parameters
  std::int64_t optimizer = 0;  ///< moments, master copies, compensations

  std::int64_t total() const noexcept { return parameters + buffers + gradients + optimizer; }
};

/// The bytes of training one model, under one policy (nn/precision/precision.h).
struct Theory {
  explicit Theory(const nn::Precision& policy = {}) : precision(policy) {}

  nn::Precision precision;
  std::vector<ParameterTheory> parameters;
  std::int64_t buffers = 0;         ///< bytes
  std::vector<LayerTheory> layers;  ///< empty: all is outside
  std::vector<Term> outside;
  std::string unknown;  ///< empty, or the part without a closed form: layers and outside are then empty

  // The blocks of a family's theory.

  void weight(const Shape& shape, std::int64_t count = 1) { parameters.push_back({shape, false, count}); }
  /// Gain and bias of norms over `width` numbers.
  void norm(std::int64_t width, std::int64_t count = 1) { parameters.push_back({{width}, true, 2 * count}); }
  /// A batch norm, which also has running mean and variance in f32 (f64 for f64) and a count of batches (i64).
  void batch_norm(std::int64_t channels);
  /// A convolution without a bias, (out, kernel, kernel, in), and a batch norm behind it.
  void conv_norm(std::int64_t out, std::int64_t kernel, std::int64_t in);
  /// A linear layer, (out, in) and (out).
  void linear(std::int64_t out, std::int64_t in);
  /// Elements of all parameters except norms and biases: the operands of products.
  std::int64_t weight_elements() const;

  // Its results.

  /// With `moments` numbers of optimizer state for each parameter: 0 for plain SGD, 1 with momentum, 2 for Adam. They
  /// are stored in full, or in fewer bits (optim/moments.h; its list of exceptions is ignored): then a parameter of n
  /// elements, n >= format.smallest, takes n + 4 ceil(n / 256) bytes for each in u8, 2 n in bf16. Throws ValueError for
  /// another dtype, and for negative moments.
  ModelState state(std::int64_t moments, const optim::MomentFormat& format = {}) const;
  /// With Adafactor's moment, without a first one: 4 (rows + columns) bytes for a parameter that is a matrix
  /// (elements / last axis, last axis) with more than one of both, else 4 per element (Shazeer and Stern 2018,
  /// arXiv:1804.04235, section 3).
  ModelState factored_state() const;
  /// Parameters of a net of convolutions and linear layers in 8 bits (nn/quant/quantized_model.h), as inference on the
  /// CPU holds them, batch norms folded: for each filter its codes, padded for the kernels (core/kernels/quant_conv.h),
  /// a scale, a bias and a factor.
  std::int64_t int8_bytes() const;

  /// Bytes of a category that the whole model keeps with a batch of `batch`; `is_recomputed`: each transformer's layer
  /// runs under checkpoint() and keeps only its result. Throws ValueError, naming `unknown`, unless that is empty, and
  /// for recomputed layers if products read casts or codes.
  std::int64_t kept_bytes(Category category, std::int64_t batch, bool is_recomputed = false) const;
  /// Live bytes when backward begins: parameters, buffers, the optimizer's state, the batch and its kept tensors.
  /// Gradients do not exist yet. Throws ValueError as kept_bytes and state do.
  std::int64_t held_bytes(std::int64_t moments, std::int64_t batch) const;
};

/// The kept tensor of a transformer's layer under checkpoint(): its result, "layer output".
std::vector<Term> recomputed(const LayerTheory& layer);

/// The theory of a named model (models/registry.cpp). Throws ValueError as make_model does.
Theory make_theory(std::string_view name, const ModelOptions& options = {}, const nn::Precision& precision = {});
/// The same with all of one dtype.
Theory make_theory(std::string_view name, const ModelOptions& options, DType dtype);

}  // namespace thimble::models
