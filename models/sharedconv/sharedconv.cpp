#include <thimble/models/sharedconv/sharedconv.h>

#include <string>

#include <thimble/autograd/functions/norm.h>
#include <thimble/core/error.h>
#include <thimble/models/images.h>

namespace thimble::models {
namespace {

constexpr std::int64_t smallest_sharedconv_image = 8;

}  // namespace

nn::Layer& SharedconvBlock::add_conv(const std::string& name, std::int64_t in, std::int64_t out, std::int64_t stride,
                                     const Tensor& basis, const nn::TensorOptions& on) {
  const Conv2dOptions options{.stride = stride, .padding = 1};
  if (basis.defined()) return child<nn::SharedConv2d>(name, in, basis, options, on);
  return child<nn::Conv2d>(name, in, out, 3, options, false, on);
}

SharedconvBlock::SharedconvBlock(std::int64_t in, std::int64_t out, std::int64_t stride, const Tensor& basis,
                                 Build build, const nn::TensorOptions& on)
    : build_(build),
      conv1_(add_conv("conv1", in, out, stride, basis, on)),
      norm1_(child<nn::BatchNorm2d>("bn1", out, on)),
      conv2_(add_conv("conv2", out, out, 1, basis, on)),
      norm2_(child<nn::BatchNorm2d>("bn2", out, on)) {
  if (stride == 1 && in == out) return;
  downsample_ = &child<nn::Sequential>("downsample");
  downsample_->add<nn::Conv2d>(in, out, 1, Conv2dOptions{.stride = stride}, false, on);
  downsample_->add<nn::BatchNorm2d>(out, on);
}

Tensor SharedconvBlock::forward(const Tensor& x) {  // (N, H, W, I)
  const bool is_fused = build_ == Build::fused;
  Tensor y = is_fused ? norm1_.with_relu(conv1_(x)) : relu(norm1_(conv1_(x)));  // (N, H / stride, W / stride, O)
  y = conv2_(y);
  const Tensor residual = downsample_ ? (*downsample_)(x) : x;
  return is_fused ? norm2_.with_add_relu(y, residual) : relu(add(norm2_(y), residual));
}

ModelOptions sharedconv_options(ModelOptions options) {
  ModelOptions of_images = options;
  of_images.shares_kernels = true;  // sharedconv has this option
  require_image_options("sharedconv", of_images, smallest_sharedconv_image);
  options.image = options.image > 0 ? options.image : 32;
  options.channels = options.channels > 0 ? options.channels : 3;
  options.classes = options.classes > 0 ? options.classes : 10;
  options.layers = options.layers > 0 ? options.layers : 2;
  options.width = options.width > 0 ? options.width : 32;
  options.vocabulary = options.sequence = options.heads = 0;  // of other models
  options.dropout = 0;
  if (options.width < 2) throw ValueError("sharedconv: width 1: at least 2 is needed");
  return options;
}

Sharedconv::Sharedconv(const ModelOptions& options, const nn::TensorOptions& on)
    : Model(sharedconv_options(options)),
      dtype_(on.dtype),
      stem_(child<nn::Conv2d>("stem", options_.channels, options_.width, 3, Conv2dOptions{.padding = 1}, false, on)),
      stem_norm_(child<nn::BatchNorm2d>("stem_norm", options_.width, on)) {
  std::int64_t in = options_.width;
  for (std::int64_t stage = 0; stage < sharedconv_stages; ++stage) {
    const std::string name = "stage" + std::to_string(stage + 1);
    const std::int64_t out = options_.width << stage;
    Tensor basis;
    if (options_.shares_kernels) {
      const PathScope own(path());
      const PathScope below(name);
      bases_.push_back(add_parameter(name + ".basis", nn::make_kernel_basis(sharedconv_rank(out), out, 3, on)));
      basis = bases_.back();
    }
    for (std::int64_t block = 0; block < options_.layers; ++block) {
      const std::int64_t stride = stage > 0 && block == 0 ? 2 : 1;
      blocks_.push_back(
          &child<SharedconvBlock>(name + "." + std::to_string(block), in, out, stride, basis, options_.build, on));
      in = out;
    }
  }
  fc_ = &child<nn::Linear>("fc", in, options_.classes, on.outside_blocks());
}

Tensor Sharedconv::forward(const Tensor& images) {
  const PathScope scope(path());
  Tensor x = stem_(images);  // (N, H, W, width)
  x = options_.build == Build::fused ? stem_norm_.with_relu(x) : relu(stem_norm_(x));
  for (SharedconvBlock* block : blocks_) x = (*block)(x);
  return (*fc_)(global_avg_pool(x));  // (N, C) -> (N, K)
}

Batch Sharedconv::empty_batch(std::int64_t samples, memory::Device device) const {
  return empty_image_batch(options_, samples, dtype_, device);
}

}  // namespace thimble::models
