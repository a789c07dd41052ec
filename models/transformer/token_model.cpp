#include <thimble/models/transformer/token_model.h>

#include <utility>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/random/random.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/core/tensor/view.h>
#include <thimble/dist/parts/class_parts.h>
#include <thimble/dist/parts/parts.h>
#include <thimble/dist/parts/token_parts.h>
#include <thimble/models/transformer/sequence_parts.h>
#include <thimble/models/transformer/transformer.h>

namespace thimble::models {

TokenModel::TokenModel(const ModelOptions& options, std::optional<DType> compute) : Model(options), compute_(compute) {
  const dist::Team& team = options.team;
  if (team.parts == 1) return;
  const std::string start = (is_cut() ? "a vocabulary in " : "tokens in ") + std::to_string(team.parts) + " parts: ";
  if (is_cut() && options.vocabulary < team.parts) {
    throw ValueError(start + std::to_string(options.vocabulary) + " tokens; at most as many parts are allowed");
  }
  if (team.cuts_sequence && options.sequence % team.parts != 0) {
    throw ValueError("a sequence in " + std::to_string(team.parts) + " parts: " + std::to_string(options.sequence) +
                     " tokens; a divisor is allowed");
  }
  if (options.head == Head::chunked) throw ValueError(start + "not with a chunked head; a full one is allowed");
  if (!is_cut() && options.build == Build::textbook) {
    throw ValueError(start + "not in the textbook build; the fused one is allowed");
  }
}

Tensor TokenModel::tied_weight(const std::vector<nn::Embedding*>& table, std::size_t p) {
  const Tensor& weight = table[p]->weight;
  if (!options_.stage.has_all || options_.stage.count == 1) return weight;
  aliases_.resize(table.size());
  Tensor& alias = aliases_[p];
  if (alias.defined() && alias.storage() == weight.storage()) return alias;
  alias = weight.detach();
  alias.require_grad();
  alias.leaf()->is_input = true;  // no optimizer has it
  return alias;
}

Model::SharedByStages TokenModel::shared_parts(const std::vector<nn::Embedding*>& table) {
  SharedByStages shared;
  if (options_.stage.count == 1) return shared;
  for (std::size_t p = 0; p < table.size(); ++p) {
    if (options_.stage.is_first()) shared.first.push_back(table[p]->weight);
    if (options_.stage.is_last()) shared.last.push_back(tied_weight(table, p));
  }
  return shared;
}

RandomSite TokenModel::site_of_whole(const std::string& name) const {
  const PathScope own(path());
  const PathScope below(name);
  return initial_random_site();
}

std::vector<nn::Embedding*> TokenModel::cut_table(const std::string& name, const nn::TensorOptions& on,
                                                  double deviation) {
  if (!options_.stage.is_first() && !options_.stage.is_last()) return {};
  const ParameterStoreScope where(options_.stage.is_first() ? context().parameter_store : nullptr);
  const std::int64_t rows = options_.vocabulary, width = options_.width;
  if (!is_cut()) return {&child<nn::Embedding>(name, rows, width, on, deviation)};
  nn::TablePart part;
  part.weight = site_of_whole(name);
  part.parts = options_.team.parts;
  std::vector<nn::Embedding*> parts;
  for (int p = options_.team.first(); p < options_.team.first() + options_.team.count(); ++p) {
    part.part = p;
    parts.push_back(&child<nn::Embedding>(name + "." + std::to_string(p), rows, width, on, deviation, part));
  }
  return parts;
}

std::vector<nn::Linear*> TokenModel::cut_head(const std::string& name, const nn::TensorOptions& on,
                                              const nn::LinearOptions& options) {
  const std::int64_t width = options_.width, classes = options_.vocabulary;
  if (!is_cut()) return {&child<nn::Linear>(name, width, classes, on.outside_blocks(), options)};
  nn::LinearPart part;
  part.weight = site_of_whole(name);
  part.parts = options_.team.parts;
  std::vector<nn::Linear*> parts;
  nn::LinearOptions of_part = options;
  for (int p = options_.team.first(); p < options_.team.first() + options_.team.count(); ++p) {
    part.part = p;
    of_part.part = part;
    parts.push_back(&child<nn::Linear>(name + "." + std::to_string(p), width, classes, on.outside_blocks(), of_part));
  }
  return parts;
}

Tensor TokenModel::look_up(const std::vector<nn::Embedding*>& table, const Tensor& ids) {
  if (!is_cut()) return look_up_tokens(options_.team, *table[0], ids);
  std::vector<Tensor> terms;
  for (nn::Embedding* part : table) terms.push_back((*part)(ids));
  return dist::sum_shards(options_.team, terms);
}

Tensor TokenModel::score(const Tensor& x, FunctionRef<Tensor(std::size_t)> weight_of,
                         FunctionRef<Tensor(std::size_t)> bias_of) {
  if (options_.team.has_whole_layers) return linear_tokens(options_.team, x, weight_of(0), bias_of(0), compute_);
  const auto of_part = [&](std::size_t p, const Tensor& in) {
    return linear(in, nn::as_operand(weight_of(p), compute_), nn::as_operand(bias_of(p), compute_));
  };
  const Tensor operand = nn::as_operand(x, compute_);
  if (!is_cut()) return of_part(0, operand);
  std::optional<SegmentScope> segment;
  if (options_.team.cuts_sequence) segment.emplace(keep_all_but_gathered);
  std::vector<Tensor> parts = dist::of_parts(options_.team, operand, of_part);
  return parts.size() == 1 ? parts[0] : concat(parts, -1);
}

Tensor TokenModel::loss_of(const Tensor& logits, const Tensor& targets) {
  if (options_.team.parts == 1) return token_loss(logits, targets, options_.build);
  const Tensor rows = reshape(logits, {-1, logits.size(-1)});  // (B T, V), of which this rank has its parts
  if (options_.team.has_whole_layers) return apply(dist::TokenPartsLoss{options_.team}, rows, targets);
  const Tensor classes = view::reshape(contiguous(targets), {-1});
  return apply(dist::ClassPartsLoss{options_.team, options_.vocabulary, options_.build == Build::textbook}, rows,
               classes);
}

void TokenModel::require_whole_vocabulary(const char* name) const {
  if (options_.team.parts == 1) return;
  throw ValueError(std::string(name) + ": scores of a " + (is_cut() ? "vocabulary" : "sequence") + " in " +
                   std::to_string(options_.team.parts) +
                   " parts, which are never side by side; loss(), or one part, is allowed");
}

}  // namespace thimble::models
