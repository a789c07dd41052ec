#include <thimble/models/transformer/theory.h>

namespace thimble::models::theory {

TransformerLayer token_layer(const ModelOptions& sizes, NormPlace norms) {
  TransformerLayer layer;
  layer.sequence = sizes.sequence, layer.width = sizes.width, layer.heads = sizes.heads;
  layer.drops_probabilities = layer.drops_results = sizes.dropout > 0;
  layer.norms = norms;
  layer.build = sizes.build;
  return layer;
}

std::vector<Term> transformer_layer_kept(const TransformerLayer& layer, DType dtype) {
  const bool is_textbook = layer.build == Build::textbook, is_pre = layer.norms == NormPlace::pre;
  const std::int64_t s = layer.sequence, sh = s * layer.width, as = layer.heads * s;
  TermList kept(dtype);
  kept.statistics("norm statistics", 2 * 2 * s);  // two norms, mean and rstd
  if (is_pre) kept.values("norm 1 output", sh);
  kept.values("qkv", 3 * sh);
  if (is_textbook) kept.values("probabilities", as * s);
  if (is_textbook && layer.drops_probabilities) kept.mask("probability mask", as * s);
  if (is_textbook && layer.drops_probabilities) kept.values("dropped probabilities", as * s);
  kept.values("attention output", sh);
  if (!is_textbook) kept.statistics("attention logsumexp", as);
  if (is_textbook && layer.drops_results) kept.mask("attention mask", sh);
  kept.values(is_pre ? "residual" : "norm 1 input", sh);
  kept.values(is_pre ? "norm 2 output" : "norm 1 output", sh);
  kept.values("gelu input", 4 * sh);
  if (is_textbook && layer.drops_gelu) kept.mask("gelu mask", 4 * sh);
  kept.values("gelu output", 4 * sh);
  if (is_textbook && layer.drops_results) kept.mask("mlp mask", sh);
  if (!is_pre) kept.values("norm 2 input", sh);
  kept.values("layer output", sh);
  return kept.terms;
}

std::vector<Term> recomputed_layer_kept(const TransformerLayer& layer, DType dtype) {
  TermList kept(dtype);
  kept.values("layer output", layer.sequence * layer.width);
  return kept.terms;
}

}  // namespace thimble::models::theory
