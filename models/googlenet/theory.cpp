#include <thimble/models/googlenet/googlenet.h>
#include <thimble/models/images.h>

namespace thimble::models {
namespace {

// Side of the image after a max pool of stride 2 without padding, rounded up; the last window begins inside.
std::int64_t pooled(std::int64_t side, std::int64_t kernel) {
  const std::int64_t out = (side - kernel + 1) / 2 + 1;
  return (out - 1) * 2 >= side ? out - 1 : out;
}

}  // namespace

Theory googlenet_theory(std::string_view, const ModelOptions& options, const nn::Precision& precision) {
  const ModelOptions sizes = googlenet_options(options);
  const bool is_textbook = sizes.build == Build::textbook, is_small = has_small_stem(sizes.image);
  const std::int64_t w = sizes.width;
  Theory theory(precision);
  theory.conv_norm(w, is_small ? 3 : 7, sizes.channels);
  const std::int64_t first_weights = theory.weight_elements();
  theory.conv_norm(w, 1, w);
  theory.conv_norm(3 * w, 3, w);
  const std::int64_t stem_weights = theory.weight_elements() - first_weights;
  const std::int64_t outer_side = is_small ? sizes.image : (sizes.image + 2 * 3 - 7) / 2 + 1;
  const std::int64_t inner_side = is_small ? outer_side : pooled(outer_side, 3);
  const std::int64_t outer = outer_side * outer_side, inner = inner_side * inner_side;
  std::int64_t side = inner_side, channels = 3 * w;
  std::int64_t pool_outputs = is_small ? 0 : inner * w;  // elements per sample, of the pools outside blocks
  for (std::size_t i = 0; i < inception_blocks.size(); ++i) {
    const InceptionSizes block = scaled(inception_blocks[i], w);
    if (block.pool_before > 0) {
      side = pooled(side, block.pool_before);
      pool_outputs += side * side * channels;
    }
    const std::int64_t weights_before = theory.weight_elements();
    for (const std::int64_t out : {block.branch1, block.reduce2, block.reduce3, block.branch4}) {
      theory.conv_norm(out, 1, channels);
    }
    theory.conv_norm(block.branch2, 3, block.reduce2);
    theory.conv_norm(block.branch3, 3, block.reduce3);
    const std::int64_t pixels = side * side, reduced = block.reduce2 + block.reduce3;
    const std::int64_t convs = block.out() + reduced;  // channels of the six convolutions
    const bool is_last = i + 1 == inception_blocks.size();
    const bool is_kept = !is_last && (is_textbook || inception_blocks[i + 1].pool_before == 0);
    TermList kept(precision);
    kept.values("conv outputs", pixels * convs);
    kept.values("relu outputs", pixels * (is_textbook ? convs : reduced));
    kept.values("pool output", pixels * channels);
    if (is_kept) kept.values("block output", pixels * block.out());
    kept.batch_norms(convs);
    kept.casts("weight casts", theory.weight_elements() - weights_before);
    theory.layers.push_back({"googlenet." + std::string(block.name), kept.terms});
    channels = block.out();
  }
  theory.linear(sizes.classes, channels);
  TermList kept(precision);
  kept.images("images", sizes.image * sizes.image * sizes.channels);
  kept.values("conv outputs", outer * w + inner * (w + 3 * w));
  // Fused, conv3 reads the second relu, and without a pool between them conv2 the first.
  kept.values("relu outputs", is_textbook ? outer * w + inner * (w + 3 * w) : inner * w * (is_small ? 2 : 1));
  kept.batch_norms(w + w + 3 * w);
  kept.values("pool outputs", pool_outputs);
  if (!is_textbook) kept.mask("pool taps", pool_outputs);
  if (is_textbook && sizes.dropout > 0) kept.mask("dropout mask", channels);
  kept.values("fc input", channels);
  kept.classes(sizes.classes);
  kept.casts("weight casts", stem_weights + sizes.classes * channels);
  theory.outside = kept.terms;
  return theory;
}

}  // namespace thimble::models
