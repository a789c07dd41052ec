#include <thimble/models/gpt/theory.h>

#include <thimble/models/gpt/gpt.h>

namespace thimble::models::theory {

std::vector<Term> gpt_layer_kept(std::string_view name, const ModelOptions& options, DType dtype, bool is_recomputed) {
  const TransformerLayer layer = token_layer(gpt_options(name, options), NormPlace::pre);
  return is_recomputed ? recomputed_layer_kept(layer, dtype) : transformer_layer_kept(layer, dtype);
}

std::vector<Term> gpt_outside_kept(std::string_view name, const ModelOptions& options, DType dtype) {
  const ModelOptions sizes = gpt_options(name, options);
  const bool is_textbook = sizes.build == Build::textbook;
  const std::int64_t s = sizes.sequence, sh = s * sizes.width;
  TermList kept(dtype);
  kept.ids("ids", s);
  if (is_textbook && sizes.dropout > 0) kept.mask("embedding mask", sh);
  kept.values("embedding output", sh);
  kept.statistics("final norm statistics", 2 * s);
  kept.values("head input", sh);
  kept.values(is_textbook ? "log-probabilities" : "logits", s * sizes.vocabulary);
  if (!is_textbook) kept.statistics("logsumexp", s);
  kept.ids("targets", s);
  return kept.terms;
}

std::int64_t gpt_kept_bytes(std::string_view name, const ModelOptions& options, DType dtype, Category category,
                            std::int64_t batch, bool is_recomputed) {
  const ModelOptions sizes = gpt_options(name, options);
  return sizes.layers * bytes_of(gpt_layer_kept(name, sizes, dtype, is_recomputed), category, batch) +
         bytes_of(gpt_outside_kept(name, sizes, dtype), category, batch);
}

ModelState gpt_state(std::string_view name, const ModelOptions& options, std::int64_t moments, DType dtype) {
  const ModelOptions sizes = gpt_options(name, options);
  const std::int64_t h = sizes.width;
  const std::int64_t elements = (sizes.vocabulary + sizes.sequence) * h + sizes.layers * (12 * h * h + 13 * h) + 2 * h;
  return state_of("gpt_state", elements, moments, dtype);
}

}  // namespace thimble::models::theory
