// `thimble train` against hand-written loops: rates and losses of every step, and the evaluation.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <thimble/autograd/tape.h>
#include <thimble/core/ops/copy.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/data/sampler.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/tensor_bytes.h"
#include "support/trained.h"

using namespace thimble;
using files_test::TemporaryFolder;
using models::RunOptions;
using Numbers = std::vector<double>;

namespace {

constexpr std::size_t side = 8, pixels_of_image = side * side;

// Grey images whose brighter row is the class, with noise.
struct Pictures {
  std::vector<std::uint8_t> pixels, labels;
  std::size_t train = 0;
  double mean = 0, deviation = 0;  // of the training images

  explicit Pictures(std::size_t count) : train(count / 5 * 4 + count % 5 * 4 / 5) {
    std::uint64_t state = 9;
    for (std::size_t i = 0; i < count; ++i) {
      labels.push_back(static_cast<std::uint8_t>(1 + i * 7 % 5));
      for (std::size_t p = 0; p < pixels_of_image; ++p) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const auto noise = static_cast<std::uint8_t>(state >> 57);  // below 128
        pixels.push_back(static_cast<std::uint8_t>(noise + (p / side == labels.back() ? 100 : 0)));
      }
    }
    double sum = 0, squares = 0;
    const std::size_t measured = train * pixels_of_image;
    for (std::size_t i = 0; i < measured; ++i) sum += pixels[i] / 255.0;
    mean = sum / static_cast<double>(measured);
    for (std::size_t i = 0; i < measured; ++i) squares += std::pow(pixels[i] / 255.0 - mean, 2);
    deviation = std::sqrt(squares / static_cast<double>(measured));
  }

  // Writes an IDX file and its labels; returns the path of the images.
  std::string write(const TemporaryFolder& folder) const {
    const auto text = [](const std::vector<std::uint8_t>& bytes) { return std::string(bytes.begin(), bytes.end()); };
    using files_test::big;
    files_test::write_text_file(folder / "a-images-idx3-ubyte",
                                big(0x803, 4) + big(labels.size(), 4) + big(side, 4) + big(side, 4) + text(pixels));
    files_test::write_text_file(folder / "a-labels-idx1-ubyte", big(0x801, 4) + big(labels.size(), 4) + text(labels));
    return folder / "a-images-idx3-ubyte";
  }

  Numbers image(std::size_t index) const {
    Numbers x;
    for (std::size_t p = 0; p < pixels_of_image; ++p) {
      x.push_back((pixels[index * pixels_of_image + p] / 255.0 - mean) / deviation);
    }
    return x;
  }
};

// -log softmax(scores)[target].
double negative_log_likelihood(const Numbers& scores, std::size_t target) {
  const double most = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (const double s : scores) sum += std::exp(s - most);
  return std::log(sum) + most - scores[target];
}

double relative_difference(double a, double b) { return std::abs(a - b) / std::abs(b); }

RunOptions options_of(const char* model, const std::string& data, std::int64_t batch, std::int64_t steps) {
  RunOptions options;
  options.setup.model = model, options.setup.batch = batch, options.setup.seed = 3, options.data = data;
  options.steps = steps;
  return options;
}

// The learning rates of a schedule, which training_numbers_test compares with the documentation's.
Numbers rates_of(const RunOptions& options, double rate) {
  Numbers rates;
  for (std::int64_t step = 0; step < options.steps; ++step) rates.push_back(models::rate_at(options, rate, step));
  return rates;
}

struct Told {
  Numbers losses, rates;
};

Told told_by_program(const RunOptions& options) {
  Told told;
  told.losses = trained_test::run(options, [&](const nn::Progress& p) { told.rates.push_back(p.rate); }).losses;
  return told;
}

// A layer of a perceptron in f64: y = W x + b, W (out, in), with gradients and momentum.
struct HandLayer {
  std::size_t in, out;
  Numbers weight, bias, weight_gradient, bias_gradient, weight_velocity, bias_velocity;

  HandLayer(const Tensor& w, const Tensor& b)
      : in(static_cast<std::size_t>(w.size(1))),
        out(static_cast<std::size_t>(w.size(0))),
        weight(to_host<double>(w)),
        bias(to_host<double>(b)),
        weight_velocity(weight.size()),
        bias_velocity(bias.size()) {
    clear();
  }
  void clear() {
    weight_gradient.assign(weight.size(), 0);
    bias_gradient.assign(bias.size(), 0);
  }
  Numbers forward(const Numbers& x) const {
    Numbers y = bias;
    for (std::size_t o = 0; o < out; ++o) {
      for (std::size_t i = 0; i < in; ++i) y[o] += weight[o * in + i] * x[i];
    }
    return y;
  }
  Numbers backward(const Numbers& x, const Numbers& dy) {
    Numbers dx(in);
    for (std::size_t o = 0; o < out; ++o) {
      bias_gradient[o] += dy[o];
      for (std::size_t i = 0; i < in; ++i) {
        weight_gradient[o * in + i] += dy[o] * x[i];
        dx[i] += dy[o] * weight[o * in + i];
      }
    }
    return dx;
  }
  void update(double rate, double momentum, double decay) {
    const auto one = [&](Numbers& p, const Numbers& g, Numbers& v) {
      for (std::size_t i = 0; i < p.size(); ++i) {
        v[i] = momentum * v[i] + g[i] + decay * p[i];
        p[i] -= rate * v[i];
      }
    };
    one(weight, weight_gradient, weight_velocity);
    one(bias, bias_gradient, bias_velocity);
    clear();
  }
};

// Losses of a perceptron with one hidden layer, trained in f64. The library provides only initial values and samples.
Numbers perceptron_by_hand(const RunOptions& options, const Pictures& pictures, const Numbers& rates) {
  RandomGenerator generator(options.setup.seed);
  const GeneratorScope scope(generator);
  models::ModelOptions sizes = options.setup.sizes;
  sizes.image = side, sizes.channels = 1, sizes.classes = 10;
  const auto start = models::make_model("mlp", sizes);
  const auto parameters = start->parameters();
  HandLayer first(parameters[0].tensor, parameters[1].tensor), second(parameters[2].tensor, parameters[3].tensor);
  const data::BatchSampler sampler(static_cast<std::int64_t>(pictures.train), options.setup.batch, options.setup.seed);
  Numbers losses;
  for (std::int64_t step = 0; step < options.steps; ++step) {
    double loss = 0;
    const auto share = 1 / static_cast<double>(options.setup.batch);
    for (const std::int64_t index : sampler.indices(step)) {
      const auto sample = static_cast<std::size_t>(index);
      const Numbers x = pictures.image(sample), h = first.forward(x);
      Numbers active = h;
      for (double& v : active) v = std::max(v, 0.0);
      const Numbers scores = second.forward(active);
      loss += share * negative_log_likelihood(scores, pictures.labels[sample]);
      Numbers gradient(scores.size());
      for (std::size_t k = 0; k < scores.size(); ++k) {
        gradient[k] = share * (std::exp(-negative_log_likelihood(scores, k)) - (k == pictures.labels[sample] ? 1 : 0));
      }
      Numbers hidden = second.backward(active, gradient);
      for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] = h[i] > 0 ? hidden[i] : 0;
      first.backward(x, hidden);
    }
    losses.push_back(loss);
    const double rate = rates[static_cast<std::size_t>(step)];
    const double momentum = options.setup.optimizer.name == "sgd" ? 0 : 0.9,
                 decay = std::max(0.0, options.setup.optimizer.weight_decay);
    first.update(rate, momentum, decay);
    second.update(rate, momentum, decay);
  }
  return losses;
}

void check_same(const Told& told, const Numbers& losses, const Numbers& rates, double tolerance) {
  REQUIRE(told.losses.size() == losses.size());
  REQUIRE(told.rates.size() == rates.size());
  for (std::size_t i = 0; i < losses.size(); ++i) {
    INFO("step " << i << ": " << told.losses[i] << ", by hand " << losses[i] << "; rate " << told.rates[i] << ", "
                 << rates[i]);
    CHECK(relative_difference(told.losses[i], losses[i]) < tolerance);
    CHECK(std::abs(told.rates[i] - rates[i]) <= 1e-12 * rates[i]);
  }
}

// One AdamW update of a parameter in f64 (Loshchilov & Hutter 2019, algorithm 2).
struct HandAdamW {
  Numbers first, second;
  void update(Numbers& p, const Numbers& g, double rate, double beta2, double decay, int step) {
    first.resize(p.size());
    second.resize(p.size());
    for (std::size_t i = 0; i < p.size(); ++i) {
      first[i] = 0.9 * first[i] + 0.1 * g[i];
      second[i] = beta2 * second[i] + (1 - beta2) * g[i] * g[i];
      const double m = first[i] / (1 - std::pow(0.9, step)), v = second[i] / (1 - std::pow(beta2, step));
      p[i] -= rate * (m / (std::sqrt(v) + 1e-8) + decay * p[i]);
    }
  }
};

std::string lines(std::size_t bytes) {
  std::string text;
  std::uint64_t state = 4;
  while (text.size() < bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    text += "abcdefgh \n"[(state >> 60) % 10];
    text += text.back() == 'a' ? "bc" : "a";
  }
  return text.substr(0, bytes);
}

// Losses of whole batches: gradients by the tape, everything else by hand, in f64.
Numbers gpt_by_hand(const RunOptions& options, const Numbers& rates) {
  RunOptions whole = options;
  whole.setup.micro_batches = 1;
  models::Engine engine(whole);
  RandomGenerator generator(options.setup.seed);
  const GeneratorScope scope(generator);
  const auto model = models::make_model(options.setup.model, engine.options().setup.sizes);
  const auto parameters = model->parameters();
  std::vector<Numbers> values;
  std::vector<HandAdamW> states(parameters.size());
  for (const auto& p : parameters) values.push_back(to_host<double>(p.tensor));
  Numbers losses;
  for (int step = 0; step < static_cast<int>(options.steps); ++step) {
    Tape tape;
    Tensor loss;
    {
      const Recording on(tape);
      loss = model->loss(engine.data().batch(step, cpu, DType::f32));
    }
    losses.push_back(item(loss));
    tape.backward(loss);
    std::vector<Numbers> gradients;
    double squares = 0;
    for (const auto& p : parameters) {
      gradients.push_back(to_host<double>(p.tensor.grad()));
      for (const double g : gradients.back()) squares += g * g;
      p.tensor.grad() = Tensor();
    }
    const double norm = std::sqrt(squares), factor = std::min(1.0, options.setup.optimizer.clip_norm / (norm + 1e-6));
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      for (double& g : gradients[i]) g *= factor;
      const double given = options.setup.optimizer.weight_decay, of_matrices = given < 0 ? 0.1 : given;
      const double decay = parameters[i].tensor.rank() >= 2 ? of_matrices : 0;
      states[i].update(values[i], gradients[i], rates[static_cast<std::size_t>(step)], 0.99, decay, step + 1);
      const std::vector<float> rounded(values[i].begin(), values[i].end());
      testing::put_bytes(parameters[i].tensor, rounded.data());
    }
  }
  return losses;
}

Numbers scores_of(models::Model& model, const Tensor& input) {
  const NoGrad off;
  return to_host<double>(model.forward(input));
}

}  // namespace

TEST_CASE("training by hand: a perceptron's losses and rates, step by step", "[training]") {
  const TemporaryFolder folder;
  const Pictures pictures(60);
  RunOptions options = options_of("mlp", pictures.write(folder), 12, 12);
  options.setup.sizes.layers = 1, options.setup.sizes.width = 16, options.setup.optimizer.rate = 0.05;
  SECTION("constant, momentum") {}
  SECTION("step, momentum, weight decay, a floor") {
    options.schedule = "step", options.min_rate = 0.001;
    options.setup.optimizer.weight_decay = 0.02;
  }
  SECTION("cosine after a warm-up, without momentum, in micro-batches") {
    options.schedule = "cosine", options.warmup = 4, options.min_rate = 0.01;
    options.setup.optimizer.name = "sgd", options.setup.optimizer.rate = 0.3;
    options.setup.micro_batches = 3;
  }
  SECTION("constant after a warm-up") { options.warmup = 5; }
  SECTION("steps that nothing divides, an odd batch in as many micro-batches") {
    options.schedule = GENERATE("step", "cosine"), options.steps = 8, options.warmup = 1;
    options.setup.batch = options.setup.micro_batches = 5;
    options.min_rate = 0.0007, options.setup.optimizer.weight_decay = 0.02;
  }
  const Numbers rates = rates_of(options, options.setup.optimizer.rate);
  check_same(told_by_program(options), perceptron_by_hand(options, pictures, rates), rates, 1e-4);
}

TEST_CASE("training by hand: a GPT under AdamW with clipping, a schedule and micro-batches", "[training]") {
  const TemporaryFolder folder;
  files_test::write_text_file(folder / "text.txt", lines(2000));
  RunOptions options = options_of("char-gpt", folder / "text.txt", 4, 8);
  options.setup.sizes.layers = 2, options.setup.sizes.heads = 2, options.setup.sizes.width = 32;
  options.setup.sizes.sequence = 16, options.setup.optimizer.rate = 0.01;
  options.setup.optimizer.clip_norm = 0.5, options.setup.micro_batches = 2, options.schedule = "cosine";
  options.warmup = 2, options.min_rate = 0.002;
  options.setup.optimizer.weight_decay =
      GENERATE(-1.0, 3.0);  // AdamW's default; one large enough to show on gains and biases
  const Numbers rates = rates_of(options, options.setup.optimizer.rate);
  const Numbers losses = gpt_by_hand(options, rates);
  CHECK(losses.back() < 0.97 * losses.front());
  check_same(told_by_program(options), losses, rates, 1e-3);
}

TEST_CASE("training by hand: images are evaluated one by one, in evaluation mode, whatever the batches", "[training]") {
  const TemporaryFolder folder;
  const Pictures pictures(90);  // 18 for validation
  const std::string path = pictures.write(folder);
  for (const char* const name : {"mlp", "resnet18"}) {
    for (const std::int64_t micro_batches : {1, 2}) {
      INFO(name << ", " << micro_batches << " micro-batches");
      RunOptions options = options_of(name, path, 8, 30);  // batches of 8, 8 and 2
      options.eval_batches = 0, options.setup.micro_batches = micro_batches;
      options.setup.sizes.width = name == std::string("mlp") ? 32 : 4, options.setup.optimizer.rate = 0.02;
      models::Engine engine(options);
      models::Training training(engine.options(), engine.data(), cpu);
      for (std::int64_t step = 0; step < 20; ++step) training.step();
      const nn::Evaluation told = *training.evaluate();
      CHECK(training.model().is_training());

      training.model().eval();
      double loss = 0;
      std::size_t correct = 0;
      const std::size_t count = pictures.labels.size() - pictures.train;
      for (std::size_t i = pictures.train; i < pictures.labels.size(); ++i) {
        const Numbers image = pictures.image(i);
        const std::vector<float> x(image.begin(), image.end());
        const Numbers scores = scores_of(training.model(), from_host(x, {1, side, side, 1}));
        loss += negative_log_likelihood(scores, pictures.labels[i]) / static_cast<double>(count);
        correct += std::max_element(scores.begin(), scores.end()) - scores.begin() == pictures.labels[i] ? 1 : 0;
      }
      CHECK(relative_difference(told.loss, loss) < 1e-4);
      REQUIRE(told.accuracy.has_value());
      CHECK(*told.accuracy == static_cast<double>(correct) / static_cast<double>(count));
      if (name == std::string("mlp")) CHECK(*told.accuracy > 0.6);  // it has learned, so the scores decide
    }
  }
}

TEST_CASE("training by hand: text is evaluated window by window, without dropout", "[training]") {
  const TemporaryFolder folder;
  const std::string text = lines(1500);
  files_test::write_text_file(folder / "text.txt", text);
  std::string symbols = text;
  std::sort(symbols.begin(), symbols.end());
  symbols.erase(std::unique(symbols.begin(), symbols.end()), symbols.end());
  RunOptions options = options_of("char-gpt", folder / "text.txt", 4, 20);
  options.setup.sizes.layers = 1, options.setup.sizes.heads = 2, options.setup.sizes.width = 32;
  options.setup.sizes.sequence = 16;
  options.setup.sizes.dropout = 0.3;
  for (const std::int64_t batches : {0, 1}) {  // 0 means all
    INFO(batches << " batches");
    options.eval_batches = batches;
    models::Engine engine(options);
    models::Training training(engine.options(), engine.data(), cpu);
    for (std::int64_t step = 0; step < 10; ++step) training.step();
    const nn::Evaluation told = *training.evaluate();
    CHECK_FALSE(told.accuracy.has_value());
    CHECK(training.model().is_training());

    training.model().eval();
    double loss = 0;
    const std::size_t windows = batches == 0 ? (150 - 1) / 16 : 4;  // 9, in batches of 4, 4 and 1
    for (std::size_t w = 0; w < windows; ++w) {
      std::vector<std::int64_t> tokens;
      for (std::size_t t = 0; t <= 16; ++t) {
        tokens.push_back(static_cast<std::int64_t>(symbols.find(text[1350 + 16 * w + t])));
      }
      const std::vector<std::int64_t> ids(tokens.begin(), tokens.end() - 1);
      const Numbers scores = scores_of(training.model(), from_host(ids, {1, 16}));  // (1, T, V)
      for (std::size_t t = 0; t < 16; ++t) {
        const auto row = scores.begin() + static_cast<std::ptrdiff_t>(t * symbols.size());
        loss += negative_log_likelihood({row, row + static_cast<std::ptrdiff_t>(symbols.size())},
                                        static_cast<std::size_t>(tokens[t + 1])) /
                static_cast<double>(16 * windows);
      }
    }
    CHECK(relative_difference(told.loss, loss) < 1e-4);
  }
}
