#include <thimble/models/transformer/sequence_parts.h>

#include <vector>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/ops/elementwise/dropout.h>
#include <thimble/core/ops/norm/layer_norm.h>
#include <thimble/core/random/random.h>
#include <thimble/dist/parts.h>
#include <thimble/dist/sequence.h>

namespace thimble::models {

Tensor norm_tokens(const dist::Team& team, nn::LayerNorm& norm, const Tensor& x) {
  if (!team.cuts_sequence) return norm(x);
  const PathScope scope(norm.path());
  return apply(ops::LayerNorm{1, norm.epsilon(), team.count()}, x, dist::enter_part(team, norm.weight),
               dist::enter_part(team, norm.bias));
}

Tensor norm_tokens(const dist::Team& team, nn::RmsNorm& norm, const Tensor& x) {
  if (!team.cuts_sequence) return norm(x);
  const PathScope scope(norm.path());
  return apply(ops::RmsNorm{1, norm.epsilon(), team.count()}, x, dist::enter_part(team, norm.weight));
}

Tensor linear_tokens(const dist::Team& team, nn::Linear& layer, const Tensor& x) {
  if (!team.cuts_sequence) return layer(x);
  const PathScope scope(layer.path());
  const std::optional<DType> compute = layer.compute();
  const Tensor in = nn::as_operand(x, compute);
  const std::int64_t samples = x.size(0) / team.count();
  std::vector<Tensor> parts;
  for (int p = 0; p < team.count(); ++p) {
    const Tensor own = team.count() == 1 ? in : slice(in, 0, p * samples, (p + 1) * samples);
    parts.push_back(linear(own, nn::as_operand(dist::enter_part(team, layer.weight), compute),
                           nn::as_operand(dist::enter_part(team, layer.bias), compute), layer.activation(),
                           layer.weight_is_in_out()));
  }
  return parts.size() == 1 ? parts[0] : concat(parts, 0);
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
  for (int p = 0; p < team.count(); ++p) rows.push_back(dist::enter_part(team, bias));
  const std::int64_t count = team.count(), samples = x.size(0) / count;
  const Tensor parts = reshape(x, {count, samples, x.size(1), x.size(2)});
  return reshape(add(parts, reshape(stack(rows), {count, 1, 1, x.size(2)})), x.shape());
}

Tensor add_positions(const dist::Team& team, const Tensor& x, const Tensor& rows) {
  if (!team.cuts_sequence) return add(x, rows);
  const std::int64_t count = team.count(), samples = x.size(0) / count, begin = team.begin(rows.size(0));
  const Tensor own = slice(dist::enter_part(team, rows), 0, begin, begin + count * x.size(1));
  const Tensor parts = reshape(x, {count, samples, x.size(1), x.size(2)});
  return reshape(add(parts, reshape(own, {count, 1, x.size(1), x.size(2)})), x.shape());
}

Fate keep_all_but_gathered(const OpType& type) {
  return &type == &op_type<dist::GatherSequence>() || &type == &op_type<dist::EnterPart>() ? Fate::drop : Fate::keep;
}

}  // namespace thimble::models
