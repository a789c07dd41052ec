#include <thimble/models/transformer/sequence_parts.h>

#include <string>
#include <vector>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/elementwise/dropout.h>
#include <thimble/core/ops/norm/layer_norm.h>
#include <thimble/core/random/random.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/view.h>
#include <thimble/dist/parts/heads.h>
#include <thimble/dist/parts/parts.h>
#include <thimble/dist/parts/sequence.h>

namespace thimble::models {

Tensor norm_tokens(const dist::Team& team, nn::LayerNorm& norm, const Tensor& x) {
  if (!team.cuts_sequence) return norm(x);
  const PathScope scope(norm.path());
  return apply(ops::LayerNorm{1, norm.epsilon(), team.count()}, x, dist::copy_to_group(team, norm.weight),
               dist::copy_to_group(team, norm.bias));
}

Tensor norm_tokens(const dist::Team& team, nn::RmsNorm& norm, const Tensor& x) {
  if (!team.cuts_sequence) return norm(x);
  const PathScope scope(norm.path());
  return apply(ops::RmsNorm{1, norm.epsilon(), team.count()}, x, dist::copy_to_group(team, norm.weight));
}

namespace sequence_parts_detail {

// A parameter that parts enter. Where all parts are here their gradients are added up before those of its other
// readers, as a team's are.
Tensor for_parts(const dist::Team& team, const Tensor& parameter) {
  return team.ranks == nullptr && parameter.defined() ? dist::copy_to_group(team, parameter) : parameter;
}

// Each part of x by itself, with the parameters as that part reads them.
Tensor linear_parts(const dist::Team& team, const Tensor& x, const Tensor& weight, const Tensor& bias,
                    std::optional<DType> compute, kernels::Activation activation, bool weight_is_in_out) {
  const Tensor in = nn::as_operand(x, compute);
  const std::int64_t samples = x.size(0) / team.count();
  const Tensor all_weight = for_parts(team, weight), all_bias = for_parts(team, bias);
  std::vector<Tensor> parts;
  for (int p = 0; p < team.count(); ++p) {
    const Tensor own = team.count() == 1 ? in : slice(in, 0, p * samples, (p + 1) * samples);
    const auto entered = [&](const Tensor& t) {
      return t.defined() ? nn::as_operand(dist::copy_to_group(team, t), compute) : Tensor();
    };
    parts.push_back(linear(own, entered(all_weight), entered(all_bias), activation, weight_is_in_out));
  }
  return parts.size() == 1 ? parts[0] : concat(parts, 0);
}

}  // namespace sequence_parts_detail

Tensor linear_tokens(const dist::Team& team, nn::Linear& layer, const Tensor& x) {
  if (!team.cuts_sequence) return layer(x);
  const PathScope scope(layer.path());
  return sequence_parts_detail::linear_parts(team, x, layer.weight, layer.bias, layer.compute(), layer.activation(),
                                             layer.weight_is_in_out());
}

Tensor linear_tokens(const dist::Team& team, const Tensor& x, const Tensor& weight, const Tensor& bias,
                     std::optional<DType> compute) {
  return sequence_parts_detail::linear_parts(team, x, weight, bias, compute, kernels::Activation::none, false);
}

Tensor look_up_tokens(const dist::Team& team, nn::Embedding& table, const Tensor& ids) {
  if (!team.cuts_sequence) return table(ids);
  if (ids.size(1) % team.parts != 0) {
    throw ShapeError("embedding: ids " + describe(ids) + " in " + std::to_string(team.parts) +
                     " parts; (B, T) whose T they divide is allowed");
  }
  const PathScope scope(table.path());
  const std::int64_t each = ids.size(1) / team.parts;
  const Tensor weight = sequence_parts_detail::for_parts(team, table.weight);
  std::vector<Tensor> parts;
  for (int p = team.first(); p < team.first() + team.count(); ++p) {
    const Tensor own = contiguous(view::slice(ids, 1, p * each, (p + 1) * each));
    parts.push_back(embedding(dist::copy_to_group(team, weight), own));
  }
  return parts.size() == 1 ? parts[0] : concat(parts, 0);
}

Tensor attend_by_heads(const dist::Team& team, std::span<const Tensor> in, std::int64_t stretches,
                       FunctionRef<Tensor(std::size_t, std::span<const Tensor>)> attend) {
  std::vector<Tensor> of_heads;
  for (const Tensor& x : in) of_heads.push_back(apply(dist::ExchangeHeads{team, stretches, true}, x));
  const auto count = static_cast<std::size_t>(team.count());
  std::vector<Tensor> results;
  for (std::size_t p = 0; p < count; ++p) {
    std::vector<Tensor> own;
    for (const Tensor& x : of_heads) {
      const auto samples = x.size(0) / static_cast<std::int64_t>(count), at = static_cast<std::int64_t>(p) * samples;
      own.push_back(count == 1 ? x : slice(x, 0, at, at + samples));
    }
    results.push_back(attend(p, own));
  }
  of_heads.clear();
  const Tensor all = count == 1 ? results[0] : concat(results, 0);
  results.clear();
  return apply(dist::ExchangeHeads{team, 1, false}, all);
}

Tensor drop_tokens(const dist::Team& team, nn::Dropout& dropout, const Tensor& x) {
  if (!team.cuts_sequence) return dropout(x);
  if (!dropout.is_training() || dropout.probability() == 0) return x;
  const PathScope scope(dropout.path());
  const RandomSite site = next_random_site();
  const ops::SampleParts parts{team.count(), team.first()};
  return dropout.is_textbook() ? apply(ops::DropoutTextbook{dropout.probability(), site, parts}, x)
                               : apply(ops::Dropout{dropout.probability(), site, parts}, x);
}

Tensor add_to_tokens(const dist::Team& team, const Tensor& x, const Tensor& bias) {
  if (!team.cuts_sequence) return add(x, bias);
  std::vector<Tensor> rows;  // the bias for each part, whose gradients are made apart
  for (int p = 0; p < team.count(); ++p) rows.push_back(dist::copy_to_group(team, bias));
  const std::int64_t count = team.count(), samples = x.size(0) / count;
  const Tensor parts = reshape(x, {count, samples, x.size(1), x.size(2)});
  return reshape(add(parts, reshape(stack(rows), {count, 1, 1, x.size(2)})), x.shape());
}

Tensor add_positions(const dist::Team& team, const Tensor& x, const Tensor& rows) {
  if (!team.cuts_sequence) return add(x, rows);
  const std::int64_t count = team.count(), samples = x.size(0) / count, begin = team.begin(rows.size(0));
  const Tensor own = slice(dist::copy_to_group(team, rows), 0, begin, begin + count * x.size(1));
  const Tensor parts = reshape(x, {count, samples, x.size(1), x.size(2)});
  return reshape(add(parts, reshape(own, {count, 1, x.size(1), x.size(2)})), x.shape());
}

Fate keep_all_but_gathered(const OpType& type) {
  return &type == &op_type<dist::AllGather>() || &type == &op_type<dist::CopyToGroup>() ? Fate::drop : Fate::keep;
}

}  // namespace thimble::models
