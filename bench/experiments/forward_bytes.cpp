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

void add_curves(report::Plot& plot, const std::vector<report::Row>& rows, std::size_t x, const std::string& name,
                const std::string& group) {
  report::Series theory{name + ", theory", report::Role::theory, {}, group};
  report::Series predicted{name + ", predicted", report::Role::predicted, {}, group};
  report::Series measured{name + ", measured", report::Role::measured, {}, group};
  for (const report::Row& row : rows) {
    const auto at = static_cast<double>(std::get<std::int64_t>(row.config[x].second));
    theory.points.push_back({at, static_cast<double>(*row.predicted_bytes - *report::unnamed_bytes(row))});
    predicted.points.push_back({at, static_cast<double>(*row.predicted_bytes)});
    measured.points.push_back({at, static_cast<double>(*row.measured_bytes)});
  }
  plot.series.insert(plot.series.end(), {theory, predicted, measured});
}

}  // namespace thimble::bench
