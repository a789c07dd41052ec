#include "certificate_nets.h"

#include <memory>
#include <utility>
#include <vector>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/kernels/functors/elementwise_functors.h>
#include <thimble/core/ops/attention.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/matmul/chunked.h>
#include <thimble/core/ops/random.h>
#include <thimble/memory/offload/offload.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/sgd.h>

namespace thimble::certificate {
namespace {

/// The operator `Op` with its saved tensors in a tier until its backward.
template <class Op>
struct Away {
  static constexpr const char* name = "away";
  static constexpr ops::Cost cost = node_detail::cost_of<Op>();
  struct Kept {
    typename Op::Saved saved;  // its tensors are undefined
    std::vector<memory::Offloaded> tensors;
  };
  struct Saved {
    std::shared_ptr<Kept> kept;
  };
  Op op;
  std::shared_ptr<memory::Tier> tier;

  Tensor forward(std::span<const Tensor> in, ops::Needs needs, Saved& saved) const {
    typename Op::Saved here{};
    const Tensor y = node_detail::forward(op, in, needs, here);
    if (!needs.any()) return y;
    const auto kept = std::make_shared<Kept>();
    const auto send = [&](Tensor& t) {
      kept->tensors.emplace_back();
      if (!t.defined()) return;
      kept->tensors.back() = memory::offload(std::exchange(t, Tensor()), tier);
      kept->tensors.back().complete();
    };
    for_each_member(here, send, [](auto&) {});
    kept->saved = std::move(here);
    saved.kept = kept;
    return y;
  }

  ops::Gradients backward(Saved saved, Tensor dy, ops::Needs needs) const {
    typename Op::Saved here = saved.kept->saved;
    auto next = saved.kept->tensors.begin();
    const auto fetch = [&](Tensor& t) {
      if (next->defined()) t = next->fetch();
      ++next;
    };
    for_each_member(here, fetch, [](auto&) {});
    return op.backward(std::move(here), std::move(dy), needs);
  }
};

template <class Op, class... In>
Tensor apply_away(const std::shared_ptr<memory::Tier>& tier, const Op& op, const In&... in) {
  return tier ? apply(Away<Op>{op, tier}, in...) : apply(op, in...);
}

constexpr int micro_batch_count = 2;

std::int64_t samples_of(const NetOptions& options) {
  if (options.samples > 0) return options.samples;
  return options.is_tiny ? 2 : 10;
}

/// Values that differ from sample to sample.
Tensor images(const Shape& shape, int micro_batch, DType dtype, memory::Device device) {
  std::vector<float> values(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto n = static_cast<std::int64_t>(i);
    values[i] = static_cast<float>((n * 37 + n / 11 + micro_batch * 17) % 101) / 50 - 1;
  }
  const Tensor t = Tensor::empty(shape, dtype, device, memory::Category::input);
  copy_into(t, from_host(values, shape, device, memory::Category::input));
  return t;
}

Tensor classes(const Shape& shape, std::int64_t count, int micro_batch, memory::Device device) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(shape.elements()));
  for (std::size_t n = 0; n < values.size(); ++n) {
    const auto i = static_cast<std::int64_t>(n);
    values[n] = (i * i * 7 + i + micro_batch * 5) % count;
  }
  return from_host(values, shape, device, memory::Category::input);
}

nn::TensorOptions placement_of(const NetOptions& options, memory::Device device) {
  return options.precision ? options.precision->on(device) : nn::TensorOptions{device, DType::f32};
}

optim::NarrowUpdate update_of(const NetOptions& options) {
  return options.precision ? options.precision->update : optim::NarrowUpdate::rounded;
}

/// Starts at the largest scale, so that some step is skipped.
std::unique_ptr<optim::GradScaler> scaler_of(const NetOptions& options) {
  if (!options.precision || !options.precision->scales_loss) return nullptr;
  return std::make_unique<optim::GradScaler>(optim::GradScalerOptions{.scale = 0x1p24, .backoff = 0x1p-12});
}

class ConvNet final : public Net {
 public:
  ConvNet(const NetOptions& options, memory::Device device)
      : options_(options),
        stem_(child<nn::Conv2d>("stem.conv", 3, channels(), 3, Conv2dOptions{.padding = 1}, false, on(device))),
        stem_norm_(child<nn::BatchNorm2d>("stem.norm", channels(), on(device))),
        conv1_(child<nn::Conv2d>("block1.conv1", channels(), channels(), 3, Conv2dOptions{.padding = 1}, false,
                                 on(device))),
        norm1_(child<nn::BatchNorm2d>("block1.norm1", channels(), on(device))),
        dropout1_(child<nn::Dropout>("block1.dropout", 0.2)),
        conv2_(child<nn::Conv2d>("block1.conv2", channels(), channels(), 3, Conv2dOptions{.padding = 1}, true,
                                 on(device))),
        norm2_(child<nn::BatchNorm2d>("block1.norm2", channels(), on(device))),
        conv3_(child<nn::Conv2d>("block2.conv1", channels(), channels(), 1, Conv2dOptions{}, false, on(device))),
        norm3_(child<nn::BatchNorm2d>("block2.norm1", channels(), on(device))),
        conv4_(child<nn::Conv2d>("block2.conv2", channels(), channels(), 3, Conv2dOptions{.padding = 1}, false,
                                 on(device))),
        norm4_(child<nn::BatchNorm2d>("block2.norm2", channels(), on(device))),
        dropout2_(child<nn::Dropout>("head.dropout", 0.3, true)),
        head_(child<nn::Linear>("head.linear", channels(), 5, on(device))) {
    for (int i = 0; i < micro_batch_count; ++i) {
      const std::int64_t size = options.is_tiny ? 4 : 16;
      inputs_.push_back(images({samples(), size, size, 3}, i, on(device).dtype, device));
      targets_.push_back(classes({samples()}, 5, i, device));
    }
  }

  std::size_t stage_count() const override { return 6; }
  Tensor input(std::int64_t micro_batch) const override { return inputs_.at(static_cast<std::size_t>(micro_batch)); }
  std::int64_t samples() const override { return samples_of(options_); }
  std::vector<PathId> random_paths() const override { return {dropout1_.path(), dropout2_.path()}; }
  std::unique_ptr<optim::Optimizer> make_optimizer() const override {
    return std::make_unique<optim::Sgd>(
        trainable(),
        optim::SgdOptions{.rate = 0.05, .momentum = 0.9, .weight_decay = 1e-3, .narrow = update_of(options_)});
  }
  std::unique_ptr<optim::GradScaler> make_scaler() const override { return scaler_of(options_); }

  // x: (N, S, S, 3), then (N, S, S, C), after the pooling (N, S / 2, S / 2, C), (N, C), ()
  Tensor run(std::size_t stage, const Tensor& x, std::int64_t micro_batch) override {
    switch (stage) {
      case 0:
        return stem_norm_.with_relu(stem_(x));
      case 1: {
        const Tensor h = drop(norm1_.with_relu(conv1_(x)));
        return relu(nn::residual_sum(normalize(conv2_(h)), x));
      }
      case 2:
        return apply_away(tier_, ops::MaxPool2d{{.kernel = {2, 2}}}, x);
      case 3:
        return norm4_.with_add_relu(conv4_(norm3_.with_relu(conv3_(x))), x);
      case 4:
        return dropout2_(global_avg_pool(x));
      default:
        return cross_entropy(head_(x), targets_.at(static_cast<std::size_t>(micro_batch)));
    }
  }

 private:
  nn::TensorOptions on(memory::Device device) const { return placement_of(options_, device); }
  std::int64_t channels() const { return options_.is_tiny ? 2 : 8; }
  Tensor drop(const Tensor& x) {
    if (!options_.drop) return dropout1_(x);
    const PathScope scope(dropout1_.path());
    return options_.drop(x, 0.2);
  }
  Tensor normalize(const Tensor& x) { return options_.normalize ? options_.normalize(norm2_, x) : norm2_(x); }

  NetOptions options_;
  nn::Conv2d& stem_;
  nn::BatchNorm2d& stem_norm_;
  nn::Conv2d& conv1_;
  nn::BatchNorm2d& norm1_;
  nn::Dropout& dropout1_;
  nn::Conv2d& conv2_;
  nn::BatchNorm2d& norm2_;
  nn::Conv2d& conv3_;
  nn::BatchNorm2d& norm3_;
  nn::Conv2d& conv4_;
  nn::BatchNorm2d& norm4_;
  nn::Dropout& dropout2_;
  nn::Linear& head_;
  std::vector<Tensor> inputs_, targets_;
};

class Transformer final : public Net {
 public:
  Transformer(const NetOptions& options, memory::Device device)
      : options_(options),
        tokens_(child<nn::Embedding>("tokens", vocabulary, width(), on(device), 0.3)),
        positions_(child<nn::Embedding>("positions", length(), width(), on(device), 0.3)),
        dropout_(child<nn::Dropout>("dropout", 0.1)),
        norm_(child<nn::LayerNorm>("norm", width(), on(device))) {
    for (const char* name : {"block0", "block1"}) blocks_.push_back(make_block(name, device));
    for (int i = 0; i < micro_batch_count; ++i) {
      inputs_.push_back(classes({samples(), length()}, vocabulary, i, device));
      targets_.push_back(classes({samples() * length()}, vocabulary - 2, i + 3, device));
    }
    places_ = arange(length(), DType::i64, device);
  }

  std::size_t stage_count() const override { return 7; }
  Tensor input(std::int64_t micro_batch) const override { return inputs_.at(static_cast<std::size_t>(micro_batch)); }
  std::int64_t samples() const override { return samples_of(options_); }
  std::vector<PathId> random_paths() const override {
    std::vector<PathId> paths{dropout_.path()};
    for (const Block& block : blocks_) {
      paths.push_back(block.attention_path);
      paths.push_back(block.dropout->path());
    }
    return paths;
  }
  std::unique_ptr<optim::Optimizer> make_optimizer() const override {
    return std::make_unique<optim::Adam>(
        trainable(), optim::AdamOptions{.rate = 1e-2, .weight_decay = 0.1, .narrow = update_of(options_)});
  }
  std::unique_ptr<optim::GradScaler> make_scaler() const override { return scaler_of(options_); }

  // x: (N, T) ids, then (N, T, C), ()
  Tensor run(std::size_t stage, const Tensor& x, std::int64_t micro_batch) override {
    switch (stage) {
      case 0:
        return dropout_(add(tokens_(x), positions_(places_)));
      case 1:
      case 3:
        return attend(blocks_[stage / 2], stage == 1, x);
      case 2:
      case 4:
        return feed_forward(blocks_[stage / 2 - 1], stage == 2, x);
      case 5:
        return norm_(x);
      default:
        return head(reshape(x, {-1, width()}), targets_.at(static_cast<std::size_t>(micro_batch)));
    }
  }

 private:
  struct Block {
    nn::LayerNorm *norm1, *norm2;
    nn::Linear *qkv, *out, *up, *down;
    nn::Dropout* dropout;
    PathId attention_path;
  };
  static constexpr std::int64_t vocabulary = 13, heads = 2;
  nn::TensorOptions on(memory::Device device) const { return placement_of(options_, device); }
  std::int64_t width() const { return options_.width > 0 ? options_.width : options_.is_tiny ? 4 : 32; }
  std::int64_t length() const { return options_.is_tiny ? 3 : 16; }

  Block make_block(const std::string& name, memory::Device device) {
    Block block;
    block.norm1 = &child<nn::LayerNorm>(name + ".norm1", width(), on(device));
    block.qkv = &child<nn::Linear>(name + ".qkv", width(), 3 * width(), on(device));
    block.out = &child<nn::Linear>(name + ".out", width(), width(), on(device));
    block.norm2 = &child<nn::LayerNorm>(name + ".norm2", width(), on(device));
    block.up = &child<nn::Linear>(name + ".up", width(), 4 * width(), on(device));
    block.down = &child<nn::Linear>(name + ".down", 4 * width(), width(), on(device));
    block.dropout = &child<nn::Dropout>(name + ".dropout", 0.1);
    block.attention_path = join_path(path(), name + ".attention");
    return block;
  }

  Tensor attend(const Block& block, bool is_tiled, const Tensor& x) const {
    const Tensor qkv = (*block.qkv)((*block.norm1)(x));  // (N, T, 3 C)
    Tensor mixed;                                        // (N, T, C)
    {
      const PathScope scope(block.attention_path);
      mixed = is_tiled ? apply_away(tier_, ops::Attention{heads, true, {}, 0.1, next_random_site()}, qkv, Tensor())
                       : attention_textbook(qkv, heads, {.dropout = 0.1});
    }
    return nn::residual_sum(x, (*block.dropout)((*block.out)(mixed)));
  }

  Tensor feed_forward(const Block& block, bool has_own_gelu, const Tensor& x) const {
    const Tensor h = (*block.norm2)(x);  // (N, T, C)
    Tensor wide;                         // (N, T, 4 C)
    if (has_own_gelu) {
      wide = apply_away(tier_, Elementwise<ops::GeluTanh>{}, (*block.up)(h));
    } else {
      wide = linear(operand(h), operand(block.up->weight), operand(block.up->bias), kernels::Activation::gelu_tanh);
    }
    return nn::residual_sum(x, (*block.dropout)(down(block, has_own_gelu, wide)));
  }

  Tensor down(const Block& block, bool is_first, const Tensor& wide) const {
    if (is_first || !options_.multiply) return (*block.down)(wide);
    const PathScope scope(block.down->path());
    return options_.multiply(*block.down, wide);
  }

  Tensor operand(const Tensor& t) const {
    return nn::as_operand(t, options_.precision ? options_.precision->compute : std::nullopt);
  }

  Tensor head(const Tensor& rows, const Tensor& targets) const {
    if (!options_.has_chunked_head) return cross_entropy(linear(operand(rows), operand(tokens_.weight)), targets);
    const std::int64_t chunk = rows.size(0) / 3 + 1;  // three chunks, the last one smaller
    return apply(ops::LinearCrossEntropy{.chunk_rows = chunk}, rows, tokens_.weight, Tensor(), targets);
  }

  NetOptions options_;
  nn::Embedding &tokens_, &positions_;
  nn::Dropout& dropout_;
  nn::LayerNorm& norm_;
  std::vector<Block> blocks_;
  std::vector<Tensor> inputs_, targets_;
  Tensor places_;
};

template <class N>
MakeNet maker(const char* name, const NetOptions& options) {
  return [=](memory::Device device) {
    const PathScope scope(name);
    return std::make_unique<N>(options, device);
  };
}

}  // namespace

MakeNet conv_net(const NetOptions& options) { return maker<ConvNet>("conv_net", options); }
MakeNet transformer(const NetOptions& options) { return maker<Transformer>("transformer", options); }

}  // namespace thimble::certificate
