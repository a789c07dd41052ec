// Trains a small GPT on the characters of a text, then lets it continue the text.
//
//   train_gpt [STEPS] [TEXT]
//
// Without the file TEXT it learns synthetic prose. The loss is in nats per character; guessing costs log(vocabulary).

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/stack.h>
#include <thimble/models/generation/generate.h>
#include <thimble/models/gpt/gpt.h>
#include <thimble/nn/data/source.h>
#include <thimble/nn/data/synthetic.h>
#include <thimble/nn/data/text.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/schedule.h>

using namespace thimble;

namespace {

constexpr std::int64_t samples = 16, sequence = 32;
constexpr double highest_rate = 3e-3;

void train(models::Gpt& model, const std::vector<std::uint8_t>& tokens, std::int64_t steps) {
  const data::TokenSource<std::uint8_t> source(tokens, sequence, samples, 1);
  optim::Adam adam(model.trainable(), {.rate = highest_rate, .weight_decay = 0.1, .smallest_decayed_rank = 2});
  std::vector<std::int64_t> ids(samples * sequence), next(samples * sequence);  // (B, T)
  for (std::int64_t step = 0; step < steps; ++step) {
    adam.set_rate(optim::cosine_rate(highest_rate, step, steps / 10, steps));
    source.batch<std::int64_t>(step, ids, next);
    const models::Batch batch{from_host(ids, {samples, sequence}, cpu, memory::Category::input),
                              from_host(next, {samples, sequence}, cpu, memory::Category::input)};
    const Tensor loss = nn::training_step(adam, [&](std::int64_t) { return model.loss(batch); }, {.clip_norm = 1});
    if (step % 50 == 0 || step + 1 == steps) {
      std::printf("step %lld  loss %.4f\n", static_cast<long long>(step), item(loss));
    }
  }
}

void run(std::int64_t steps, const data::TextData& text) {
  models::ModelOptions sizes;
  sizes.layers = 2, sizes.heads = 4, sizes.width = 64, sizes.sequence = sequence, sizes.dropout = 0;
  sizes.vocabulary = text.vocabulary.size();
  models::Gpt model(models::gpt_options("char-gpt", sizes), {});
  std::printf("%lld parameters, %zu characters to learn from, guessing costs %.4f\n",
              static_cast<long long>(model.parameter_count()), text.train.size(),
              std::log(static_cast<double>(text.vocabulary.size())));
  train(model, text.train, steps);

  const std::vector<std::int64_t> prompt(text.validation.begin(), text.validation.begin() + 8);
  const std::vector<std::int64_t> tokens = models::generate(model, prompt, 120, 0.7);
  const std::vector<std::uint8_t> written(tokens.begin(), tokens.end());
  std::printf("\"%s\"\n%.1f MiB at the peak\n", text.vocabulary.decode(written).c_str(),
              static_cast<double>(memory::default_stack(cpu).ledger->max_allocated()) / (1 << 20));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc > 3) throw ValueError("usage: train_gpt [STEPS] [TEXT]");
    const std::string count = argc > 1 ? argv[1] : "150";
    const std::int64_t steps = std::strtoll(count.c_str(), nullptr, 10);
    if (std::to_string(steps) != count || steps < 1) throw ValueError("'" + count + "' is not a number of steps");
    const data::TextData text = argc > 2 ? data::read_text(argv[2]) : data::split_text(data::synthetic_text(200000, 1));
    if (text.validation.size() < 8) throw ValueError("the text has fewer than 80 characters");
    set_thread_count(1);  // products this small take less time than synchronizing threads
    run(steps, text);
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
