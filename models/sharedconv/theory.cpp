#include <thimble/models/sharedconv/theory.h>

#include <thimble/models/sharedconv/sharedconv.h>

namespace thimble::models::theory {
namespace sharedconv_theory_detail {

/// Sums over all convolutions, each with a batch norm behind it.
struct Totals {
  std::int64_t conv_outputs = 0, relu_outputs = 0;  // elements for each sample
  std::int64_t weights = 0, channels = 0, norms = 0;
  std::int64_t features = 0;  // of the head's input
};

Totals walk(const ModelOptions& sizes) {
  Totals totals;
  std::int64_t side = sizes.image, in = sizes.width;
  const auto norm = [&](std::int64_t channels) {
    totals.conv_outputs += side * side * channels;
    totals.channels += channels;
    totals.norms += 1;
  };
  totals.weights = 9 * sizes.channels * in;
  norm(in);
  totals.relu_outputs += side * side * in;
  for (std::int64_t stage = 0; stage < sharedconv_stages; ++stage) {
    const std::int64_t out = sizes.width << stage, rank = sharedconv_rank(out);
    const auto conv_weights = [&](std::int64_t from) { return sizes.shares_kernels ? from * rank : 9 * from * out; };
    totals.weights += sizes.shares_kernels ? 9 * rank * out : 0;
    for (std::int64_t block = 0; block < sizes.layers; ++block) {
      if (stage > 0 && block == 0) side = (side + 1) / 2;
      totals.weights += conv_weights(in) + conv_weights(out);
      norm(out), norm(out);
      totals.relu_outputs += 2 * side * side * out;
      if (in != out) {  // downsample
        totals.weights += in * out;
        norm(out);
      }
      in = out;
    }
  }
  totals.features = in;
  return totals;
}

}  // namespace sharedconv_theory_detail

std::vector<Term> sharedconv_kept(const ModelOptions& options, DType dtype) {
  const ModelOptions sizes = sharedconv_options(options);
  const auto totals = sharedconv_theory_detail::walk(sizes);
  TermList kept(dtype);
  kept.images("images", sizes.image * sizes.image * sizes.channels);
  kept.values("conv outputs", totals.conv_outputs);
  kept.values("relu outputs", totals.relu_outputs);
  for (const char* name : {"batch-norm mean", "batch-norm rstd"}) {
    kept.terms.push_back({name, Category::activation, statistic_of(dtype), 0, totals.channels});
  }
  kept.values("fc input", totals.features);
  kept.values("logits", sizes.classes);
  kept.statistics("logsumexp", 1);
  kept.ids("targets", 1);
  return kept.terms;
}

ModelState sharedconv_state(const ModelOptions& options, std::int64_t moments, DType dtype) {
  const ModelOptions sizes = sharedconv_options(options);
  const auto totals = sharedconv_theory_detail::walk(sizes);
  const std::int64_t head = (totals.features + 1) * sizes.classes;
  return state_of("sharedconv_state", totals.weights + 2 * totals.channels + head, moments, dtype, totals.channels,
                  totals.norms);
}

}  // namespace thimble::models::theory
