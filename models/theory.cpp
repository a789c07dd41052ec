#include <thimble/models/theory.h>

#include <functional>

#include <thimble/core/error.h>
#include <thimble/core/numbers/integers.h>

namespace thimble::models {
namespace {

std::int64_t size(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }

// The dtype of statistics and moments of values in `dtype`.
DType statistic_of(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

void require_moments(std::int64_t moments) {
  if (moments < 0) throw ValueError("theory: " + std::to_string(moments) + " moments of the optimizer; at least 0");
}

// The state with moment_bytes(p) bytes of moments for each parameter.
ModelState state_of(const Theory& theory, const std::function<std::int64_t(const ParameterTheory&)>& moment_bytes) {
  ModelState state;
  state.buffers = theory.buffers;
  for (const ParameterTheory& p : theory.parameters) {
    const ParameterBytes one = parameter_bytes(theory.precision, 0, p.is_norm);
    const std::int64_t elements = p.count * p.shape.elements();
    state.parameter_elements += elements;
    state.parameters += elements * one.parameter;
    state.gradients += elements * one.gradient;
    state.optimizer += elements * one.extra + p.count * moment_bytes(p);
  }
  return state;
}

// Bytes of `filters` filters in 8 bits, each of `lines` lines. Codes are in panels of 64, 32 or 16 filters, so in a
// multiple of 16 places (8 for at most 8 filters), with lines padded to 4 codes (8). Each filter has a scale,
// each place a bias (i32) and the factor from sums to results (f32).
std::int64_t code_bytes(std::int64_t filters, std::int64_t lines, std::int64_t line_elements) {
  constexpr std::int64_t narrow = 8;
  const std::int64_t places = round_up(filters, 16);
  const std::int64_t codes =
      filters <= narrow ? narrow * lines * round_up(line_elements, 8) : places * lines * round_up(line_elements, 4);
  return codes + 4 * filters + (4 + 4) * places;
}

}  // namespace

std::int64_t bytes_of(const std::vector<Term>& terms, memory::Category category, std::int64_t batch) {
  std::int64_t bytes = 0;
  for (const Term& term : terms) bytes += term.category == category ? term.bytes(batch) : 0;
  return bytes;
}

void TermList::values(const char* name, std::int64_t per_sample, DType dtype) {
  terms.push_back({name, memory::Category::activation, dtype, per_sample, 0});
}

void TermList::statistics(const char* name, std::int64_t per_sample) { values(name, per_sample, statistic_of(dtype_)); }

void TermList::ids(const char* name, std::int64_t per_sample) {
  terms.push_back({name, memory::Category::input, DType::i64, per_sample, 0});
}

void TermList::images(const char* name, std::int64_t per_sample) {
  terms.push_back({name, memory::Category::input, precision_.parameters, per_sample, 0});
  if (precision_.compute) values("input cast", per_sample);
}

void TermList::batch_norms(std::int64_t channels) {
  for (const char* name : {"batch-norm mean", "batch-norm rstd"}) {
    terms.push_back({name, memory::Category::activation, statistic_of(dtype_), 0, channels});
  }
}

void TermList::classes(std::int64_t count) {
  values("logits", count);
  statistics("logsumexp", 1);
  ids("targets", 1);
}

void TermList::casts(const char* name, std::int64_t elements) {
  if (precision_.compute) terms.push_back({name, memory::Category::activation, dtype_, 0, elements});
}

ParameterBytes parameter_bytes(const nn::Precision& precision, std::int64_t moments, bool is_norm) {
  require_moments(moments);
  const DType dtype = is_norm ? precision.norms : precision.parameters;
  ParameterBytes bytes;
  bytes.parameter = bytes.gradient = size(dtype);
  bytes.moments = moments * size(statistic_of(dtype));
  if (bytes.parameter >= size(DType::f32)) return bytes;
  if (precision.update == optim::NarrowUpdate::master) bytes.extra = size(DType::f32);
  if (precision.update == optim::NarrowUpdate::kahan) bytes.extra = bytes.parameter;
  return bytes;
}

void Theory::batch_norm(std::int64_t channels) {
  norm(channels);
  buffers += 2 * channels * size(statistic_of(precision.norms)) + size(DType::i64);
}

void Theory::conv_norm(std::int64_t out, std::int64_t kernel, std::int64_t in) {
  weight({out, kernel, kernel, in});
  batch_norm(out);
}

void Theory::linear(std::int64_t out, std::int64_t in) {
  weight({out, in});
  weight({out});
}

std::int64_t Theory::weight_elements() const {
  std::int64_t elements = 0;
  for (const ParameterTheory& p : parameters) elements += p.shape.rank() > 1 ? p.count * p.shape.elements() : 0;
  return elements;
}

ModelState Theory::state(std::int64_t moments, const optim::MomentFormat& format) const {
  constexpr std::int64_t block = 256, of_scale = 4;
  if (format.dtype != DType::f32 && format.dtype != DType::u8 && format.dtype != DType::bf16) {
    throw ValueError("theory: moments in " + std::string(to_string(format.dtype)) + "; expected f32, bf16 or u8");
  }
  require_moments(moments);
  return state_of(*this, [&](const ParameterTheory& p) {
    const std::int64_t n = p.shape.elements();
    if (format.dtype == DType::f32 || n < format.smallest) {
      return n * parameter_bytes(precision, moments, p.is_norm).moments;
    }
    return moments * (format.dtype == DType::bf16 ? 2 * n : n + of_scale * ceil_div(n, block));
  });
}

ModelState Theory::factored_state() const {
  return state_of(*this, [](const ParameterTheory& p) {
    constexpr std::int64_t of_number = 4;
    const std::int64_t n = p.shape.elements(), columns = p.shape.rank() > 1 ? p.shape.back() : n;
    const std::int64_t rows = columns > 0 ? n / columns : 0;
    return of_number * (rows > 1 && columns > 1 ? rows + columns : n);
  });
}

std::int64_t Theory::int8_bytes() const {
  std::int64_t bytes = 0;
  for (const ParameterTheory& p : parameters) {
    const Shape& s = p.shape;
    if (s.rank() == 4) bytes += p.count * code_bytes(s[0], s[1], s[2] * s[3]);
    if (s.rank() == 2) bytes += p.count * code_bytes(s[0], 1, s[1]);
  }
  return bytes;
}

std::int64_t Theory::kept_bytes(memory::Category category, std::int64_t batch, bool is_recomputed) const {
  if (!unknown.empty()) throw ValueError("theory: no closed form of what " + unknown);
  if (is_recomputed && (precision.compute || precision.fp8)) {
    throw ValueError("theory: no closed form of what recomputed layers keep under " + std::string(precision.name));
  }
  std::int64_t bytes = bytes_of(outside, category, batch);
  for (const LayerTheory& layer : layers) {
    bytes += bytes_of(is_recomputed ? recomputed(layer) : layer.kept, category, batch);
  }
  return bytes;
}

std::int64_t Theory::held_bytes(std::int64_t moments, std::int64_t batch) const {
  const ModelState held = state(moments);
  return held.parameters + held.buffers + held.optimizer + kept_bytes(memory::Category::activation, batch) +
         kept_bytes(memory::Category::input, batch);
}

std::vector<Term> recomputed(const LayerTheory& layer) {
  std::vector<Term> result;
  for (const Term& term : layer.kept) {
    if (term.name == "layer output") result.push_back(term);
  }
  return result;
}

Theory make_theory(std::string_view name, const ModelOptions& options, DType dtype) {
  return make_theory(name, options, nn::Precision{.name = to_string(dtype), .parameters = dtype, .norms = dtype});
}

}  // namespace thimble::models
