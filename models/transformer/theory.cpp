#include <thimble/models/transformer/theory.h>

#include <thimble/core/numbers/integers.h>

namespace thimble::models {
namespace {

// The codes that FP8 keeps in addition to the coded inputs of products, and the scales of all codes.
void add_fp8_codes(TermList& kept, const TransformerLayers& layers, const nn::Fp8Recipe& recipe) {
  const std::int64_t s = layers.sequence, h = layers.width;
  const DType code = recipe.format().forward;
  if (layers.build == Build::fused) kept.values("attention output codes", s * h, code);
  if (layers.readers > 1) kept.values("codes of other readers", (layers.readers - 1) * s * h, code);
  if (recipe.kind == Fp8Scaling::block) {
    const std::int64_t of_row = (layers.readers + 2) * ceil_div(h, fp8_block) + ceil_div(4 * h, fp8_block);
    kept.values("scales of codes", s * of_row, DType::u8);
  } else {
    kept.terms.push_back({"scales of codes", memory::Category::activation, DType::f32, 0, layers.readers + 3});
  }
}

std::vector<Term> layer_kept(const TransformerLayers& layers, const nn::Precision& precision) {
  const bool is_textbook = layers.build == Build::textbook, is_pre = layers.norms == NormPlace::pre;
  const bool is_fp8 = has_fp8_layers(precision, layers.width);
  const std::int64_t s = layers.sequence, h = layers.width, sh = s * h, as = layers.heads * s;
  const DType whole = precision.parameters, product = precision.compute.value_or(whole);
  const DType operand = is_fp8 ? precision.fp8->format().forward : product;  // the dtype that products read
  const auto own = [&](std::int64_t all) { return layers.group.own(all); };
  const auto stream = [&](std::int64_t all) { return own_stream(layers.group, all); };
  TermList kept(precision);
  kept.statistics("norm statistics", stream(2 * 2 * s));  // two norms, mean and rstd
  if (is_pre) kept.values("norm 1 output", stream(sh), operand);
  kept.values("qkv", own(3 * sh));
  if (is_textbook) kept.values("probabilities", own(as * s));
  if (is_textbook && layers.drops_probabilities) kept.mask("probability mask", own(as * s));
  if (is_textbook && layers.drops_probabilities) kept.values("dropped probabilities", own(as * s));
  kept.values("attention output", own(sh), is_textbook ? operand : product);
  if (!is_textbook) kept.statistics("attention logsumexp", own(as));
  if (is_textbook && layers.drops_results) kept.mask("attention mask", stream(sh));
  kept.values(is_pre ? "residual" : "norm 1 input", stream(sh), whole);
  kept.values(is_pre ? "norm 2 output" : "norm 1 output", stream(sh), operand);
  const bool is_tiled = layers.feed_forward == FeedForward::tiled;
  if (!is_tiled) kept.values("gelu input", own(4 * sh));
  if (is_textbook && layers.drops_gelu) kept.mask("gelu mask", own(4 * sh));
  if (!is_tiled) kept.values("gelu output", own(4 * sh), operand);
  if (is_textbook && layers.drops_results) kept.mask("mlp mask", stream(sh));
  if (!is_pre) kept.values("norm 2 input", stream(sh), whole);
  kept.values("layer output", stream(sh), is_pre ? whole : operand);
  if (is_fp8) add_fp8_codes(kept, layers, *precision.fp8);
  kept.casts("weight casts", own(12 * h * h) + (is_tiled ? 4 * h : 0));
  return kept.terms;
}

}  // namespace

std::int64_t own_stream(const dist::ShardGroup& group, std::int64_t all) {
  return group.cuts_sequence ? group.own(all) : all;
}

TransformerLayers token_layers(const char* path, const ModelOptions& sizes, NormPlace norms) {
  TransformerLayers layers;
  layers.path = path, layers.count = sizes.layers;
  layers.sequence = sizes.sequence, layers.width = sizes.width, layers.heads = sizes.heads;
  layers.drops_probabilities = layers.drops_results = sizes.dropout > 0;
  layers.norms = norms;
  layers.build = sizes.build, layers.feed_forward = sizes.feed_forward;
  layers.group = sizes.group;
  return layers;
}

bool has_fp8_layers(const nn::Precision& precision, std::int64_t width) {
  return precision.fp8 && width % fp8_multiple == 0;
}

std::int64_t delayed_fp8_state_bytes(const nn::Fp8Recipe& recipe) {
  const std::int64_t numbers = 3 * recipe.history + 3, counts = 3 * 2;
  return 4 * numbers + 8 * counts;
}

void add_layers(Theory& theory, const TransformerLayers& layers) {
  const std::int64_t n = layers.count, h = layers.width, of_qkv = 3 * h / layers.readers;
  theory.norm(h, 2 * n);
  const std::int64_t t = layers.group.shards, of_parts = n * layers.group.count();
  for (const Shape& weight : {Shape{of_qkv / t, h}, Shape{of_qkv / t}})
    theory.weight(weight, layers.readers * of_parts);
  for (const Shape& weight : {Shape{h, h / t}, Shape{4 * h / t, h}, Shape{4 * h / t}, Shape{h, 4 * h / t}}) {
    theory.weight(weight, of_parts);
  }
  theory.weight({h}, 2 * n);  // biases, added after the sum over shards
  if (has_fp8_layers(theory.precision, h) && theory.precision.fp8->kind == Fp8Scaling::delayed) {
    theory.buffers += n * (layers.readers + 3) * delayed_fp8_state_bytes(*theory.precision.fp8);
  }
  if (!theory.unknown.empty()) return;
  for (std::int64_t i = 0; i < n; ++i) {
    theory.layers.push_back({layers.path + std::to_string(i), layer_kept(layers, theory.precision)});
  }
}

void add_token_rows(Theory& theory, const ModelOptions& sizes, std::int64_t width) {
  for (int p = 0; p < sizes.group.count(); ++p) {
    const std::int64_t rows = sizes.group.size(sizes.vocabulary, p);
    theory.weight(width > 0 ? Shape{rows, width} : Shape{rows});
  }
}

void add_token_loss(TermList& kept, const ModelOptions& sizes) {
  const bool is_textbook = sizes.build == Build::textbook;
  kept.values(is_textbook ? "log-probabilities" : "logits", sizes.sequence * sizes.group.own(sizes.vocabulary));
  if (!is_textbook) kept.statistics("logsumexp", sizes.sequence);
  kept.ids("targets", sizes.sequence);
}

}  // namespace thimble::models
