#include <thimble/models/transformer/cut_block.h>

#include <algorithm>
#include <map>
#include <utility>

#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/random/random.h>
#include <thimble/dist/parts/parts.h>
#include <thimble/models/transformer/sequence_parts.h>
#include <thimble/nn/layers/init.h>

namespace thimble::models {

CutBlock::CutBlock(const ModelOptions& sizes, const nn::TensorOptions& on) : team_(sizes.team), compute_(on.compute) {
  if (team_.parts == 1) return;
  const std::string start = (is_cut() ? "blocks in " : "tokens in ") + std::to_string(team_.parts) + " parts: ";
  const auto divides = [&](std::int64_t count, const char* what) {
    if (count % team_.parts == 0) return;
    throw ValueError(start + std::to_string(count) + " " + what + "; a divisor is allowed");
  };
  divides(sizes.heads, "heads");
  divides(sizes.key_heads, "heads of keys and values");
  if (is_cut()) divides(sizes.hidden, "columns inside of the feed-forward layer");
  if (sizes.feed_forward == FeedForward::tiled) {
    throw ValueError(start + "not with feed-forward layers in tiles; full ones are allowed");
  }
  if (on.fp8) throw ValueError(start + "not with products in FP8; f32, f16 and bf16 are allowed");
  if (on.coded_weights != nullptr) throw ValueError(start + "not with coded weights; plain ones are allowed");
}

CutLinear CutBlock::cut(const std::string& name, std::int64_t in, std::int64_t out, const nn::TensorOptions& on,
                        nn::LinearOptions options, nn::LinearPart part, std::optional<RandomSite> drawn_at) {
  CutLinear layer;
  {
    const PathScope own(path());
    const PathScope below(name);
    part.weight = drawn_at ? *drawn_at : initial_random_site();
    if (drawn_at) part.joint = '_';
    if (options.has_bias && options.deviation < 0 && options.bound < 0) part.bias = initial_random_site();
  }
  const bool has_bias = options.has_bias;
  if (part.by_inputs) options.has_bias = false;
  part.parts = team_.parts;
  for (int p = team_.first(); p < team_.first() + team_.count(); ++p) {
    part.part = p;
    options.part = part;
    layer.parts.push_back(&child<nn::Linear>(name + "." + std::to_string(p), in, out, on, options));
  }
  if (has_bias && part.by_inputs) {
    layer.bias = add_parameter(name + ".bias", nn::init::constant({out}, 0, on.dtype, on.device));
  }
  return layer;
}

CutLinear CutBlock::cut_outputs(const std::string& name, std::int64_t in, std::int64_t out, const nn::TensorOptions& on,
                                const nn::LinearOptions& options, std::int64_t stretches,
                                std::optional<RandomSite> drawn_at) {
  if (!is_cut()) return {{&child<nn::Linear>(name, in, out, on, options)}, {}};
  nn::LinearPart part;
  part.stretches = stretches;
  return cut(name, in, out, on, options, part, drawn_at);
}

CutLinear CutBlock::cut_inputs(const std::string& name, std::int64_t in, std::int64_t out, const nn::TensorOptions& on,
                               const nn::LinearOptions& options) {
  if (!is_cut()) return {{&child<nn::Linear>(name, in, out, on, options)}, {}};
  nn::LinearPart part;
  part.by_inputs = true;
  return cut(name, in, out, on, options, part, {});
}

std::vector<nn::Dropout*> CutBlock::cut_dropout(const std::string& name, double probability, bool is_textbook) {
  if (!is_cut()) return {&child<nn::Dropout>(name, probability, is_textbook)};
  std::vector<nn::Dropout*> parts;
  for (int p = team_.first(); p < team_.first() + team_.count(); ++p) {
    parts.push_back(&child<nn::Dropout>(name + "." + std::to_string(p), probability, is_textbook));
  }
  return parts;
}

Tensor CutBlock::sum_of_parts(Tensor x, const Tensor& bias, FunctionRef<Tensor(std::size_t, Tensor)> term_of) {
  if (!is_cut()) return term_of(0, std::move(x));
  x = nn::as_operand(x, compute_);  // once for all parts
  Tensor sum;
  {
    std::optional<SegmentScope> segment;
    if (team_.cuts_sequence) segment.emplace(keep_all_but_gathered);
    const std::vector<Tensor> terms = dist::of_parts(team_, std::exchange(x, Tensor()), term_of);
    sum = dist::sum_shards(team_, terms);
  }
  return bias.defined() ? add_to_tokens(team_, sum, nn::as_operand(bias, compute_)) : sum;
}

Tensor CutBlock::product(nn::Linear& layer, Tensor x) const {
  return team_.has_whole_layers ? linear_tokens(team_, layer, x) : layer(std::exchange(x, Tensor()));
}

std::string CutBlock::part_name(const char* name, std::size_t p) const {
  return team_.parts > 1 ? std::string(name) + "." + std::to_string(team_.first() + static_cast<int>(p)) : name;
}

std::vector<int> part_layers(const Model& model, const std::vector<nn::Named>& parameters) {
  std::map<const Leaf*, int> layers;
  int count = 0;
  model.for_each_module([&](const nn::Module& module) {
    bool is_part = false;
    for (const nn::NamedTensor& p : module.parameters()) {
      if (!module.place_in_whole(p.tensor)) continue;
      layers[p.tensor.leaf().get()] = count;
      is_part = true;
    }
    if (is_part) ++count;
  });
  std::vector<int> list;
  for (const nn::Named& p : parameters) {
    const auto found = layers.find(p.tensor.leaf().get());
    list.push_back(found == layers.end() ? -1 : found->second);
  }
  return list;
}

}  // namespace thimble::models
