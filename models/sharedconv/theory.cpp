#include <thimble/models/sharedconv/sharedconv.h>

namespace thimble::models {

Theory sharedconv_theory(std::string_view, const ModelOptions& options, const nn::Precision& precision) {
  const ModelOptions sizes = sharedconv_options(options);
  Theory theory(precision);
  std::int64_t side = sizes.image, in = sizes.width;
  std::int64_t conv_outputs = side * side * in, relu_outputs = conv_outputs, norm_channels = in;
  theory.conv_norm(in, 3, sizes.channels);
  const std::int64_t stem_weights = theory.weight_elements();
  std::int64_t repeated = 0;  // elements of bases that further convolutions cast again
  for (std::int64_t stage = 0; stage < sharedconv_stages; ++stage) {
    const std::int64_t out = sizes.width << stage, rank = sharedconv_rank(out);
    if (sizes.shares_kernels) {
      theory.weight({rank, out, 3, 3});
      repeated += (2 * sizes.layers - 1) * 9 * rank * out;
    }
    for (std::int64_t block = 0; block < sizes.layers; ++block) {
      if (stage > 0 && block == 0) side = (side + 1) / 2;
      for (const std::int64_t from : {in, out}) {
        theory.weight(sizes.shares_kernels ? Shape{from, rank} : Shape{out, 3, 3, from});
        theory.batch_norm(out);
      }
      const std::int64_t convs = in != out ? 3 : 2;
      if (in != out) theory.conv_norm(out, 1, in);  // downsample
      conv_outputs += convs * side * side * out;
      norm_channels += convs * out;
      relu_outputs += 2 * side * side * out;
      in = out;
    }
  }
  theory.linear(sizes.classes, in);
  if (sizes.build == Build::fused) {
    theory.unknown = "the fused build of shared kernels keeps";
    return theory;
  }
  TermList kept(precision);
  kept.images("images", sizes.image * sizes.image * sizes.channels);
  kept.values("conv outputs", conv_outputs);
  kept.values("relu outputs", relu_outputs);
  kept.batch_norms(norm_channels);
  kept.values("fc input", in);
  kept.classes(sizes.classes);
  kept.casts("weight casts", theory.weight_elements() + repeated - stem_weights);  // the images need no gradient
  theory.outside = kept.terms;
  return theory;
}

}  // namespace thimble::models
