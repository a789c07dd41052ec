#include <thimble/models/mlp/mlp.h>

namespace thimble::models {

Theory mlp_theory(std::string_view, const ModelOptions& options, const nn::Precision& precision) {
  const ModelOptions sizes = mlp_options(options);
  const std::int64_t pixels = sizes.image * sizes.image * sizes.channels;
  Theory theory(precision);
  std::int64_t in = pixels;
  for (std::int64_t i = 0; i < sizes.layers; ++i) {
    theory.linear(sizes.width, in);
    in = sizes.width;
  }
  theory.linear(sizes.classes, in);
  if (precision.fp8) {
    theory.unknown = "a multilayer perceptron keeps under FP8";
    return theory;
  }
  TermList kept(precision);
  kept.images("images", pixels);
  kept.values("relu outputs", sizes.layers * sizes.width);
  kept.classes(sizes.classes);
  kept.casts("weight casts", theory.weight_elements() - pixels * sizes.width);  // the images need no gradient
  theory.outside = kept.terms;
  return theory;
}

}  // namespace thimble::models
