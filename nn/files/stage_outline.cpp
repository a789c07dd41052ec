#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include <thimble/dist/shard_store.h>
#include <thimble/nn/files/cut_tensors.h>
#include <thimble/nn/files/rank_files.h>

namespace thimble::nn {
namespace stage_outline_detail {

/// The owners of each parameter's ranges when a rank of a group shards it, in the order of its elements.
std::vector<std::vector<StageOutline::Owned>> owners(const dist::DataParallel& parallel, const StageOutline& stage,
                                                     int part) {
  using Owned = StageOutline::Owned;
  std::vector<optim::Named> parameters;
  for (const StageOutline::Parameter& p : stage.parameters) {
    const Tensor& whole = p.whole.tensor;
    parameters.push_back({p.whole.name, outline({p.elements(part)}, whole.dtype())});
  }
  const dist::BucketOptions& options = parallel.options().buckets;
  const auto range_of = [&](std::size_t i, int rank) {
    const std::size_t number = parallel.whole()[i].tensor.storage()->index_in_store();
    return dist::shard_range(parameters[i].tensor.elements(), parallel.size(), rank, number);
  };
  const std::vector<dist::Bucket> buckets = stage.is_stored
                                                ? dist::make_buckets(parameters, parallel.size(), options, range_of)
                                                : dist::make_buckets(parameters, parallel.size(), options);
  std::vector<std::vector<Owned>> list(parameters.size());
  for (const dist::Bucket& bucket : buckets) {
    for (int r = 0; r < parallel.size(); ++r) {
      for (const dist::Piece& piece : bucket.pieces[static_cast<std::size_t>(r)]) {
        list[piece.parameter].push_back({r, {piece.begin, piece.end}});
      }
    }
  }
  for (std::vector<Owned>& of_one : list) {
    std::sort(of_one.begin(), of_one.end(),
              [](const Owned& a, const Owned& b) { return a.range.begin < b.range.begin; });
  }
  return list;
}

}  // namespace stage_outline_detail

std::int64_t StageOutline::Parameter::elements(int of_part) const {
  if (!part) return whole.tensor.elements();
  init::PartOf own = *part;
  own.part = of_part;
  return own.shape().elements();
}

StageOutline stage_outline(const Module& module, const dist::DataParallel& parallel) {
  StageOutline stage;
  const dist::TeamParts& parts = parallel.options().parts;
  stage.team = parts.ranks != nullptr ? parts.ranks->size() : 1;
  const int place = parallel.rank() * stage.team + (parts.ranks != nullptr ? parts.ranks->rank() : 0);
  stage.first_rank = parts.all != nullptr ? parts.all->rank() - place : 0;
  stage.zero = parallel.options().zero;
  stage.is_stored = parallel.store() != nullptr;
  const CutParameters cuts(module);
  std::map<std::string_view, FileLayout> layouts;
  const std::vector<NamedTensor> list = module.parameters();
  for (const NamedTensor& p : list) layouts[p.name] = p.layout;
  for (std::size_t i = 0; i < parallel.whole().size(); ++i) {
    const optim::Named& p = parallel.whole()[i];
    const FileTensor t = cuts.of_parameter({p.name, p.tensor, layouts.at(p.name)});
    const NamedTensor whole{t.whole.name, outline(t.whole.tensor.shape(), p.tensor.dtype()), t.whole.layout};
    stage.parameters.push_back({whole, t.part, {}});
  }
  for (int member = 0; member < stage.team; ++member) {
    std::vector<std::vector<StageOutline::Owned>> owners = stage_outline_detail::owners(parallel, stage, member);
    for (std::size_t i = 0; i < owners.size(); ++i) {
      StageOutline::Parameter& p = stage.parameters[i];
      if (p.part || member == 0) p.shards.push_back(std::move(owners[i]));
    }
  }
  for (const NamedTensor& b : module.buffers()) {
    stage.buffers.push_back({b.name, outline(b.tensor.shape(), b.tensor.dtype())});
  }
  return stage;
}

}  // namespace thimble::nn
