// What Llamas keep for backward over teams and sequences, beside the rule of thumb that is drawn for them.

#include <string>

#include <thimble/autograd/tape.h>
#include <thimble/bench/experiments/experiments.h>
#include <thimble/core/random/random.h>
#include <thimble/dist/communicator.h>
#include <thimble/memory/stack.h>
#include <thimble/models/model.h>
#include <thimble/models/theory.h>
#include <thimble/nn/precision/precision.h>

namespace thimble::bench {
namespace activation_curves_detail {

/// Bytes that the rank keeps when the loss of one sample has been recorded, without a byte of it.
std::int64_t recorded(const std::string& name, const models::ModelOptions& sizes, const nn::TensorOptions& on) {
  const memory::Stack stack = memory::make_resource(on.device);
  const ResourceScope scope(stack.top);
  Generator generator(1);
  const GeneratorScope random(generator);
  const auto model = models::make_model(name, sizes, on);
  const models::Batch batch = model->empty_batch(1, on.device);
  Tape tape;
  generator.start_pass();
  const Recording on_tape(tape);
  model->loss(batch);
  return static_cast<std::int64_t>(stack.ledger->bytes(Category::activation));
}

}  // namespace activation_curves_detail

report::Experiment activation_curves_experiment(const ExperimentOptions& options) {
  using namespace activation_curves_detail;
  report::Experiment experiment;
  experiment.name = "distributed-activations";
  experiment.title = "Activations of Llamas over teams, beside 34 s b h L / t";
  experiment.question = "What does a rank keep for backward, and what does the rule of thumb leave out?";
  experiment.theory =
      "Curves of Llama's activations are often drawn as 34 s b h L / t bytes: what a GPT with GELU, dropout and tiled "
      "attention keeps in its L layers at 2 bytes a number (Korthikanti et al. 2022). A Llama has fewer heads of keys, "
      "a gated layer of another width and no masks, and keeps statistics, its logits and what the head reads besides. "
      "Closed form and dry run, one sample, bf16, the sequence in parts with t > 1; rank 0.";
  experiment.columns = {{"rule", "34 s b h L / t", report::Unit::bytes},
                        {"logits", "logits", report::Unit::bytes},
                        {"ratio", "dry run over the rule", report::Unit::plain, 3}};
  const nn::Precision& precision = nn::precision("bf16");
  for (const char* const name : {"llama-3.2-1b", "llama-3-8b", "llama-3-70b"}) {
    options.progress(std::string("distributed-activations: ") + name);
    for (const std::int64_t tokens : {1024, 4096, 16384, 131072}) {
      if (options.is_quick && tokens > 4096) continue;
      for (const int parts : {1, 2, 4, 8}) {
        const auto ranks = dist::make_dry(0, parts);
        models::ModelOptions sizes;
        sizes.sequence = tokens;
        sizes.team = {parts, parts > 1 ? ranks.get() : nullptr, parts > 1};
        const models::Theory theory = models::make_theory(name, sizes, precision);
        report::Row row;
        row.config = {{"model", std::string(name)}, {"tokens", tokens}, {"parts", std::int64_t{parts}}};
        row.theory_bytes = theory.kept_bytes(Category::activation, 1);
        row.predicted_bytes = recorded(name, sizes, precision.on(dry(options.device)));
        const auto model = models::make_model(name, {}, {dry(cpu)});
        const double rule =
            34.0 * static_cast<double>(tokens * model->options().width * model->options().layers) / parts;
        double logits = 0;
        for (const models::Term& term : theory.outside) {
          if (term.name == "logits") logits += static_cast<double>(term.bytes(1));
        }
        row.numbers = {{"rule", rule}, {"logits", logits}, {"ratio", static_cast<double>(*row.predicted_bytes) / rule}};
        experiment.rows.push_back(row);
      }
    }
  }
  std::size_t exact = 0;
  for (const report::Row& row : experiment.rows) exact += row.theory_bytes == row.predicted_bytes ? 1 : 0;
  experiment.verdict = "The dry rank keeps exactly the closed form's bytes in " + std::to_string(exact) + " of " +
                       std::to_string(experiment.rows.size()) + " rows.";
  return experiment;
}

}  // namespace thimble::bench
