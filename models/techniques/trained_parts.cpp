#include <thimble/models/techniques/trained_parts.h>

#include <map>
#include <set>
#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/nn/files/cut_tensors.h>
#include <thimble/nn/parallel/shards.h>
#include <thimble/nn/step/dry_scope.h>

namespace thimble::models {
namespace {

std::unique_ptr<dist::Communicator> make_dry_ranks(const Setup& setup, memory::Device device) {
  if (setup.layout.ranks == 1 || !device.is_dry) return nullptr;
  return dist::make_dry(setup.layout.rank, setup.layout.ranks);
}

dist::Communicator* choose(const Setup& setup, dist::Communicator* dry, dist::Communicator* given) {
  dist::Communicator* const ranks = dry != nullptr ? dry : setup.layout.ranks > 1 ? given : nullptr;
  const int size = ranks != nullptr ? ranks->size() : 1, rank = ranks != nullptr ? ranks->rank() : 0;
  if (size == setup.layout.ranks && rank == setup.layout.rank) return ranks;
  throw ValueError("`ranks`: rank " + std::to_string(setup.layout.rank) + " of " + std::to_string(setup.layout.ranks) +
                   ", and the communicator is of rank " + std::to_string(rank) + " of " + std::to_string(size) +
                   "; expected the same");
}

/// This rank's group whose ranks differ only in the shard of layers, in the micro-batches, or in the stage.
enum class GroupOf : std::uint8_t { shards, replicas, stages };
std::unique_ptr<dist::Communicator> split_ranks(const Setup& setup, dist::Communicator* ranks, GroupOf which) {
  if (ranks == nullptr || group_size(setup) < 1 || setup.layout.pp < 1 ||
      setup.layout.ranks % (group_size(setup) * setup.layout.pp) != 0)
    return nullptr;
  const bool has_any = which == GroupOf::shards   ? group_size(setup) > 1
                       : which == GroupOf::stages ? setup.layout.pp > 1
                                                  : group_size(setup) > 1 || setup.layout.pp > 1;
  if (!has_any) return nullptr;
  const int group = group_size(setup), of_stage = setup.layout.ranks / setup.layout.pp;
  return ranks->split([=](int rank) {
    const int color = which == GroupOf::shards     ? rank / group
                      : which == GroupOf::replicas ? rank / of_stage * group + rank % group
                                                   : rank % of_stage;
    return dist::Communicator::Place{.color = color, .key = rank};
  });
}

/// For each parameter the piece that has it; empty for a single piece.
std::vector<int> chunks_of(const std::vector<nn::Named>& parameters, const std::vector<Model*>& pieces) {
  std::vector<int> list;
  if (pieces.size() == 1) return list;
  std::map<const tape::Leaf*, int> chunks;
  for (std::size_t c = 0; c < pieces.size(); ++c) {
    for (const nn::NamedTensor& p : pieces[c]->parameters()) chunks[p.tensor.leaf().get()] = static_cast<int>(c);
  }
  for (const nn::Named& p : parameters) list.push_back(chunks.at(p.tensor.leaf().get()));
  return list;
}

std::unique_ptr<dist::DataParallel> make_parallel(const Setup& setup, dist::Communicator* ranks,
                                                  dist::GroupShards group, Model& model) {
  if (ranks == nullptr) return nullptr;
  const bool is_whole = !is_elementwise(optimizer_name(setup, model.is_text()));
  dist::DataParallelOptions options{.zero = setup.layout.zero,
                                    .buckets = {.bytes = setup.layout.bucket_bytes, .keeps_parameters = is_whole}};
  std::vector<nn::Named> own = model.trainable();
  if (const Model::SharedByStages shared = model.shared_by_stages(); shared.first.empty()) {
    for (const Tensor& last : shared.last) {  // belongs to the first stage
      std::erase_if(own, [&](const nn::Named& p) { return p.tensor.leaf() == last.leaf(); });
    }
  }
  options.buckets.chunks = chunks_of(own, model.pieces());
  if (group.ranks != nullptr) group.layers = nn::shard_layers({&model}, own);
  options.group = std::move(group);
  return std::make_unique<dist::DataParallel>(*ranks, std::move(own), std::move(options));
}

/// Shape and dtype of each chunk's input for one sample, by dry twins of the pieces; empty for the first of the chain.
std::vector<dist::PipelineOptions::Input> stage_inputs(const Setup& setup, memory::Device device) {
  const memory::Device on = dry(device);
  const nn::DryScope scope(on);
  const NoGrad off;
  Setup whole = setup;
  whole.layout.tp = whole.layout.cp = 1;
  whole.layout.sequence_parallel = false;
  const dist::StagePlace last = stage_of(setup, setup.layout.chunks - 1);
  std::vector<dist::PipelineOptions::Input> inputs;
  Tensor x;
  for (int piece = 0; piece <= last.index; ++piece) {
    if (piece % setup.layout.pp == stage_number(setup)) {
      dist::PipelineOptions::Input& input = inputs.emplace_back();
      if (x.defined()) input = {x.shape(), x.dtype()};
      if (x.defined() && (setup.layout.sequence_parallel || setup.layout.cp > 1)) input.shape[1] /= group_size(setup);
    }
    if (piece == last.index) break;
    const std::unique_ptr<Model> model = make_stage(whole, {piece, last.count}, tensor_options(setup, on));
    Batch batch = model->empty_batch(1, on);
    if (x.defined()) batch.input = x;
    x = model->loss(batch);
  }
  return inputs;
}

dist::Schedule schedule_of(const Setup& setup) {
  const auto micro_batches = static_cast<int>(setup.micro_batches);
  if (setup.layout.pipeline == "gpipe") return dist::gpipe(setup.layout.pp, micro_batches);
  if (setup.layout.chunks > 1) return dist::interleaved(setup.layout.pp, micro_batches, setup.layout.chunks);
  return dist::one_forward_one_backward(setup.layout.pp, micro_batches);
}

std::unique_ptr<dist::PipelineStage> make_pipeline(const Setup& setup, memory::Device device,
                                                   dist::Communicator* stages, dist::DataParallel* parallel,
                                                   Model& model) {
  if (stages == nullptr) return nullptr;
  dist::PipelineOptions options;
  options.schedule = schedule_of(setup);
  options.inputs = stage_inputs(setup, device);
  options.device = device;
  const Model::SharedByStages shared = model.shared_by_stages();
  const std::vector<Tensor>& tables = shared.first.empty() ? shared.last : shared.first;
  for (const nn::Named& p : model.trainable()) {  // a rank of several has one shard of it
    if (!tables.empty() && p.tensor.leaf() == tables[0].leaf()) options.shared = p;
  }
  return std::make_unique<dist::PipelineStage>(*stages, *parallel, std::move(options));
}

std::unique_ptr<dist::AllStages> make_all_stages(const Setup& setup, Model& model) {
  if (setup.layout.ranks > 1) return nullptr;
  Model::SharedByStages shared = model.shared_by_stages();
  if (shared.first.empty()) return nullptr;
  return std::make_unique<dist::AllStages>(setup.micro_batches, std::move(shared.first), std::move(shared.last));
}

}  // namespace

ModelParts::ModelParts(const Setup& setup, memory::Device device, dist::Communicator* given)
    : dry_ranks(make_dry_ranks(setup, device)),
      ranks(choose(setup, dry_ranks.get(), given)),
      tp_group(split_ranks(setup, ranks, GroupOf::shards)),
      dp_group(split_ranks(setup, ranks, GroupOf::replicas)),
      pp_group(split_ranks(setup, ranks, GroupOf::stages)),
      model(make_model(setup, device, dp_group ? dp_group.get() : ranks, tp_group.get())),
      pieces(model->pieces()),
      parallel(
          make_parallel(setup, dp_group ? dp_group.get() : ranks, {.ranks = tp_group.get(), .all = ranks}, *model)),
      stage(make_pipeline(setup, device, pp_group.get(), parallel.get(), *model)),
      all_stages(make_all_stages(setup, *model)),
      optimizer(parallel ? make_optimizer(setup, *model, parallel->parameters()) : make_optimizer(setup, *model)) {}

TrainedParts::TrainedParts(const Setup& setup, memory::Device device, dist::Communicator* given)
    : SeededScope(setup.seed),
      ModelParts(setup, device, given),
      scaler(make_scaler(setup)),
      options(step_options(setup, model->is_text(), device)) {
  options.scaler = scaler.get();
  options.ranks = parallel.get();
  options.stage = pipeline();
}

optim::Pipeline* ModelParts::pipeline() const {
  return all_stages ? static_cast<optim::Pipeline*>(all_stages.get()) : stage.get();
}

Tensor ModelParts::loss(Batch part) {
  if (stage == nullptr) return model->loss(part);
  if (!stage->is_first(stage->chunk())) part.input = stage->receive_input(part.target.size(0));
  return pieces[stage->chunk()]->loss(part);
}

dist::Communicator::Volume ModelParts::volume() const {
  dist::Communicator::Volume sum{0, 0};
  for (const dist::Communicator* of : {ranks, tp_group.get(), dp_group.get()}) {
    if (of == nullptr) continue;
    sum.bytes_sent += of->volume().bytes_sent;
    sum.messages += of->volume().messages;
  }
  if (stage != nullptr) {
    sum.bytes_sent += stage->volume().bytes_sent;
    sum.messages += stage->volume().messages;
  }
  return sum;
}

std::vector<nn::StageOutline> later_stages(Setup setup, memory::Device device) {
  std::vector<nn::StageOutline> list;
  if (setup.layout.ranks == 1) return list;
  const memory::Device on = dry(device);
  const int of_stage = setup.layout.ranks / setup.layout.pp;
  for (setup.layout.rank = of_stage; setup.layout.rank < setup.layout.ranks; setup.layout.rank += of_stage) {
    const nn::DryScope scope(on);
    const TrainedParts parts(setup, on);
    list.push_back(nn::stage_outline(*parts.model, *parts.parallel));
  }
  return list;
}

std::vector<nn::NamedTensor> tensors_of_others(Setup setup, memory::Device device, const Model& own) {
  std::vector<nn::NamedTensor> list;
  if (own.options().stage.has_all) return list;
  const memory::Device on = dry(device);
  const nn::DryScope scope(on);
  setup.layout = {};
  const std::unique_ptr<Model> model = make_model(setup, on);
  std::set<std::string> here;
  const nn::CutParameters cuts(own);
  for (const nn::NamedTensor& p : own.parameters()) here.insert(cuts.of_parameter(p).whole.name);
  for (const nn::NamedTensor& b : own.buffers()) here.insert(b.name);
  for (const auto& tensors : {model->parameters(), model->buffers()}) {
    for (const nn::NamedTensor& t : tensors) {
      if (here.count(t.name) == 0) list.push_back({"model." + t.name, nn::outline(t.tensor.shape(), t.tensor.dtype())});
    }
  }
  return list;
}

nn::WholeState whole_state(Setup setup, memory::Device device) {
  const memory::Device on = dry(device);
  const nn::DryScope scope(on);
  setup.layout = {};
  setup.offload.optimizer = false;
  const std::unique_ptr<Model> model = make_model(setup, on);
  return nn::whole_state(*make_optimizer(setup, *model));
}

}  // namespace thimble::models
