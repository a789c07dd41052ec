#include <thimble/models/theory/gpt.h>

#include <string>

#include <thimble/core/error.h>
#include <thimble/models/gpt.h>

namespace thimble::models::theory {
namespace gpt_theory_detail {

DType statistic_of(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

// A list that terms of one category are added to.
class List {
 public:
  explicit List(DType dtype) : dtype_(dtype) {}
  void values(const char* name, std::int64_t per_sample) { add(name, dtype_, per_sample); }
  void statistics(const char* name, std::int64_t per_sample) { add(name, statistic_of(dtype_), per_sample); }
  void mask(const char* name, std::int64_t per_sample) { add(name, DType::u8, per_sample); }
  void input(const char* name, std::int64_t per_sample) {
    terms.push_back({name, Category::input, DType::i64, per_sample, 0});
  }

  std::vector<Term> terms;

 private:
  void add(const char* name, DType dtype, std::int64_t per_sample) {
    terms.push_back({name, Category::activation, dtype, per_sample, 0});
  }
  DType dtype_;
};

}  // namespace gpt_theory_detail

std::vector<Term> gpt_layer_kept(std::string_view name, const ModelOptions& options, DType dtype) {
  const ModelOptions sizes = gpt_options(name, options);
  const bool is_textbook = sizes.build == Build::textbook, has_masks = is_textbook && sizes.dropout > 0;
  const std::int64_t s = sizes.sequence, sh = s * sizes.width, as = sizes.heads * s;
  gpt_theory_detail::List kept(dtype);
  kept.statistics("norm statistics", 2 * 2 * s);  // two norms, mean and rstd
  kept.values("norm 1 output", sh);
  kept.values("qkv", 3 * sh);
  if (is_textbook) kept.values("probabilities", as * s);
  if (has_masks) kept.mask("probability mask", as * s);
  if (has_masks) kept.values("dropped probabilities", as * s);
  kept.values("attention output", sh);
  if (!is_textbook) kept.statistics("attention logsumexp", as);
  if (has_masks) kept.mask("attention mask", sh);
  kept.values("residual", sh);
  kept.values("norm 2 output", sh);
  kept.values("gelu input", 4 * sh);
  kept.values("gelu output", 4 * sh);
  if (has_masks) kept.mask("mlp mask", sh);
  kept.values("layer output", sh);
  return kept.terms;
}

std::vector<Term> gpt_recomputed_layer_kept(std::string_view name, const ModelOptions& options, DType dtype) {
  const ModelOptions sizes = gpt_options(name, options);
  gpt_theory_detail::List kept(dtype);
  kept.values("layer output", sizes.sequence * sizes.width);
  return kept.terms;
}

std::vector<Term> gpt_outside_kept(std::string_view name, const ModelOptions& options, DType dtype) {
  const ModelOptions sizes = gpt_options(name, options);
  const bool is_textbook = sizes.build == Build::textbook;
  const std::int64_t s = sizes.sequence, sh = s * sizes.width;
  gpt_theory_detail::List kept(dtype);
  kept.input("ids", s);
  if (is_textbook && sizes.dropout > 0) kept.mask("embedding mask", sh);
  kept.values("embedding output", sh);
  kept.statistics("final norm statistics", 2 * s);
  kept.values("head input", sh);
  kept.values(is_textbook ? "log-probabilities" : "logits", s * sizes.vocabulary);
  if (!is_textbook) kept.statistics("logsumexp", s);
  kept.input("targets", s);
  return kept.terms;
}

std::int64_t gpt_kept_bytes(std::string_view name, const ModelOptions& options, DType dtype, Category category,
                            std::int64_t batch, bool is_recomputed) {
  const ModelOptions sizes = gpt_options(name, options);
  const std::vector<Term> layer =
      is_recomputed ? gpt_recomputed_layer_kept(name, sizes, dtype) : gpt_layer_kept(name, sizes, dtype);
  return sizes.layers * bytes_of(layer, category, batch) +
         bytes_of(gpt_outside_kept(name, sizes, dtype), category, batch);
}

ModelState gpt_state(std::string_view name, const ModelOptions& options, std::int64_t moments, DType dtype) {
  if (moments < 0) throw ValueError("gpt_state: " + std::to_string(moments) + " moments; at least 0");
  const ModelOptions sizes = gpt_options(name, options);
  const std::int64_t h = sizes.width;
  ModelState state;
  state.parameter_elements = (sizes.vocabulary + sizes.sequence) * h + sizes.layers * (12 * h * h + 13 * h) + 2 * h;
  state.parameters = state.parameter_elements * static_cast<std::int64_t>(size_of(dtype));
  state.gradients = state.parameters;
  state.optimizer =
      moments * state.parameter_elements * static_cast<std::int64_t>(size_of(gpt_theory_detail::statistic_of(dtype)));
  return state;
}

}  // namespace thimble::models::theory
