#include <thimble/models/bert/theory.h>

#include <string>

#include <thimble/core/error.h>
#include <thimble/models/bert/bert.h>
#include <thimble/models/theory/precision.h>

namespace thimble::models::theory {

std::vector<Term> bert_layer_kept(std::string_view name, const ModelOptions& options, DType dtype, bool is_recomputed) {
  const TransformerLayer layer = token_layer(bert_options(name, options), NormPlace::post);
  return is_recomputed ? recomputed_layer_kept(layer, dtype) : transformer_layer_kept(layer, dtype);
}

std::vector<Term> bert_outside_kept(std::string_view name, const ModelOptions& options, DType dtype) {
  const ModelOptions sizes = bert_options(name, options);
  const bool is_textbook = sizes.build == Build::textbook;
  const std::int64_t s = sizes.sequence, sh = s * sizes.width;
  TermList kept(dtype);
  kept.ids("ids", s);
  kept.values("embedding sum", sh);
  kept.statistics("embedding norm statistics", 2 * s);
  if (is_textbook && sizes.dropout > 0) kept.mask("embedding mask", sh);
  kept.values("embedding output", sh);
  kept.values("gelu input", sh);
  kept.values("gelu output", sh);
  kept.statistics("head norm statistics", 2 * s);
  kept.values("head input", sh);
  kept.values(is_textbook ? "log-probabilities" : "logits", s * sizes.vocabulary);
  if (!is_textbook) kept.statistics("logsumexp", s);
  kept.ids("targets", s);
  return kept.terms;
}

std::int64_t bert_kept_bytes(std::string_view name, const ModelOptions& options, DType dtype, Category category,
                             std::int64_t batch, bool is_recomputed) {
  const ModelOptions sizes = bert_options(name, options);
  return sizes.layers * bytes_of(bert_layer_kept(name, sizes, dtype, is_recomputed), category, batch) +
         bytes_of(bert_outside_kept(name, sizes, dtype), category, batch);
}

std::int64_t bert_kept_bytes(std::string_view name, const ModelOptions& options, const nn::Precision& precision,
                             Category category, std::int64_t batch) {
  if (precision.compute) {
    throw ValueError(
        "bert_kept_bytes: precision " + std::string(precision.name) +
        ", whose products cast their operands; a formula is there for those that store what they multiply");
  }
  const ModelOptions sizes = bert_options(name, options);
  if (!has_fp8_layers(precision, sizes)) return bert_kept_bytes(name, sizes, precision.parameters, category, batch);
  const std::vector<Term> layer = with_fp8_codes(bert_layer_kept(name, sizes, precision.parameters),
                                                 {"norm 1 output", "gelu output", "layer output"}, precision, sizes, 3);
  // A layer's result is kept as the next one's codes, that of the embedding as the first one's; the last is whole.
  std::vector<Term> outside = bert_outside_kept(name, sizes, precision.parameters);
  for (Term& term : outside) {
    if (term.name == "embedding output") term.name = "encoder output";
  }
  return sizes.layers * bytes_of(layer, category, batch) + bytes_of(outside, category, batch);
}

ModelState bert_state(std::string_view name, const ModelOptions& options, std::int64_t moments, DType dtype) {
  const ModelOptions sizes = bert_options(name, options);
  const std::int64_t h = sizes.width, v = sizes.vocabulary;
  const std::int64_t tables = (v + sizes.sequence + 2) * h + 2 * h, head = h * h + 3 * h + v;
  return state_of("bert_state", tables + sizes.layers * (12 * h * h + 13 * h) + head, moments, dtype);
}

ModelState bert_state(std::string_view name, const ModelOptions& options, std::int64_t moments,
                      const nn::Precision& precision) {
  const ModelOptions sizes = bert_options(name, options);
  const std::int64_t of_norms = (4 * sizes.layers + 4) * sizes.width;
  ModelState state = state_under(precision, bert_state(name, sizes).parameter_elements - of_norms, of_norms, moments);
  if (has_fp8_layers(precision, sizes)) state.buffers += 6 * sizes.layers * fp8_state_bytes(*precision.fp8);
  return state;
}

}  // namespace thimble::models::theory
