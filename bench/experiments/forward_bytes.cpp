#include <thimble/autograd/tape.h>
#include <thimble/bench/experiments/experiments.h>
#include <thimble/core/tensor/transaction.h>

namespace thimble::bench {

ForwardBytes forward_bytes(Device device, const models::Setup& setup, const std::vector<std::string>& paths) {
  const memory::Stack stack = memory::make_resource(device);
  const PartWatch watch(device);
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
  bytes.process = watch.bytes(*stack.arena, tape.node_count());
  return bytes;
}

}  // namespace thimble::bench
