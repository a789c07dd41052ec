#include <thimble/models/mlp/mlp.h>

#include <string>

#include <thimble/autograd/functions/view.h>
#include <thimble/models/images.h>

namespace thimble::models {

ModelOptions mlp_options(ModelOptions options) {
  require_image_options("mlp", options, 1);
  options.image = options.image > 0 ? options.image : 28;
  options.channels = options.channels > 0 ? options.channels : 1;
  options.classes = options.classes > 0 ? options.classes : 10;
  options.layers = options.layers > 0 ? options.layers : 2;
  options.width = options.width > 0 ? options.width : 256;
  options.vocabulary = options.sequence = options.heads = 0;  // of other models
  options.dropout = 0;
  return options;
}

Mlp::Mlp(const ModelOptions& options, const nn::TensorOptions& on) : Model(mlp_options(options)), dtype_(on.dtype) {
  std::int64_t in = options_.image * options_.image * options_.channels;
  const dist::StagePlace::Units own = options_.stage.units(options_.layers + 1);
  for (std::int64_t i = 0; i <= options_.layers; ++i) {
    const bool is_last = i == options_.layers;
    const std::int64_t out = is_last ? options_.classes : options_.width;
    nn::LinearOptions linear;
    if (!is_last && options_.build == Build::fused) linear.activation = kernels::Activation::relu;
    if (own.has(i)) {
      layers_.push_back(
          &child<nn::Linear>("fc" + std::to_string(i + 1), in, out, is_last ? on.outside_blocks() : on, linear));
    }
    in = out;
  }
}

Tensor Mlp::forward(const Tensor& images) {
  const PathScope scope(path());
  Tensor x = options_.stage.is_first() ? flatten(images, 1) : images;  // (N, H W C), or the previous stage's output
  for (nn::Linear* layer : layers_) {
    x = (*layer)(x);  // (N, width), finally (N, K)
    const bool is_head = options_.stage.is_last() && layer == layers_.back();
    if (options_.build == Build::textbook && !is_head) x = relu(x);
  }
  return x;
}

Batch Mlp::empty_batch(std::int64_t samples, memory::Device device) const {
  return empty_image_batch(options_, samples, dtype_, device);
}

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
