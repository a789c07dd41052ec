// GPT: counts, names, training, the two builds, and its memory against theory and between dry and real runs, as
// integers.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <thimble/autograd/tape.h>
#include <thimble/core/copy.h>
#include <thimble/core/error.h>
#include <thimble/core/parallel.h>
#include <thimble/memory/stack.h>
#include <thimble/models/gpt.h>
#include <thimble/models/theory/gpt.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/step.h>
#include <thimble/optim/adam.h>

#include "catch.h"
#include "files.h"

using namespace thimble;
using namespace thimble::models;

namespace {

class OneThread {
 public:
  OneThread() : before_(thread_count()) { set_thread_count(1); }
  ~OneThread() { set_thread_count(before_); }

 private:
  int before_;
};

ModelOptions tiny(Build build, double dropout = 0) {
  ModelOptions options;
  options.layers = 2, options.width = 32, options.heads = 4, options.sequence = 16, options.vocabulary = 17;
  options.dropout = dropout;
  options.build = build;
  return options;
}

// The same initial values for the same seed, whatever the build.
std::unique_ptr<Gpt> made(const ModelOptions& options, const nn::Placement& on = {}, std::uint64_t seed = 1) {
  Generator generator(seed);
  const GeneratorScope scope(generator);
  std::unique_ptr<Model> model = make_gpt("char-gpt", options, on);
  return std::unique_ptr<Gpt>(static_cast<Gpt*>(model.release()));
}

// Ids that a step's number determines; the target is the next one. (B, T) each.
Batch batch_of(const Gpt& model, std::int64_t samples, std::int64_t step = 0) {
  const std::int64_t length = model.options().sequence, count = model.options().vocabulary;
  std::vector<std::int64_t> ids, next;
  for (std::int64_t b = 0; b < samples; ++b) {
    for (std::int64_t t = 0; t < length; ++t) {
      const auto id = [&](std::int64_t at) { return (at * at + 3 * b + 5 * step) % count; };
      ids.push_back(id(t));
      next.push_back(id(t + 1));
    }
  }
  return {from_host(ids, {samples, length}, cpu, Category::input),
          from_host(next, {samples, length}, cpu, Category::input)};
}

// Loss and gradients of one pass, in the order of the parameters.
struct Pass {
  double loss = 0;
  std::vector<std::vector<double>> gradients;
  friend bool operator==(const Pass&, const Pass&) = default;
};

Pass run_pass(Gpt& model, std::int64_t samples, std::uint64_t seed = 5) {
  Generator generator(seed);
  const GeneratorScope scope(generator);
  Tape tape;
  Tensor loss;
  {
    const Recording on(tape);
    loss = model.loss(batch_of(model, samples));
  }
  tape.backward(loss);
  Pass pass{item(loss), {}};
  for (const auto& p : model.parameters()) {
    pass.gradients.push_back(to_host<double>(p.tensor.grad()));
    p.tensor.grad() = Tensor();
  }
  return pass;
}

optim::AdamOptions adam_options() {
  optim::AdamOptions options;
  options.rate = 3e-3, options.weight_decay = 0.1, options.smallest_decayed_rank = 2;
  return options;
}

double train_step(Gpt& model, optim::Optimizer& optimizer, Generator& generator, std::int64_t step) {
  const GeneratorScope scope(generator);
  nn::StepOptions options;
  options.clip_norm = 1;
  return item(nn::training_step(
      optimizer, [&](std::int64_t) { return model.loss(batch_of(model, 4, step)); }, options));
}

// |a - b| relative to the largest of b.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0, scale = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    most = std::max(most, std::abs(a[i] - b[i]));
    scale = std::max(scale, std::abs(b[i]));
  }
  return scale > 0 ? most / scale : most;
}

}  // namespace

TEST_CASE("models gpt: parameter counts are the published ones", "[models][gpt]") {
  const struct {
    const char* name;
    std::int64_t parameters;
    std::size_t tensors;
  } rows[] = {{"gpt2", 124439808, 148},
              {"gpt2-medium", 354823168, 292},
              {"gpt2-large", 774030080, 436},
              {"gpt2-xl", 1557611200, 580},
              {"char-gpt", 10770816, 76}};
  for (const auto& row : rows) {
    INFO(row.name);
    const auto model = make_gpt(row.name, {}, {dry(cpu), DType::f32});
    REQUIRE(model);
    CHECK(model->parameter_count() == row.parameters);
    CHECK(model->parameters().size() == row.tensors);
    CHECK(model->buffers().empty());
    CHECK(theory::gpt_state(row.name).parameter_elements == row.parameters);
    CHECK(theory::gpt_state(row.name).total() == row.parameters * (4 + 4 + 8));
  }
  CHECK(make_gpt("gpt3", {}, {}) == nullptr);
  CHECK_THROWS_AS(gpt_options("gpt3"), ValueError);
  ModelOptions odd;
  odd.heads = 5;
  CHECK_THROWS_AS(make_gpt("gpt2", odd, {dry(cpu), DType::f32}), ValueError);
  odd.heads = 0, odd.dropout = 1;
  CHECK_THROWS_AS(gpt_options("gpt2", odd), ValueError);
}

TEST_CASE("models gpt: names and shapes are those of the public files", "[models][gpt]") {
  const auto model = make_gpt("gpt2", {}, {dry(cpu), DType::f32});
  std::vector<std::pair<std::string, Shape>> expected{{"wte.weight", {50257, 768}}, {"wpe.weight", {1024, 768}}};
  for (int i = 0; i < 12; ++i) {
    const std::string h = "h." + std::to_string(i) + ".";
    const std::vector<std::pair<std::string, Shape>> layer{{"ln_1.weight", {768}},
                                                           {"ln_1.bias", {768}},
                                                           {"attn.c_attn.weight", {768, 2304}},
                                                           {"attn.c_attn.bias", {2304}},
                                                           {"attn.c_proj.weight", {768, 768}},
                                                           {"attn.c_proj.bias", {768}},
                                                           {"ln_2.weight", {768}},
                                                           {"ln_2.bias", {768}},
                                                           {"mlp.c_fc.weight", {768, 3072}},
                                                           {"mlp.c_fc.bias", {3072}},
                                                           {"mlp.c_proj.weight", {3072, 768}},
                                                           {"mlp.c_proj.bias", {768}}};
    for (const auto& [name, shape] : layer) expected.emplace_back(h + name, shape);
  }
  expected.emplace_back("ln_f.weight", Shape{768});
  expected.emplace_back("ln_f.bias", Shape{768});
  const auto parameters = model->parameters();
  REQUIRE(parameters.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    INFO(expected[i].first);
    const auto found = std::find_if(parameters.begin(), parameters.end(),
                                    [&](const nn::NamedTensor& p) { return p.name == expected[i].first; });
    REQUIRE(found != parameters.end());
    CHECK(found->tensor.shape() == expected[i].second);
    CHECK(found->layout == nn::FileLayout::same);
  }
}

TEST_CASE("models gpt: the loss starts at log V and falls", "[models][gpt]") {
  const OneThread threads;
  for (const Build build : {Build::fused, Build::textbook}) {
    for (const double dropout : {0.0, 0.1}) {
      const auto model = made(tiny(build, dropout));
      optim::Adam optimizer(model->trainable(), adam_options());
      Generator generator(2);
      std::vector<double> losses;
      for (std::int64_t i = 0; i < 20; ++i) losses.push_back(train_step(*model, optimizer, generator, 0));
      INFO(losses.front() << " -> " << losses.back());
      CHECK(losses.front() == Approx(std::log(17.0)).margin(0.1));
      CHECK(losses.back() < 0.8 * losses.front());
    }
  }
}

TEST_CASE("models gpt: a token sees what is before it alone", "[models][gpt]") {
  const OneThread threads;
  for (const Build build : {Build::fused, Build::textbook}) {
    const auto model = made(tiny(build));
    model->eval();
    std::vector<std::int64_t> ids(16, 3);
    const auto logits = [&] { return to_host<double>(model->forward(from_host(ids, {1, 16}))); };  // (1, 16, 17)
    const auto before = logits();
    ids[9] = 8;
    const auto after = logits();
    CHECK(std::equal(before.begin(), before.begin() + 9 * 17, after.begin()));
    CHECK(!std::equal(before.begin() + 9 * 17, before.begin() + 10 * 17, after.begin() + 9 * 17));
    CHECK(!std::equal(before.begin() + 15 * 17, before.end(), after.begin() + 15 * 17));
  }
}

TEST_CASE("models gpt: fused and textbook builds agree up to rounding", "[models][gpt]") {
  // With dropout, too: both draw the same masks, because a mask is a function of the path, the call's ordinal under it
  // and the element, and both builds ask at the same places.
  const OneThread threads;
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const double dropout : {0.0, 0.2}) {
      INFO(to_string(dtype) << " " << dropout);
      const Pass fused = run_pass(*made(tiny(Build::fused, dropout), {cpu, dtype}), 3);
      const Pass textbook = run_pass(*made(tiny(Build::textbook, dropout), {cpu, dtype}), 3);
      const double tolerance = dtype == DType::f64 ? 1e-12 : 2e-5;
      CHECK(std::abs(fused.loss - textbook.loss) < tolerance);
      REQUIRE(fused.gradients.size() == textbook.gradients.size());
      for (std::size_t i = 0; i < fused.gradients.size(); ++i) {
        CHECK(distance(fused.gradients[i], textbook.gradients[i]) < tolerance);
      }
      // The test can fail: other masks give another loss.
      const Pass other = run_pass(*made(tiny(Build::fused, dropout), {cpu, dtype}), 3, 6);
      CHECK((other.loss == fused.loss) == (dropout == 0));
    }
  }
}

TEST_CASE("models gpt: theory is the ledger, to the byte", "[models][gpt][theory]") {
  struct Sizes {
    std::int64_t b, s, h, a, layers, vocabulary;
  };
  const Sizes rows[] = {{2, 16, 32, 4, 2, 17}, {1, 8, 12, 3, 3, 5},          {3, 33, 40, 5, 2, 101},
                        {5, 1, 16, 2, 2, 3},   {4, 1024, 768, 12, 2, 50257}, {2, 128, 64, 1, 4, 64}};
  for (const Sizes& row : rows) {
    for (const Build build : {Build::fused, Build::textbook}) {
      for (const double dropout : {0.0, 0.1}) {
        for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
          ModelOptions options;
          options.sequence = row.s, options.width = row.h, options.heads = row.a, options.layers = row.layers;
          options.vocabulary = row.vocabulary, options.dropout = dropout, options.build = build;
          INFO("s " << row.s << " h " << row.h << " build " << static_cast<int>(build) << " dropout " << dropout << " "
                    << to_string(dtype));
          for (const bool is_recomputed : {false, true}) {
            const memory::Stack stack = memory::make_resource(dry(cpu));
            const ResourceScope scope(stack.top);
            const auto model = made(options, {dry(cpu), dtype});
            model->recompute_blocks(is_recomputed);
            const Batch batch = model->empty_batch(row.b, dry(cpu));
            Tape tape;
            Tensor loss;
            {
              const Recording on(tape);
              loss = model->loss(batch);
            }
            const auto booked = [&](Category category, const std::string& path) {
              return static_cast<std::int64_t>(stack.ledger->bytes(category, path));
            };
            const auto layer = is_recomputed ? theory::gpt_recomputed_layer_kept("gpt2", options, dtype)
                                             : theory::gpt_layer_kept("gpt2", options, dtype);
            for (std::int64_t i = 0; i < row.layers; ++i) {
              INFO("layer " << i);
              CHECK(booked(Category::activation, "gpt.h." + std::to_string(i)) ==
                    theory::bytes_of(layer, Category::activation, row.b));
            }
            CHECK(booked(Category::activation, "") ==
                  theory::gpt_kept_bytes("gpt2", options, dtype, Category::activation, row.b, is_recomputed));
            CHECK(booked(Category::input, "") ==
                  theory::gpt_kept_bytes("gpt2", options, dtype, Category::input, row.b, is_recomputed));
            const theory::ModelState state = theory::gpt_state("gpt2", options, 2, dtype);
            CHECK(booked(Category::parameter, "") == state.parameters);
            CHECK(booked(Category::temporary, "") == static_cast<std::int64_t>(loss.bytes()));
            CHECK(booked(Category::workspace, "") == 0);
            tape.backward(loss);
            CHECK(booked(Category::gradient, "") == state.gradients);
            const optim::Adam optimizer(model->trainable(), adam_options());
            CHECK(booked(Category::optimizer, "") == state.optimizer);
            CHECK(static_cast<std::int64_t>(optimizer.state_bytes()) == state.optimizer);
          }
        }
      }
    }
  }
}

TEST_CASE("models gpt: the textbook's terms are the literature's and one named remainder", "[models][gpt][theory]") {
  for (const double dropout : {0.0, 0.1}) {
    for (const DType dtype : {DType::f32, DType::f16}) {
      ModelOptions options;
      options.dropout = dropout, options.build = Build::textbook;
      std::int64_t sum = 0, remainder = 0;
      for (const theory::Term& term : theory::gpt_layer_kept("gpt2", options, dtype)) {
        (term.name == "norm statistics" ? remainder : sum) += term.bytes(4);
      }
      const auto e = static_cast<std::int64_t>(size_of(dtype));
      CHECK(sum == theory::transformer_layer_bytes(1024, 4, 768, 12, e, dropout > 0));
      CHECK(remainder == 4 * 1024 * 4 * 4);
    }
  }
  // Korthikanti et al. 2022, equation 1, at 16 bit: sbh (34 + 5 a s / h).
  CHECK(theory::transformer_layer_bytes(2048, 4, 12288, 96, 2, true) == 2048LL * 4 * (34 * 12288 + 5 * 96 * 2048LL));
  // The fused build keeps less.
  ModelOptions fused, textbook;
  textbook.build = Build::textbook;
  const auto bytes = [](const ModelOptions& options) {
    return theory::gpt_kept_bytes("gpt2", options, DType::f32, Category::activation, 4);
  };
  CHECK(bytes(fused) * 2 < bytes(textbook));
}

TEST_CASE("models gpt: dry and real steps are the same events and the same peak", "[models][gpt]") {
  const OneThread threads;
  for (const Build build : {Build::fused, Build::textbook}) {
    for (const bool is_recomputed : {false, true}) {
      const auto run = [&](Device device) {
        memory::Options with_trace;
        with_trace.trace = true;
        memory::Stack stack = memory::make_resource(device, with_trace);
        {
          const ResourceScope scope(stack.top);
          Generator generator(3);
          const GeneratorScope draws(generator);
          const auto model = made(tiny(build, 0.1), {device, DType::f32});
          model->recompute_blocks(is_recomputed);
          optim::Adam optimizer(model->trainable(), adam_options());
          const Batch batch = model->empty_batch(3, device);
          nn::StepOptions options;
          options.clip_norm = 1;
          for (int i = 0; i < 2; ++i) {
            nn::training_step(
                optimizer, [&](std::int64_t) { return model->loss(batch); }, options);
          }
        }
        return stack;
      };
      const memory::Stack real = run(cpu), imagined = run(dry(cpu));
      CHECK(real.trace->events().size() > 200);
      CHECK(*real.trace == *imagined.trace);
      CHECK(real.arena->statistics().peak_committed_bytes == imagined.arena->statistics().peak_committed_bytes);
      CHECK(real.arena->statistics() == imagined.arena->statistics());
      CHECK(real.ledger->max_allocated() == imagined.ledger->max_allocated());
      CHECK(real.ledger->bytes() == 0);
    }
  }
}

TEST_CASE("models gpt: recomputed blocks give the same bits", "[models][gpt]") {
  const OneThread threads;
  for (const Build build : {Build::fused, Build::textbook}) {
    const auto model = made(tiny(build, 0.2));
    const Pass plain = run_pass(*model, 3);
    model->recompute_blocks();
    CHECK(run_pass(*model, 3) == plain);
    model->recompute_blocks(false);
    CHECK(run_pass(*model, 3) == plain);
    CHECK(run_pass(*model, 3, 6).loss != plain.loss);
  }
}

TEST_CASE("models gpt: weights and checkpoints", "[models][gpt]") {
  const OneThread threads;
  const files_test::TemporaryFolder folder;
  const auto a = made(tiny(Build::fused, 0.1));
  const auto b = made(tiny(Build::textbook, 0.1), {}, 2);
  nn::save_weights(*a, folder / "w");
  nn::load_weights(*b, folder / "w");
  nn::save_weights(*b, folder / "v");
  CHECK(files_test::read_text_file(folder / "w") == files_test::read_text_file(folder / "v"));
  CHECK(SafetensorsReader(folder / "w").entry("h.1.attn.c_attn.weight").shape == std::vector<std::int64_t>{32, 96});

  std::vector<double> straight, resumed;
  Generator generator(4), half(4), other(5);
  optim::Adam optimizer(a->trainable(), adam_options());
  const auto c = made(tiny(Build::fused, 0.1)), d = made(tiny(Build::fused, 0.1), {}, 9);
  optim::Adam first(c->trainable(), adam_options()), second(d->trainable(), adam_options());
  for (std::int64_t i = 0; i < 6; ++i) straight.push_back(train_step(*a, optimizer, generator, i));
  for (std::int64_t i = 0; i < 3; ++i) resumed.push_back(train_step(*c, first, half, i));
  nn::save_checkpoint(folder / "c", *c, first, half, {{"characters", "abc"}});
  CHECK(nn::load_checkpoint(folder / "c", *d, second, other).at("characters") == "abc");
  for (std::int64_t i = 3; i < 6; ++i) resumed.push_back(train_step(*d, second, other, i));
  CHECK(straight == resumed);
}

TEST_CASE("models gpt: generation continues a prompt, the same for the same seed", "[models][gpt]") {
  const OneThread threads;
  const auto model = made(tiny(Build::fused, 0.1));
  const auto tokens = generate(*model, {1, 2}, 20, 0.8, 0, 7);  // beyond the sequence's 16
  REQUIRE(tokens.size() == 22);
  CHECK((tokens[0] == 1 && tokens[1] == 2));
  for (const std::int64_t t : tokens) CHECK((t >= 0 && t < 17));
  CHECK(generate(*model, {1, 2}, 20, 0.8, 0, 7) == tokens);
  CHECK(generate(*model, {1, 2}, 20, 0.8, 0, 8) != tokens);
  CHECK(generate(*model, {1, 2}, 20, 0.8, 1, 7) == generate(*model, {1, 2}, 20, 0, 0, 8));
  CHECK(model->is_training());
  CHECK_THROWS_AS(generate(*model, {}, 1), ValueError);
  CHECK_THROWS_AS(generate(*model, {1}, 1, -1), ValueError);
  CHECK_THROWS_AS(model->forward(zeros({1, 17}, DType::i64)), ShapeError);
  CHECK_THROWS_AS(model->forward(zeros({17}, DType::i64)), ShapeError);
}
