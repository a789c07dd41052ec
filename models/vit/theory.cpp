#include <thimble/models/transformer/theory.h>
#include <thimble/models/vit/vit.h>

namespace thimble::models {

Theory vit_theory(std::string_view name, const ModelOptions& options, const nn::Precision& precision) {
  const ModelOptions sizes = vit_options(name, options);
  const bool is_textbook = sizes.build == Build::textbook;
  const std::int64_t s = vit_tokens(sizes.image), h = sizes.width, normed = is_textbook ? s : 1;
  Theory theory(precision);
  theory.weight({1, 1, h});
  theory.weight({h, vit_patch, vit_patch, sizes.channels});
  theory.weight({h});
  theory.weight({1, s, h});
  TransformerLayers layers;
  layers.path = "vit.encoder.layers.encoder_layer_", layers.count = sizes.layers;
  layers.sequence = s, layers.width = h, layers.heads = sizes.heads;
  layers.drops_results = layers.drops_gelu = sizes.dropout > 0;
  layers.build = sizes.build, layers.feed_forward = sizes.feed_forward;
  layers.group = sizes.group;
  add_layers(theory, layers);
  theory.norm(h);
  theory.linear(sizes.classes, h);
  if (!is_textbook) std::erase_if(theory.layers.back().kept, [](const Term& t) { return t.name == "layer output"; });
  TermList kept(precision);
  kept.images("images", sizes.image * sizes.image * sizes.channels);
  if (is_textbook && sizes.dropout > 0) kept.mask("embedding mask", s * h);
  kept.values("embedding output", s * h, precision.parameters);
  if (!is_textbook) kept.values("class rows", h, precision.parameters);
  kept.statistics("final norm statistics", 2 * normed);
  kept.values("head input", (precision.compute ? 1 : normed) * h);  // casts only the class rows
  kept.classes(sizes.classes);
  kept.casts("weight casts", sizes.classes * h);  // the images need no gradient
  theory.outside = kept.terms;
  return theory;
}

}  // namespace thimble::models
