#include <thimble/models/training/trained_parts.h>

#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/memory/stack.h>
#include <thimble/models/transformer/cut_block.h>
#include <thimble/nn/step/profile.h>

namespace thimble::models {
namespace trained_parts_detail {

std::unique_ptr<dist::Communicator> make_dry_ranks(const Setup& setup, Device device) {
  if (setup.ranks == 1 || !device.is_dry) return nullptr;
  return dist::make_dry(setup.rank, setup.ranks);
}

dist::Communicator* choose(const Setup& setup, dist::Communicator* dry, dist::Communicator* given) {
  dist::Communicator* const ranks = dry != nullptr ? dry : setup.ranks > 1 ? given : nullptr;
  const int size = ranks != nullptr ? ranks->size() : 1, rank = ranks != nullptr ? ranks->rank() : 0;
  if (size == setup.ranks && rank == setup.rank) return ranks;
  throw ValueError("`ranks`: rank " + std::to_string(setup.rank) + " of " + std::to_string(setup.ranks) +
                   ", and the communicator is of rank " + std::to_string(rank) + " of " + std::to_string(size) +
                   "; the same alone is allowed");
}

std::unique_ptr<dist::Communicator> split(const Setup& setup, dist::Communicator* ranks, bool is_team) {
  if (ranks == nullptr || setup.tp <= 1 || setup.ranks % setup.tp != 0) return nullptr;
  return ranks->split([tp = setup.tp, is_team](int rank) {
    return dist::Communicator::Place{.color = is_team ? rank / tp : rank % tp, .key = rank};
  });
}

std::unique_ptr<dist::DataParallel> make_parallel(const Setup& setup, dist::Communicator* ranks, dist::TeamParts team,
                                                  const Model& model) {
  if (ranks == nullptr) return nullptr;
  const bool is_whole = !is_elementwise(optimizer_name(setup, model.is_text()));
  const dist::BucketOptions buckets{.bytes = setup.bucket_bytes, .keeps_parameters = is_whole};
  dist::DataParallelOptions options{.zero = setup.zero, .buckets = buckets};
  if (team.ranks != nullptr) {
    team.layers = part_layers(model, model.trainable());
    options.parts = std::move(team);
  }
  return std::make_unique<dist::DataParallel>(*ranks, model.trainable(), std::move(options));
}

}  // namespace trained_parts_detail

TrainedParts::TrainedParts(const Setup& setup, Device device, dist::Communicator* given)
    : generator(setup.seed),
      scope(generator),
      dry_ranks(trained_parts_detail::make_dry_ranks(setup, device)),
      ranks(trained_parts_detail::choose(setup, dry_ranks.get(), given)),
      team_ranks(trained_parts_detail::split(setup, ranks, true)),
      like_ranks(trained_parts_detail::split(setup, ranks, false)),
      model(make_model(setup, device, like_ranks ? like_ranks.get() : ranks, team_ranks.get())),
      parallel(trained_parts_detail::make_parallel(setup, like_ranks ? like_ranks.get() : ranks,
                                                   {.ranks = team_ranks.get(), .all = ranks}, *model)),
      optimizer(parallel ? make_optimizer(setup, *model, parallel->parameters()) : make_optimizer(setup, *model)),
      scaler(make_scaler(setup)),
      options(step_options(setup, model->is_text(), device)) {
  options.scaler = scaler.get();
  options.ranks = parallel.get();
}

dist::Communicator::Volume TrainedParts::volume() const {
  dist::Communicator::Volume sum{0, 0};
  for (const dist::Communicator* of : {ranks, team_ranks.get(), like_ranks.get()}) {
    if (of == nullptr) continue;
    sum.bytes_sent += of->volume().bytes_sent;
    sum.messages += of->volume().messages;
  }
  return sum;
}

dist::WholeState whole_state(const Setup& setup, Device device) {
  const Device on = dry(device);
  const memory::Stack stack = memory::make_resource(on, nn::profile_options(on));
  const ResourceScope scope(stack.top);
  Setup alone = setup;
  alone.ranks = 1;
  alone.tp = 1;
  alone.rank = alone.zero = 0;
  alone.offloads_optimizer = false;
  Generator generator(setup.seed);
  const GeneratorScope numbers(generator);
  const std::unique_ptr<Model> model = make_model(alone, on);
  return dist::whole_state(*make_optimizer(alone, *model));
}

}  // namespace thimble::models
