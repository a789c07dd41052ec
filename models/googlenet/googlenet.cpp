#include <thimble/models/googlenet/googlenet.h>

#include <string>

#include <thimble/autograd/functions/indexing.h>
#include <thimble/autograd/functions/norm.h>
#include <thimble/core/error.h>
#include <thimble/models/images.h>

namespace thimble::models {
namespace {

constexpr double norm_epsilon = 1e-3;  // torchvision's
constexpr std::int64_t smallest_googlenet_image = 16;

}  // namespace

ConvNormRelu::ConvNormRelu(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride, Build build,
                           const nn::TensorOptions& on)
    : build_(build),
      conv_(child<nn::Conv2d>("conv", in, out, kernel, Conv2dOptions{.stride = stride, .padding = kernel / 2}, false,
                              on)),
      norm_(child<nn::BatchNorm2d>("bn", out, on, 0.1, norm_epsilon)) {}

Tensor ConvNormRelu::forward(const Tensor& x) {  // (N, H, W, I)
  return build_ == Build::fused ? norm_.with_relu(conv_(x)) : relu(norm_(conv_(x)));
}

InceptionBlock::InceptionBlock(std::int64_t in, const InceptionSizes& sizes, Build build, const nn::TensorOptions& on)
    : branch1_(child<ConvNormRelu>("branch1", in, sizes.branch1, 1, 1, build, on)),
      branch2_(child<nn::Sequential>("branch2")),
      branch3_(child<nn::Sequential>("branch3")),
      branch4_(child<ConvNormRelu>("branch4.1", in, sizes.branch4, 1, 1, build, on)) {
  branch2_.add<ConvNormRelu>(in, sizes.reduce2, 1, 1, build, on);
  branch2_.add<ConvNormRelu>(sizes.reduce2, sizes.branch2, 3, 1, build, on);
  branch3_.add<ConvNormRelu>(in, sizes.reduce3, 1, 1, build, on);
  branch3_.add<ConvNormRelu>(sizes.reduce3, sizes.branch3, 3, 1, build, on);
}

Tensor InceptionBlock::forward(const Tensor& x) {  // (N, H, W, I)
  const Tensor first = branch1_(x), second = branch2_(x), third = branch3_(x);
  const auto pooled = [&] {
    const PathScope scope("branch4.0");
    return max_pool2d(x, {.kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}, .ceil_mode = true});
  };
  const Tensor fourth = branch4_(pooled());
  return concat({first, second, third, fourth}, 3);  // (N, H, W, O)
}

ModelOptions googlenet_options(ModelOptions options) {
  ModelOptions of_images = options;
  of_images.dropout = -1;  // googlenet has this option
  require_image_options("googlenet", of_images, smallest_googlenet_image);
  if (options.layers > 0) {
    throw ValueError("googlenet: `layers` " + std::to_string(options.layers) + ": their number is fixed");
  }
  options.image = options.image > 0 ? options.image : 224;
  options.channels = options.channels > 0 ? options.channels : 3;
  options.classes = options.classes > 0 ? options.classes : has_small_stem(options.image) ? 10 : 1000;
  options.width = options.width > 0 ? options.width : 64;
  options.vocabulary = options.sequence = options.layers = options.heads = 0;  // of other models
  if (options.dropout < 0) options.dropout = 0.2;
  if (options.width % 8 != 0) {
    throw ValueError("googlenet: width " + std::to_string(options.width) + "; expected a multiple of 8");
  }
  if (options.dropout >= 1) {
    throw ValueError("googlenet: dropout " + std::to_string(options.dropout) + " is not in [0, 1)");
  }
  return options;
}

Googlenet::Googlenet(const ModelOptions& options, const nn::TensorOptions& on)
    : Model(googlenet_options(options)),
      dtype_(on.dtype),
      conv1_(child<ConvNormRelu>("conv1", options_.channels, options_.width, has_small_stem(options_.image) ? 3 : 7,
                                 has_small_stem(options_.image) ? 1 : 2, options_.build, on)),
      conv2_(child<ConvNormRelu>("conv2", options_.width, options_.width, 1, 1, options_.build, on)),
      conv3_(child<ConvNormRelu>("conv3", options_.width, 3 * options_.width, 3, 1, options_.build, on)) {
  std::int64_t channels = 3 * options_.width;
  for (const InceptionSizes& block : inception_blocks) {
    const InceptionSizes sizes = scaled(block, options_.width);
    blocks_.push_back(&child<InceptionBlock>(std::string(sizes.name), channels, sizes, options_.build, on));
    channels = sizes.out();
  }
  dropout_ = &child<nn::Dropout>("dropout", options_.dropout, options_.build == Build::textbook);
  fc_ = &child<nn::Linear>("fc", channels, options_.classes, on.outside_blocks());
}

Tensor Googlenet::pool(const Tensor& x, std::int64_t size) const {
  return max_pool2d(x, {.kernel = {size, size}, .stride = {2, 2}, .ceil_mode = true},
                    options_.build == Build::fused ? MaxPoolKeeps::taps : MaxPoolKeeps::input);
}

Tensor Googlenet::forward(const Tensor& images) {
  const PathScope scope(path());
  Tensor x = conv1_(images);  // (N, H', W', width)
  if (!has_small_stem(options_.image)) x = pool(x, 3);
  x = conv2_(x);
  x = conv3_(x);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (inception_blocks[i].pool_before > 0) x = pool(x, inception_blocks[i].pool_before);
    x = (*blocks_[i])(x);
  }
  return (*fc_)((*dropout_)(global_avg_pool(x)));  // (N, C) -> (N, K)
}

Batch Googlenet::empty_batch(std::int64_t samples, memory::Device device) const {
  return empty_image_batch(options_, samples, dtype_, device);
}

}  // namespace thimble::models
