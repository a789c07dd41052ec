#include <thimble/models/googlenet/theory.h>

#include <thimble/models/googlenet/googlenet.h>
#include <thimble/models/images.h>

namespace thimble::models::theory {
namespace googlenet_theory_detail {

// Side of the image behind a maximum of stride 2 without padding, rounded up; the last window begins inside.
std::int64_t pooled(std::int64_t side, std::int64_t kernel) {
  const std::int64_t out = (side - kernel + 1) / 2 + 1;
  return (out - 1) * 2 >= side ? out - 1 : out;
}

struct Block {
  InceptionSizes sizes;
  std::int64_t side = 0, in = 0;  // of the image that enters it
  bool is_kept = false;           // whether its result is, in the fused build

  std::int64_t pixels() const { return side * side; }
  std::int64_t conv_channels() const {
    return sizes.branch1 + sizes.reduce2 + sizes.branch2 + sizes.reduce3 + sizes.branch3 + sizes.branch4;
  }
  std::int64_t weights() const {
    return in * (sizes.branch1 + sizes.reduce2 + sizes.reduce3 + sizes.branch4) +
           9 * (sizes.reduce2 * sizes.branch2 + sizes.reduce3 * sizes.branch3);
  }
};

struct Network {
  std::int64_t stem_side = 0, inner_side = 0;  // of the images that conv1 gives and that conv2 takes
  std::int64_t pool_outputs = 0;               // elements for each sample, of the pools outside of blocks
  std::vector<Block> blocks;
};

Network walk(const ModelOptions& options) {
  Network net;
  const bool is_small = has_small_stem(options.image);
  net.stem_side = is_small ? options.image : (options.image + 2 * 3 - 7) / 2 + 1;
  net.inner_side = is_small ? net.stem_side : pooled(net.stem_side, 3);
  if (!is_small) net.pool_outputs += net.inner_side * net.inner_side * options.width;
  std::int64_t side = net.inner_side, channels = 3 * options.width;
  for (std::size_t i = 0; i < inception_blocks.size(); ++i) {
    const InceptionSizes sizes = scaled(inception_blocks[i], options.width);
    if (sizes.pool_before > 0) {
      side = pooled(side, sizes.pool_before);
      net.pool_outputs += side * side * channels;
    }
    const bool is_last = i + 1 == inception_blocks.size();
    net.blocks.push_back({sizes, side, channels, !is_last && inception_blocks[i + 1].pool_before == 0});
    channels = sizes.out();
  }
  return net;
}

void add_statistics(std::vector<Term>& terms, DType dtype, std::int64_t channels) {
  for (const char* name : {"batch-norm mean", "batch-norm rstd"}) {
    terms.push_back({name, Category::activation, statistic_of(dtype), 0, channels});
  }
}

}  // namespace googlenet_theory_detail

std::vector<Term> googlenet_block_kept(std::size_t index, const ModelOptions& options, DType dtype) {
  const ModelOptions sizes = googlenet_options(options);
  const auto net = googlenet_theory_detail::walk(sizes);
  const googlenet_theory_detail::Block& block = net.blocks.at(index);
  const bool is_textbook = sizes.build == Build::textbook, is_last = index + 1 == net.blocks.size();
  const std::int64_t read = is_textbook ? block.conv_channels() : block.sizes.reduce2 + block.sizes.reduce3;
  TermList kept(dtype);
  kept.values("conv outputs", block.pixels() * block.conv_channels());
  kept.values("relu outputs", block.pixels() * read);
  kept.values("pool output", block.pixels() * block.in);
  if (is_textbook ? !is_last : block.is_kept) kept.values("block output", block.pixels() * block.sizes.out());
  googlenet_theory_detail::add_statistics(kept.terms, dtype, block.conv_channels());
  return kept.terms;
}

std::vector<Term> googlenet_outside_kept(const ModelOptions& options, DType dtype) {
  const ModelOptions sizes = googlenet_options(options);
  const auto net = googlenet_theory_detail::walk(sizes);
  const bool is_textbook = sizes.build == Build::textbook, is_small = has_small_stem(sizes.image);
  const std::int64_t w = sizes.width, features = net.blocks.back().sizes.out();
  const std::int64_t outer = net.stem_side * net.stem_side, inner = net.inner_side * net.inner_side;
  TermList kept(dtype);
  kept.images("images", sizes.image * sizes.image * sizes.channels);
  kept.values("conv outputs", outer * w + inner * (w + 3 * w));
  // Fused, conv2 reads the first one where no pool is in between, and conv3 the second.
  kept.values("relu outputs", is_textbook ? outer * w + inner * (w + 3 * w) : inner * w * (is_small ? 2 : 1));
  googlenet_theory_detail::add_statistics(kept.terms, dtype, 5 * w);
  kept.values("pool outputs", net.pool_outputs);
  if (!is_textbook) kept.mask("pool taps", net.pool_outputs);
  if (is_textbook && sizes.dropout > 0) kept.mask("dropout mask", features);
  kept.values("fc input", features);
  kept.values("logits", sizes.classes);
  kept.statistics("logsumexp", 1);
  kept.ids("targets", 1);
  return kept.terms;
}

std::int64_t googlenet_kept_bytes(const ModelOptions& options, DType dtype, Category category, std::int64_t batch) {
  std::int64_t bytes = bytes_of(googlenet_outside_kept(options, dtype), category, batch);
  for (std::size_t i = 0; i < inception_blocks.size(); ++i) {
    bytes += bytes_of(googlenet_block_kept(i, options, dtype), category, batch);
  }
  return bytes;
}

ModelState googlenet_state(const ModelOptions& options, std::int64_t moments, DType dtype) {
  const ModelOptions sizes = googlenet_options(options);
  const auto net = googlenet_theory_detail::walk(sizes);
  const std::int64_t w = sizes.width, kernel = has_small_stem(sizes.image) ? 9 : 49;
  std::int64_t weights = kernel * sizes.channels * w + w * w + 9 * w * 3 * w, channels = 5 * w, norms = 3;
  for (const auto& block : net.blocks) {
    weights += block.weights();
    channels += block.conv_channels();
    norms += 6;
  }
  const std::int64_t head = (net.blocks.back().sizes.out() + 1) * sizes.classes;
  return state_of("googlenet_state", weights + 2 * channels + head, moments, dtype, channels, norms);
}

}  // namespace thimble::models::theory
