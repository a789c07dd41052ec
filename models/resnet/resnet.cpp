#include <thimble/models/resnet/resnet.h>

#include <string>

#include <thimble/autograd/functions/norm.h>
#include <thimble/core/error.h>

namespace thimble::models {
namespace {

constexpr std::int64_t smallest_resnet_image = 8;  // its last stage still sees a pixel and not only padding

Tensor norm_relu(nn::BatchNorm2d& norm, const Tensor& x, Build build) {
  return build == Build::fused ? norm.with_relu(x) : relu(norm(x));
}

Conv2dOptions stem_options(std::int64_t image) {
  return has_small_stem(image) ? Conv2dOptions{.padding = 1} : Conv2dOptions{.stride = 2, .padding = 3};
}

}  // namespace

const ResnetArchitecture& resnet_architecture(std::string_view name) {
  std::string known;
  for (const ResnetArchitecture& architecture : resnet_architectures) {
    if (architecture.name == name) return architecture;
    known += (known.empty() ? "" : ", ") + std::string(architecture.name);
  }
  throw ValueError("resnet: '" + std::string(name) + "' is not one of " + known);
}

ModelOptions resnet_options(std::string_view name, ModelOptions options) {
  require_image_options(name, options, smallest_resnet_image);
  if (options.layers > 0) {
    throw ValueError(std::string(name) + ": `layers` " + std::to_string(options.layers) +
                     ": the name says how many layers there are");
  }
  options.image = options.image > 0 ? options.image : 224;
  options.channels = options.channels > 0 ? options.channels : 3;
  options.classes = options.classes > 0 ? options.classes : has_small_stem(options.image) ? 10 : 1000;
  options.width = options.width > 0 ? options.width : 64;
  options.vocabulary = options.sequence = options.layers = options.heads = 0;  // of other models
  options.dropout = 0;
  return options;
}

ResnetBlock::ResnetBlock(const ResnetArchitecture& architecture, std::int64_t in, std::int64_t planes,
                         std::int64_t stride, Build build, const nn::TensorOptions& on)
    : build_(build) {
  const std::int64_t out = planes * architecture.expansion();
  if (architecture.is_bottleneck) {
    add_conv(in, planes, 1, 1, on);
    add_conv(planes, planes, 3, stride, on);
    add_conv(planes, out, 1, 1, on);
  } else {
    add_conv(in, planes, 3, stride, on);
    add_conv(planes, out, 3, 1, on);
  }
  if (stride == 1 && in == out) return;
  downsample_ = &child<nn::Sequential>("downsample");
  downsample_->add<nn::Conv2d>(in, out, 1, Conv2dOptions{.stride = stride}, false, on);
  downsample_->add<nn::BatchNorm2d>(out, on);
}

void ResnetBlock::add_conv(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                           const nn::TensorOptions& on) {
  const std::string number = std::to_string(convs_.size() + 1);
  const Conv2dOptions options{.stride = stride, .padding = kernel / 2};
  auto& conv = child<nn::Conv2d>("conv" + number, in, out, kernel, options, false, on);
  convs_.push_back({conv, child<nn::BatchNorm2d>("bn" + number, out, on)});
}

Tensor ResnetBlock::forward(const Tensor& x) {  // (N, H, W, I)
  Tensor y = x;
  for (std::size_t i = 0; i + 1 < convs_.size(); ++i) {
    y = norm_relu(convs_[i].norm, convs_[i].conv(y), build_);
  }
  y = convs_.back().conv(y);  // (N, H / stride, W / stride, O)
  const Tensor residual = downsample_ ? (*downsample_)(x) : x;
  return build_ == Build::fused ? convs_.back().norm.with_add_relu(y, residual)
                                : relu(add(convs_.back().norm(y), residual));
}

Resnet::Resnet(std::string_view name, const ModelOptions& options, const nn::TensorOptions& on)
    : Model(resnet_options(name, options)), architecture_(resnet_architecture(name)), dtype_(on.dtype) {
  if (options_.stage.is_first()) {
    conv1_ = &child<nn::Conv2d>("conv1", options_.channels, options_.width, has_small_stem(options_.image) ? 3 : 7,
                                stem_options(options_.image), false, on);
    bn1_ = &child<nn::BatchNorm2d>("bn1", options_.width, on);
  }
  std::int64_t channels = options_.width, first = 0;
  for (int stage = 0; stage < 4; ++stage) add_stage(stage, channels, first, on);
  if (options_.stage.is_last()) fc_ = &child<nn::Linear>("fc", channels, options_.classes, on.outside_blocks());
}

// Stage 0 is "layer1". Each further stage halves the image and has twice the planes. `in` and `first` are the channels
// before the stage and the number of its first block; it updates both for the next.
void Resnet::add_stage(int stage, std::int64_t& in, std::int64_t& first, const nn::TensorOptions& on) {
  const std::int64_t planes = options_.width << stage;
  const auto& counts = architecture_.blocks;
  const dist::StagePlace::Units own = options_.stage.units(counts[0] + counts[1] + counts[2] + counts[3]);
  const std::int64_t count = counts[static_cast<std::size_t>(stage)];
  if (own.first < first + count && first < own.end) {
    stages_.push_back(&child<nn::Sequential>("layer" + std::to_string(stage + 1)));
  }
  for (std::int64_t block = 0; block < count; ++block) {
    const std::int64_t stride = stage > 0 && block == 0 ? 2 : 1;
    if (own.has(first + block)) {
      stages_.back()->add_named<ResnetBlock>(std::to_string(block), architecture_, in, planes, stride, options_.build,
                                             on);
    }
    in = planes * architecture_.expansion();
  }
  first += count;
}

// Images (N, H, W, C) -> (N, H', W', width).
Tensor Resnet::stem(const Tensor& images) {
  Tensor x = norm_relu(*bn1_, (*conv1_)(images), options_.build);
  if (!has_small_stem(options_.image)) {
    x = max_pool2d(x, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}},
                   options_.build == Build::fused ? MaxPoolKeeps::taps : MaxPoolKeeps::input);
  }
  return x;
}

Tensor Resnet::forward(const Tensor& in) {
  const PathScope scope(path());
  Tensor x = options_.stage.is_first() ? stem(in) : in;
  for (nn::Sequential* stage : stages_) x = (*stage)(std::move(x));
  if (!options_.stage.is_last()) return x;
  x = global_avg_pool(x);  // (N, C)
  return (*fc_)(x);
}

Batch Resnet::empty_batch(std::int64_t samples, memory::Device device) const {
  return empty_image_batch(options_, samples, dtype_, device);
}

}  // namespace thimble::models
