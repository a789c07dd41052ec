#include <thimble/nn/parallel/shards.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/checkpoint.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/ops/layout/gather.h>
#include <thimble/core/ops/random.h>
#include <thimble/dist/sharding/operators.h>
#include <thimble/nn/layers/module.h>
#include <thimble/nn/parallel/tokens.h>

namespace thimble::nn {
namespace {

using Cut = LinearShard::Cut;

/// A shard's range of a parameter of the whole layer, whose outputs are along `axis`.
init::ShardOf shard_of(const Shape& whole, int axis, const Cut& cut) {
  if (!cut.by_inputs) return {whole, axis, cut.shards, cut.index, cut.projections};
  return {whole, 1 - axis, cut.shards, cut.index};
}

std::int64_t own_inputs(std::int64_t in, const Cut& cut) {
  return cut.by_inputs ? shard_of({1, in}, 0, cut).shape()[1] : in;
}
std::int64_t own_outputs(std::int64_t out, const Cut& cut) {
  return cut.by_inputs ? out : shard_of({out}, 0, cut).shape()[0];
}

bool draws_bias(const LinearOptions& options) { return options.has_bias && options.deviation < 0 && options.bound < 0; }

/// A shard's name below the layer: the prefix that the layer's owner gave, and its number.
std::string name_of(const LinearOptions& options, int shard) {
  const std::string& prefix = options.prefix;
  return (prefix.empty() ? "" : prefix.substr(0, prefix.size() - 1) + ".") + std::to_string(shard);
}

}  // namespace

LinearShard::LinearShard(std::int64_t in, std::int64_t out, const TensorOptions& on, const LinearOptions& options,
                         const Cut& cut)
    : Linear(Shard(), own_inputs(in, cut), own_outputs(out, cut), on, options),
      cut_(cut),
      cut_size_(cut.by_inputs ? in : out),
      joint_(options.prefix.empty() ? '.' : '_') {
  const bool is_normal = options.deviation >= 0;
  const double bound = options.bound >= 0 ? options.bound : 1 / std::sqrt(static_cast<double>(in));
  const auto drawn = [&](const Shape& whole, int axis, const RandomSite& site) {
    const init::ShardOf shard = shard_of(whole, axis, cut);
    return is_normal ? init::normal_shard(shard, options.deviation, on.dtype, on.device, site)
                     : init::uniform_shard(shard, bound, on.dtype, on.device, site);
  };
  weight = add_parameter("weight",
                         options.weight_is_in_out ? drawn({in, out}, 1, cut.weight) : drawn({out, in}, 0, cut.weight));
  if (!options.has_bias) return;
  bias = add_parameter(
      "bias", draws_bias(options) ? drawn({out}, 0, cut.bias) : init::constant({outputs()}, 0, on.dtype, on.device));
}

std::optional<PlaceInWhole> LinearShard::place_in_whole(const Tensor& parameter) const {
  const int axis = parameter.rank() == 2 && weight_is_in_out() ? 1 : 0;  // of the outputs
  PlaceInWhole place{shard_of(parameter.shape(), axis, cut_), joint_};
  place.shard.whole[place.shard.axis] = cut_size_;
  return place;
}

EmbeddingShard::EmbeddingShard(const init::ShardOf& shard, double deviation, const RandomSite& site,
                               const TensorOptions& on)
    : weight(add_parameter("weight", init::normal_shard(shard, deviation, on.dtype, on.device, site))), shard_(shard) {}

Tensor EmbeddingShard::forward(const Tensor& ids) {
  const std::int64_t all = shard_.whole[0];
  return apply(ops::Embedding{dist::shard_begin(all, shard_.shards, shard_.index), all}, weight, ids);
}

namespace {

/// Makes this rank's shards as children of `layer`, by make(name, cut).
template <class Make>
std::vector<Layer*> make_shards(const Linear& whole, const dist::ShardGroup& group, Cut& cut, const Make& make) {
  cut.shards = group.shards;
  cut.weight = initial_random_site();
  if (draws_bias(whole.options())) cut.bias = initial_random_site();
  std::vector<Layer*> shards;
  for (int p = group.first(); p < group.first() + group.count(); ++p) {
    cut.index = p;
    shards.push_back(&make(name_of(whole.options(), p), cut));
  }
  return shards;
}

}  // namespace

Tensor ShardedLayer::forward(const Tensor& x) {
  if (turn_ < shards_.size()) return (*shards_[turn_])(x);
  throw ValueError(quote(path_name(path())) + " is in shards: expected a call within nn::run_sharded");
}

ColumnParallelLinear::ColumnParallelLinear(const Linear& whole, const TensorOptions& on, const ShardRules& rules,
                                           std::int64_t projections)
    : ShardedLayer(rules.turn()) {
  LinearShard::Cut cut;
  cut.projections = projections;
  shards_ = make_shards(whole, rules.group(), cut, [&](const std::string& name, const LinearShard::Cut& own) -> Layer& {
    return child<LinearShard>(name, whole.inputs(), whole.outputs(), on, whole.options(), own);
  });
}

RowParallelLinear::RowParallelLinear(const Linear& whole, const TensorOptions& on, const ShardRules& rules)
    : ShardedLayer(rules.turn()), compute(on.compute), rules_(rules) {
  LinearOptions options = whole.options();
  options.has_bias = false;
  LinearShard::Cut cut;
  cut.by_inputs = true;
  shards_ = make_shards(whole, rules.group(), cut, [&](const std::string& name, const LinearShard::Cut& own) -> Layer& {
    return child<LinearShard>(name, whole.inputs(), whole.outputs(), on, options, own);
  });
  if (whole.options().has_bias) {
    const Shape shape{whole.outputs()};
    const double bound = 1 / std::sqrt(static_cast<double>(whole.inputs()));
    bias = add_parameter("bias", draws_bias(whole.options())
                                     ? init::uniform_shard({shape}, bound, on.dtype, on.device, cut.bias)
                                     : init::constant(shape, 0, on.dtype, on.device));
  }
}

VocabularyParallelEmbedding::VocabularyParallelEmbedding(const Shape& whole, const TensorOptions& on, double deviation,
                                                         const dist::ShardGroup& group)
    : group_(group) {
  const RandomSite site = initial_random_site();
  for (int p = group.first(); p < group.first() + group.count(); ++p) {
    const init::ShardOf shard{whole, 0, group.shards, p};
    shards_.push_back(&child<EmbeddingShard>(std::to_string(p), shard, deviation, site, on));
  }
}

Tensor VocabularyParallelEmbedding::forward(const Tensor& ids) {
  std::vector<Tensor> terms;
  for (EmbeddingShard* const shard : shards_) terms.push_back((*shard)(ids));
  return dist::sum_shards(group_, terms);
}

ShardedDropout::ShardedDropout(const Dropout& whole, const ShardRules& rules) : ShardedLayer(rules.turn()) {
  const dist::ShardGroup& group = rules.group();
  for (int p = group.first(); p < group.first() + group.count(); ++p) {
    shards_.push_back(&child<Dropout>(std::to_string(p), whole.probability(), whole.is_textbook()));
  }
}

const ShardedChild* ShardRules::find(std::string_view path) const {
  const auto found = std::ranges::find_if(table_, [&](const ShardedChild& c) { return ends_as(path, c.name); });
  return found == table_.end() ? nullptr : &*found;
}

std::unique_ptr<Layer> ShardRules::for_linear(Linear& made, const TensorOptions& on) const {
  const std::string& prefix = made.options().prefix;
  const std::string own = prefix.empty() ? "" : "." + prefix.substr(0, prefix.size() - 1);
  const ShardedChild* const rule = find(std::string(path_name(made.path())) + own);
  if (rule == nullptr) return nullptr;
  if (on.fp8 || on.coded_weights != nullptr) {
    throw ValueError(quote(rule->name) + ": a layer in shards has " + (on.fp8 ? "no FP8" : "no coded weights") +
                     "; expected f32, f16 or bf16");
  }
  const bool is_row = rule->kind == Sharding::row;
  const std::int64_t projections = is_row ? 1 : rule->projections, size = is_row ? made.inputs() : made.outputs();
  if (rule->kind != Sharding::vocabulary && size % (group_.shards * projections) != 0) {
    throw ValueError(quote(rule->name) + ": " + std::to_string(size) + (is_row ? " inputs" : " outputs") +
                     (projections > 1 ? " in " + std::to_string(projections) + " projections" : "") +
                     " are not divisible by " + std::to_string(group_.shards) + " shards");
  }
  if (is_row && made.activation() != kernels::Activation::none)
    throw ValueError(quote(rule->name) + ": expected no activation in a row-sharded layer; call it on the sum");
  if (is_row) return std::make_unique<RowParallelLinear>(made, on, *this);
  return std::make_unique<ColumnParallelLinear>(made, on, *this, rule->projections);
}

std::unique_ptr<Layer> ShardRules::for_table(const Shape& shape, const TensorOptions& on, double deviation) const {
  const ShardedChild* const rule = find(path_name(context().path));
  if (rule == nullptr) return nullptr;
  if (shape[0] < group_.shards)
    throw ValueError(quote(rule->name) + ": expected a row for each shard, got " + to_string(shape));
  return std::make_unique<VocabularyParallelEmbedding>(shape, on, deviation, group_);
}

void ShardRules::finish(Module& module) const {
  std::vector<Dropout*> found;
  module.for_each_module([&](Module& m) {
    auto* const dropout = dynamic_cast<Dropout*>(&m);
    if (dropout != nullptr && find(path_name(m.path())) != nullptr) found.push_back(dropout);
  });
  for (Dropout* const dropout : found) replace<ShardedDropout>(*dropout, *this);
}

Tensor ShardRules::run(Tensor x, const RowParallelLinear& last, FunctionRef<Tensor(Tensor)> forward) const {
  x = as_operand(x, last.compute);  // once for all shards
  Tensor sum;
  {
    struct Turns {
      std::size_t& turn;
      std::size_t before = turn;
      ~Turns() { turn = before; }
    } turns{turn_};
    std::optional<SegmentScope> segment;
    if (group_.cuts_sequence) segment.emplace(keep_all_but_gathered);
    const std::vector<Tensor> terms =
        dist::for_each_shard(group_, std::exchange(x, Tensor()), [&](std::size_t p, Tensor own) {
          const PathScope scope(std::to_string(group_.first() + static_cast<int>(p)));
          turn_ = p;
          return forward(std::move(own));
        });
    sum = dist::sum_shards(group_, terms);
  }
  return last.bias.defined() ? add_to_tokens(group_, sum, as_operand(last.bias, last.compute)) : sum;
}

Tensor run_sharded(Tensor x, const Linear& last, FunctionRef<Tensor(Tensor)> forward) {
  const auto* const row = dynamic_cast<const RowParallelLinear*>(last.replacement());
  return row != nullptr ? row->rules().run(std::move(x), *row, forward) : forward(std::move(x));
}

void each_shard_weight(Linear& layer, FunctionRef<void(Parameter&)> f) {
  const auto* const sharded = dynamic_cast<ShardedLayer*>(layer.replacement());
  if (sharded == nullptr) return f(layer.weight);
  for (Layer* const shard : sharded->shards()) f(dynamic_cast<Linear&>(*shard).weight);
}

void each_shard_weight(Embedding& table, FunctionRef<void(Parameter&)> f) {
  const auto* const sharded = dynamic_cast<VocabularyParallelEmbedding*>(table.replacement());
  if (sharded == nullptr) return f(table.weight);
  for (EmbeddingShard* const shard : sharded->shards()) f(shard->weight);
}

std::vector<int> shard_layers(const std::vector<Module*>& modules, const std::vector<Named>& parameters) {
  std::map<const tape::Leaf*, int> layers;
  int count = 0;
  const auto number = [&](const Module& below) {
    bool is_shard = false;
    for (const NamedTensor& p : below.parameters()) {
      if (!below.place_in_whole(p.tensor)) continue;
      layers[p.tensor.leaf().get()] = count;
      is_shard = true;
    }
    if (is_shard) ++count;
  };
  for (const Module* const module : modules) module->for_each_module(number);
  std::vector<int> list;
  for (const Named& p : parameters) {
    const auto found = layers.find(p.tensor.leaf().get());
    list.push_back(found == layers.end() ? -1 : found->second);
  }
  return list;
}

}  // namespace thimble::nn
