#include <thimble/models/resnet/resnet.h>

namespace thimble::models {
namespace {

/// An image on its way through the net: size, channels, and sums over the layers so far.
struct Walk {
  Theory& theory;
  std::int64_t image, channels;
  std::int64_t conv_outputs = 0, relu_outputs = 0;  // elements per sample
  std::int64_t norm_channels = 0;                   // of all batch norms

  std::int64_t elements() const { return image * image * channels; }
  // Square kernels are padded so that a stride of 1 keeps the size: output = (size + 2 (k / 2) - k) / stride + 1.
  void resize(std::int64_t kernel, std::int64_t stride) { image = (image + 2 * (kernel / 2) - kernel) / stride + 1; }
  // Adds a convolution and its batch norm, with the current image as their result.
  void came_by(std::int64_t kernel, std::int64_t from) {
    theory.conv_norm(channels, kernel, from);
    conv_outputs += elements();
    norm_channels += channels;
  }
  void conv(std::int64_t out, std::int64_t kernel, std::int64_t stride) {
    const std::int64_t from = channels;
    resize(kernel, stride);
    channels = out;
    came_by(kernel, from);
  }
  void relu() { relu_outputs += elements(); }
  void block(const ResnetArchitecture& architecture, std::int64_t planes, std::int64_t stride) {
    const std::int64_t in = channels, out = planes * architecture.expansion();
    if (architecture.is_bottleneck) {
      conv(planes, 1, 1), relu();
      conv(planes, 3, stride), relu();
      conv(out, 1, 1);
    } else {
      conv(planes, 3, stride), relu();
      conv(out, 3, 1);
    }
    if (stride != 1 || in != out) came_by(1, in);  // downsample
    relu();
  }
};

}  // namespace

Theory resnet_theory(std::string_view name, const ModelOptions& options, const nn::Precision& precision) {
  const ModelOptions sizes = resnet_options(name, options);
  const ResnetArchitecture& architecture = resnet_architecture(name);
  const bool is_small = has_small_stem(sizes.image);
  Theory theory(precision);
  Walk walk{theory, sizes.image, sizes.channels};
  walk.conv(sizes.width, is_small ? 3 : 7, is_small ? 1 : 2);
  walk.relu();
  const std::int64_t stem_weights = theory.weight_elements();
  if (!is_small) walk.resize(3, 2);
  const std::int64_t pool_output = is_small ? 0 : walk.elements();
  std::int64_t planes = sizes.width;
  for (const std::int64_t blocks : architecture.blocks) {
    for (std::int64_t b = 0; b < blocks; ++b) {
      walk.block(architecture, planes, b == 0 && planes != sizes.width ? 2 : 1);
    }
    planes *= 2;
  }
  theory.linear(sizes.classes, walk.channels);
  if (sizes.build == Build::fused) {
    theory.unknown = "the fused build of a ResNet keeps";
    return theory;
  }
  TermList kept(precision);
  kept.images("input", sizes.image * sizes.image * sizes.channels);
  kept.values("conv outputs", walk.conv_outputs);
  kept.batch_norms(walk.norm_channels);
  kept.values("relu outputs", walk.relu_outputs);
  if (!is_small) kept.values("pool output", pool_output);
  kept.values("fc input", walk.channels);
  kept.classes(sizes.classes);
  kept.casts("weight casts", theory.weight_elements() - stem_weights);  // the images need no gradient
  theory.outside = kept.terms;
  return theory;
}

}  // namespace thimble::models
