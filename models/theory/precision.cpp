#include <thimble/models/theory/precision.h>

#include <algorithm>
#include <string>

#include <thimble/core/error.h>
#include <thimble/models/gpt/gpt.h>
#include <thimble/models/gpt/theory.h>
#include <thimble/models/images.h>
#include <thimble/models/resnet/resnet.h>
#include <thimble/models/resnet/theory.h>

namespace thimble::models::theory {
namespace precision_theory_detail {

using optim::NarrowUpdate;

std::int64_t size(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }

// The terms of one dtype with those that are of another.
std::vector<Term> with_dtype(std::vector<Term> terms, std::initializer_list<const char*> names, DType dtype) {
  for (Term& term : terms) {
    if (std::any_of(names.begin(), names.end(), [&](const char* name) { return term.name == name; })) {
      term.dtype = dtype;
    }
  }
  return terms;
}

std::int64_t blocks_of(std::int64_t numbers) { return (numbers + fp8_block - 1) / fp8_block; }

std::int64_t gpt_norm_elements(const ModelOptions& sizes) { return (4 * sizes.layers + 2) * sizes.width; }

}  // namespace precision_theory_detail

ParameterBytes parameter_bytes(const nn::Precision& precision, std::int64_t moments, bool is_norm) {
  namespace detail = precision_theory_detail;
  if (moments < 0) {
    throw ValueError("parameter_bytes: " + std::to_string(moments) + " moments of the optimizer; at least 0");
  }
  const DType dtype = is_norm ? precision.norms : precision.parameters;
  ParameterBytes bytes;
  bytes.parameter = bytes.gradient = detail::size(dtype);
  bytes.moments = moments * detail::size(DType::f32);
  if (bytes.parameter >= detail::size(DType::f32)) return bytes;
  if (precision.update == detail::NarrowUpdate::master) bytes.extra = detail::size(DType::f32);
  if (precision.update == detail::NarrowUpdate::kahan) bytes.extra = bytes.parameter;
  return bytes;
}

ModelState state_under(const nn::Precision& precision, std::int64_t elements, std::int64_t norm_elements,
                       std::int64_t moments, std::int64_t norm_channels, std::int64_t norms) {
  const ParameterBytes one = parameter_bytes(precision, moments), norm = parameter_bytes(precision, moments, true);
  ModelState state = state_of("state_under", 0, 0, DType::f32, norm_channels, norms);
  state.parameter_elements = elements + norm_elements;
  state.parameters = elements * one.parameter + norm_elements * norm.parameter;
  state.gradients = elements * one.gradient + norm_elements * norm.gradient;
  state.optimizer = elements * (one.moments + one.extra) + norm_elements * (norm.moments + norm.extra);
  return state;
}

std::int64_t fp8_state_bytes(const nn::Fp8Recipe& recipe) {
  if (recipe.kind != Fp8Scaling::delayed) return 0;
  namespace detail = precision_theory_detail;
  return (3 * recipe.history + 3) * detail::size(DType::f32) + 3 * 2 * detail::size(DType::i64);
}

bool has_fp8_layers(const nn::Precision& precision, const ModelOptions& sizes) {
  return precision.fp8 && sizes.width % fp8_multiple == 0;
}

std::vector<Term> with_fp8_codes(std::vector<Term> terms, std::initializer_list<const char*> inputs,
                                 const nn::Precision& precision, const ModelOptions& sizes, std::int64_t readers) {
  namespace detail = precision_theory_detail;
  const DType code = precision.fp8->format().forward;
  terms = detail::with_dtype(std::move(terms), inputs, code);
  if (sizes.build == Build::fused) {
    terms.push_back({"attention output codes", Category::activation, code, sizes.sequence * sizes.width, 0});
  } else {
    terms = detail::with_dtype(std::move(terms), {"attention output"}, code);
  }
  if (readers > 1) {
    const std::int64_t others = (readers - 1) * sizes.sequence * sizes.width;
    terms.push_back({"codes of other readers", Category::activation, code, others, 0});
  }
  if (precision.fp8->kind == Fp8Scaling::block) {
    const std::int64_t of_row = (readers + 2) * detail::blocks_of(sizes.width) + detail::blocks_of(4 * sizes.width);
    terms.push_back({"scales of codes", Category::activation, DType::u8, sizes.sequence * of_row, 0});
  } else {
    terms.push_back({"scales of codes", Category::activation, DType::f32, 0, readers + 3});
  }
  return terms;
}

ModelState gpt_state(std::string_view name, const ModelOptions& options, std::int64_t moments,
                     const nn::Precision& precision) {
  const ModelOptions sizes = gpt_options(name, options);
  const std::int64_t all = gpt_state(name, sizes, moments, DType::f32).parameter_elements;
  const std::int64_t of_norms = precision_theory_detail::gpt_norm_elements(sizes);
  ModelState state = state_under(precision, all - of_norms, of_norms, moments);
  if (has_fp8_layers(precision, sizes)) {
    state.buffers += 4 * sizes.layers * fp8_state_bytes(*precision.fp8);
  }
  return state;
}

std::vector<Term> gpt_layer_kept(std::string_view name, const ModelOptions& options, const nn::Precision& precision) {
  const ModelOptions sizes = gpt_options(name, options);
  if (!precision.compute) {
    std::vector<Term> terms = gpt_layer_kept(name, sizes, precision.parameters);
    if (!has_fp8_layers(precision, sizes)) return terms;
    return with_fp8_codes(std::move(terms), {"norm 1 output", "norm 2 output", "gelu output"}, precision, sizes);
  }
  const std::int64_t h = sizes.width;
  std::vector<Term> terms = precision_theory_detail::with_dtype(gpt_layer_kept(name, sizes, *precision.compute),
                                                                {"residual", "layer output"}, precision.parameters);
  terms.push_back({"weight casts", Category::activation, *precision.compute, 0, 12 * h * h});
  return terms;
}

std::vector<Term> gpt_outside_kept(std::string_view name, const ModelOptions& options, const nn::Precision& precision) {
  if (!precision.compute) return gpt_outside_kept(name, options, precision.parameters);
  const ModelOptions sizes = gpt_options(name, options);
  std::vector<Term> terms = precision_theory_detail::with_dtype(gpt_outside_kept(name, options, *precision.compute),
                                                                {"embedding output"}, precision.parameters);
  terms.push_back({"token table cast", Category::activation, *precision.compute, 0, sizes.vocabulary * sizes.width});
  return terms;
}

std::int64_t gpt_kept_bytes(std::string_view name, const ModelOptions& options, const nn::Precision& precision,
                            Category category, std::int64_t batch) {
  const ModelOptions sizes = gpt_options(name, options);
  return sizes.layers * bytes_of(gpt_layer_kept(name, sizes, precision), category, batch) +
         bytes_of(gpt_outside_kept(name, sizes, precision), category, batch);
}

ModelState resnet_state(std::string_view name, const ModelOptions& options, std::int64_t moments,
                        const nn::Precision& precision) {
  const ModelState plain = resnet_state(name, options, moments, DType::f32);
  std::int64_t channels = 0;  // of all batch norms
  for (const Term& term : resnet_kept(name, options, DType::f32)) {
    if (term.name == "batch-norm mean") channels = term.constant;
  }
  const std::int64_t counts = plain.buffers - 2 * channels * precision_theory_detail::size(DType::f32);
  return state_under(precision, plain.parameter_elements - 2 * channels, 2 * channels, moments, channels,
                     counts / precision_theory_detail::size(DType::i64));
}

std::vector<Term> resnet_kept(std::string_view name, const ModelOptions& options, const nn::Precision& precision) {
  if (!precision.compute) return resnet_kept(name, options, precision.parameters);
  const ModelOptions sizes = resnet_options(name, options);
  const DType compute = *precision.compute;
  std::vector<Term> terms =
      precision_theory_detail::with_dtype(resnet_kept(name, options, compute), {"input"}, precision.parameters);
  const std::int64_t kernel = has_small_stem(sizes.image) ? 3 : 7;
  const ModelState state = resnet_state(name, options, 0, precision);
  std::int64_t channels = 0;
  for (const Term& term : terms) {
    if (term.name == "batch-norm mean") channels = term.constant;
  }
  // All parameters but those of norms, the head's bias and the stem.
  const std::int64_t casts =
      state.parameter_elements - 2 * channels - sizes.classes - kernel * kernel * sizes.channels * sizes.width;
  terms.push_back({"input cast", Category::activation, compute, sizes.image * sizes.image * sizes.channels, 0});
  terms.push_back({"weight casts", Category::activation, compute, 0, casts});
  return terms;
}

}  // namespace thimble::models::theory
