#include <thimble/models/training/trained_parts.h>

#include <string>

#include <thimble/core/error.h>
#include <thimble/memory/stack.h>
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

std::unique_ptr<dist::DataParallel> make_parallel(const Setup& setup, dist::Communicator* ranks, const Model& model) {
  if (ranks == nullptr) return nullptr;
  const bool is_whole = !is_elementwise(optimizer_name(setup, model.is_text()));
  const dist::BucketOptions buckets{.bytes = setup.bucket_bytes, .keeps_parameters = is_whole};
  return std::make_unique<dist::DataParallel>(*ranks, model.trainable(),
                                              dist::DataParallelOptions{.zero = setup.zero, .buckets = buckets});
}

}  // namespace trained_parts_detail

TrainedParts::TrainedParts(const Setup& setup, Device device, dist::Communicator* given)
    : generator(setup.seed),
      scope(generator),
      dry_ranks(trained_parts_detail::make_dry_ranks(setup, device)),
      ranks(trained_parts_detail::choose(setup, dry_ranks.get(), given)),
      model(make_model(setup, device, ranks)),
      parallel(trained_parts_detail::make_parallel(setup, ranks, *model)),
      optimizer(parallel ? make_optimizer(setup, *model, parallel->parameters()) : make_optimizer(setup, *model)),
      scaler(make_scaler(setup)),
      options(step_options(setup, model->is_text(), device)) {
  options.scaler = scaler.get();
  options.ranks = parallel.get();
}

dist::WholeState whole_state(const Setup& setup, Device device) {
  const Device on = dry(device);
  const memory::Stack stack = memory::make_resource(on, nn::profile_options(on));
  const ResourceScope scope(stack.top);
  Setup alone = setup;
  alone.ranks = 1;
  alone.rank = alone.zero = 0;
  alone.offloads_optimizer = false;
  Generator generator(setup.seed);
  const GeneratorScope numbers(generator);
  const std::unique_ptr<Model> model = make_model(alone, on);
  return dist::whole_state(*make_optimizer(alone, *model));
}

}  // namespace thimble::models
