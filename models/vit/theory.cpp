#include <thimble/models/vit/theory.h>

#include <thimble/models/vit/vit.h>

namespace thimble::models::theory {

std::vector<Term> vit_layer_kept(std::string_view name, const ModelOptions& options, DType dtype, bool is_last,
                                 bool is_recomputed) {
  const ModelOptions sizes = vit_options(name, options);
  TransformerLayer layer;
  layer.sequence = vit_tokens(sizes.image), layer.width = sizes.width, layer.heads = sizes.heads;
  layer.drops_results = layer.drops_gelu = sizes.dropout > 0;
  layer.build = sizes.build;
  std::vector<Term> terms = is_recomputed ? recomputed_layer_kept(layer, dtype) : transformer_layer_kept(layer, dtype);
  if (is_last && sizes.build == Build::fused) terms.pop_back();  // "layer output"
  return terms;
}

std::vector<Term> vit_outside_kept(std::string_view name, const ModelOptions& options, DType dtype) {
  const ModelOptions sizes = vit_options(name, options);
  const bool is_textbook = sizes.build == Build::textbook;
  const std::int64_t s = vit_tokens(sizes.image), h = sizes.width, normed = is_textbook ? s : 1;
  TermList kept(dtype);
  kept.images("images", sizes.image * sizes.image * sizes.channels);
  if (is_textbook && sizes.dropout > 0) kept.mask("embedding mask", s * h);
  kept.values("embedding output", s * h);
  if (!is_textbook) kept.values("class rows", h);
  kept.statistics("final norm statistics", 2 * normed);
  kept.values("head input", normed * h);
  kept.values("logits", sizes.classes);
  kept.statistics("logsumexp", 1);
  kept.ids("targets", 1);
  return kept.terms;
}

std::int64_t vit_kept_bytes(std::string_view name, const ModelOptions& options, DType dtype, Category category,
                            std::int64_t batch, bool is_recomputed) {
  const ModelOptions sizes = vit_options(name, options);
  const auto layer = [&](bool is_last) {
    return bytes_of(vit_layer_kept(name, sizes, dtype, is_last, is_recomputed), category, batch);
  };
  return (sizes.layers - 1) * layer(false) + layer(true) +
         bytes_of(vit_outside_kept(name, sizes, dtype), category, batch);
}

ModelState vit_state(std::string_view name, const ModelOptions& options, std::int64_t moments, DType dtype) {
  const ModelOptions sizes = vit_options(name, options);
  const std::int64_t h = sizes.width, patch = vit_patch * vit_patch * sizes.channels;
  const std::int64_t embedding = patch * h + h + h + vit_tokens(sizes.image) * h;
  const std::int64_t head = 2 * h + (h + 1) * sizes.classes;
  return state_of("vit_state", embedding + sizes.layers * (12 * h * h + 13 * h) + head, moments, dtype);
}

}  // namespace thimble::models::theory
