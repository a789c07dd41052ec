#include <thimble/autograd/tape.h>
#include <thimble/bench/experiments/experiments.h>
#include <thimble/core/transaction.h>

namespace thimble::bench {

ForwardBytes forward_bytes(Device device, const Setup& setup, const std::vector<std::string>& paths) {
  const memory::Stack stack = memory::make_resource(device);
  const ResourceScope scope(stack.top);
  Generator generator(setup.seed);
  const GeneratorScope random(generator);
  const auto model = models::make_model(setup.model, setup.sizes, {device, setup.dtype});
  const models::Batch batch = model->empty_batch(setup.batch, device);
  const Transaction transaction;
  Tape tape;
  const Recording on(tape);
  const Tensor loss = model->loss(batch);
  ForwardBytes bytes;
  bytes.activation = stack.ledger->bytes(Category::activation);
  bytes.input = stack.ledger->bytes(Category::input);
  for (const std::string& path : paths) {
    bytes.by_path.emplace_back(path, stack.ledger->bytes(Category::activation, path));
  }
  return bytes;
}

const std::vector<NamedExperiment>& all_experiments() {
  static const std::vector<NamedExperiment> list{{"training", training_experiment},
                                                 {"resnet-batch", resnet_batch_experiment},
                                                 {"gpt-layer", gpt_layer_experiment},
                                                 {"gpt-curve", gpt_curve_experiment},
                                                 {"step-peak", step_peak_experiment},
                                                 {"prediction", prediction_experiment},
                                                 {"techniques", techniques_experiment},
                                                 {"known-schedules", known_schedules_experiment},
                                                 {"checkpoint-depth", checkpoint_depth_experiment},
                                                 {"checkpoint-sequence", checkpoint_sequence_experiment},
                                                 {"checkpoint-batch", checkpoint_batch_experiment},
                                                 {"accumulation", accumulation_experiment},
                                                 {"sharing", sharing_experiment},
                                                 {"rules-of-thumb", rules_of_thumb_experiment},
                                                 {"overhead", overhead_experiment},
                                                 {"placement", placement_experiment},
                                                 {"eight-bits", eight_bits_experiment}};
  return list;
}

}  // namespace thimble::bench
