// ResNets and the multilayer perceptron: counts, names, gradients, the two builds bit for bit, dry and real runs event
// by event.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/stack.h>
#include <thimble/models/mlp/mlp.h>
#include <thimble/models/resnet/resnet.h>
#include <thimble/models/theory.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"

using namespace thimble;
using namespace thimble::models;

namespace {

/// Sets the number of threads for a scope; small models are faster with a single thread.
class Threads {
 public:
  explicit Threads(int threads = 1) : before_(thread_count()) { set_thread_count(threads); }
  ~Threads() { set_thread_count(before_); }

 private:
  int before_;
};

ModelOptions tiny(Build build, std::int64_t image = 32, std::int64_t width = 8) {
  ModelOptions options;
  options.image = image;
  options.width = width;
  options.classes = 10;
  options.build = build;
  return options;
}

/// Normal images and the classes 0, 1, 2, ...
Batch made_batch(const Model& model, std::int64_t samples) {
  Batch batch = model.empty_batch(samples, cpu);
  fill_normal(batch.input, 0, 1);
  std::vector<std::int64_t> classes;
  for (std::int64_t i = 0; i < samples; ++i) classes.push_back(i % model.options().classes);
  copy_into(batch.target, from_host(classes, {samples}));
  return batch;
}

/// Loss, gradients and buffers after one forward and backward.
struct Gradient {
  std::string name;
  std::vector<double> values;
};
std::vector<Gradient> loss_and_gradients(const char* name, const ModelOptions& options, std::int64_t samples) {
  const Threads alone;
  RandomGenerator generator(7);
  const GeneratorScope scope(generator);
  const auto model = make_model(name, options);
  const Batch batch = made_batch(*model, samples);
  Tape tape;
  Tensor loss;
  {
    const Recording on(tape);
    loss = model->loss(batch);
  }
  std::vector<Gradient> list = {{"loss", to_host<double>(loss)}};
  tape.backward(loss);
  for (const nn::NamedTensor& p : model->parameters()) list.push_back({p.name, to_host<double>(p.tensor.grad())});
  for (const nn::NamedTensor& b : model->buffers()) list.push_back({b.name, to_host<double>(b.tensor)});
  return list;
}

bool is_same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

/// torchvision's state_dict of resnet50, from its naming rule.
std::set<std::string> torchvision_resnet50() {
  std::set<std::string> names = {"conv1.weight", "fc.weight", "fc.bias"};
  const auto add_norm = [&](const std::string& prefix) {
    for (const char* part : {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"})
      names.insert(prefix + "." + part);
  };
  add_norm("bn1");
  const int blocks[] = {3, 4, 6, 3};
  for (int layer = 1; layer <= 4; ++layer) {
    for (int b = 0; b < blocks[layer - 1]; ++b) {
      const std::string block = "layer" + std::to_string(layer) + "." + std::to_string(b);
      for (const char* i : {"1", "2", "3"}) {
        names.insert(block + ".conv" + i + ".weight");
        add_norm(block + ".bn" + i);
      }
      if (b > 0) continue;
      names.insert(block + ".downsample.0.weight");
      add_norm(block + ".downsample.1");
    }
  }
  return names;
}

Shape file_shape(const nn::NamedTensor& t) {
  const Shape& s = t.tensor.shape();
  return t.layout == nn::FileLayout::oihw ? Shape{s[0], s[3], s[1], s[2]} : s;
}

/// Two steps of SGD with momentum on a device; the stack keeps the record.
memory::Stack run_two_steps(const char* name, const ModelOptions& options, std::int64_t samples, int threads,
                            memory::Device device) {
  const Threads scope(threads);
  memory::Stack stack = memory::make_resource(device, {.trace = true});
  const ResourceScope resource(stack.top);
  RandomGenerator generator(3);
  const GeneratorScope draws(generator);
  const auto model = make_model(name, options, {device});
  optim::Sgd sgd(model->trainable(), {.rate = 0.1, .momentum = 0.9});
  const Batch batch = model->empty_batch(samples, device);
  for (int step = 0; step < 2; ++step) {
    nn::training_step(sgd, [&](std::int64_t) { return model->loss(batch); });
  }
  return stack;
}

}  // namespace

TEST_CASE("models resnet: parameter counts are the published ones", "[models][resnet][quick]") {
  const struct {
    const char* name;
    std::int64_t parameters;
    std::size_t entries;
  } rows[] = {{"resnet18", 11689512, 122},       {"resnet34", 21797672, 218},
              {"resnet50", 25557032, 320},       {"resnet101", 44549160, 626},
              {"gpt2", 124439808, 148},          {"gpt2-medium", 354823168, 292},
              {"gpt2-large", 774030080, 436},    {"gpt2-xl", 1557611200, 580},
              {"char-gpt", 10770816, 76},        {"gpt-22b", 22074273792, 580},
              {"gpt-175b", 174615846912, 1156},  {"gpt-530b", 529600819200, 1264},
              {"gpt-1t", 1008038758400, 1540},   {"llama-3.2-1b", 1235814400, 146},
              {"llama-3.2-3b", 3212749824, 254}, {"llama-3-8b", 8030261248, 291},
              {"llama-3-70b", 70553706496, 723}, {"llama-2-7b", 6738415616, 291},
              {"qwen2.5-0.5b", 494032768, 290},  {"qwen2.5-7b", 7615616512, 339},
              {"tiny-llama", 9467136, 56},       {"bert-base", 109514298, 202},
              {"bert-large", 335174458, 394},    {"vit-b16", 86567656, 152},
              {"vit-l16", 304326632, 296},       {"googlenet", 6624904, 344},
              {"sharedconv", 216618, 95},        {"mlp", 784 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10, 6}};
  const std::vector<ModelInfo> list = model_list();
  CHECK(list.size() == std::size(rows));
  for (const auto& row : rows) {
    CAPTURE(row.name);
    const auto model = make_model(row.name, {}, {dry(cpu)});
    CHECK(model->parameter_count() == row.parameters);
    CHECK(model->parameters().size() + model->buffers().size() == row.entries);
    const auto info = std::find_if(list.begin(), list.end(), [&](const ModelInfo& m) { return m.name == row.name; });
    REQUIRE(info != list.end());
    CHECK(info->parameters == row.parameters);
  }
}

TEST_CASE("models resnet: names and file shapes are torchvision's", "[models][resnet][quick]") {
  const auto model = make_model("resnet50", {}, {dry(cpu)});
  std::vector<nn::NamedTensor> entries = model->parameters();
  CHECK(entries.front().name == "conv1.weight");
  CHECK(entries.back().name == "fc.bias");
  for (const nn::NamedTensor& b : model->buffers()) entries.push_back(b);
  std::set<std::string> names;
  for (const nn::NamedTensor& e : entries) names.insert(e.name);
  CHECK(entries.size() == 320);
  CHECK(names == torchvision_resnet50());

  const struct {
    const char* name;
    Shape shape;
  } rows[] = {{"conv1.weight", {64, 3, 7, 7}},
              {"bn1.running_var", {64}},
              {"bn1.num_batches_tracked", {}},
              {"layer1.0.conv1.weight", {64, 64, 1, 1}},
              {"layer1.0.downsample.0.weight", {256, 64, 1, 1}},
              {"layer2.0.conv2.weight", {128, 128, 3, 3}},
              {"layer3.5.conv3.weight", {1024, 256, 1, 1}},
              {"layer4.0.downsample.0.weight", {2048, 1024, 1, 1}},
              {"layer4.2.bn3.bias", {2048}},
              {"fc.weight", {1000, 2048}}};
  for (const auto& row : rows) {
    CAPTURE(row.name);
    const auto entry = std::find_if(entries.begin(), entries.end(), [&](const auto& e) { return e.name == row.name; });
    REQUIRE(entry != entries.end());
    CHECK(file_shape(*entry) == row.shape);
  }
}

TEST_CASE("models resnet: initial values are the papers'", "[models][resnet][quick]") {
  const Threads alone;
  RandomGenerator generator(1);
  const GeneratorScope scope(generator);
  const auto model = make_model("resnet18", tiny(Build::fused, 32, 16));
  for (const nn::NamedTensor& p : model->parameters()) {
    CAPTURE(p.name);
    const std::vector<double> values = to_host<double>(p.tensor);
    double sum = 0, squares = 0, largest = 0;
    for (const double v : values) sum += v, squares += v * v, largest = std::max(largest, std::abs(v));
    const auto count = static_cast<double>(values.size());
    if (p.layout == nn::FileLayout::oihw) {  // variance 2 / (O K K), up to 5 deviations of its estimate
      const Shape& s = p.tensor.shape();
      const double variance = 2.0 / static_cast<double>(s[0] * s[1] * s[2]);
      CHECK(squares / count == Approx(variance).epsilon(5 * std::sqrt(2 / count)));
    } else if (p.name.starts_with("fc.")) {
      CHECK(largest <= 1 / std::sqrt(128.0));
      CHECK(largest > 0.7 / std::sqrt(128.0));
    } else {
      CHECK(sum == (p.name.ends_with("weight") ? count : 0));
      CHECK(squares == sum);
    }
  }
}

TEST_CASE("models resnet: every parameter gets a gradient, and the loss falls", "[models][resnet][quick]") {
  const Threads alone;
  for (const Build build : {Build::fused, Build::textbook}) {
    RandomGenerator generator(5);
    const GeneratorScope scope(generator);
    const auto model = make_model("resnet18", tiny(build));
    const Batch batch = made_batch(*model, 2);
    Tape tape;
    Tensor loss;
    {
      const Recording on(tape);
      loss = model->loss(batch);
    }
    CHECK(loss.elements() == 1);
    tape.backward(loss);
    for (const nn::NamedTensor& p : model->parameters()) {
      CAPTURE(p.name);
      REQUIRE(p.tensor.grad().defined());
      double squares = 0;
      for (const double g : to_host<double>(p.tensor.grad())) squares += g * g;
      CHECK(std::isfinite(squares));
      CHECK(squares > 0);
    }
    optim::Sgd sgd(model->trainable(), {.rate = 0.05, .momentum = 0.9});
    sgd.zero_grad();
    std::vector<double> losses;
    for (int step = 0; step < 10; ++step) {
      losses.push_back(item(nn::training_step(sgd, [&](std::int64_t) { return model->loss(batch); })));
    }
    CAPTURE(losses);
    CHECK(losses.front() == item(loss));
    CHECK(losses.back() < losses.front() / 2);
    for (const nn::NamedTensor& b : model->buffers()) {
      if (b.name == "bn1.num_batches_tracked") CHECK(item(b.tensor) == 11);
    }
  }
}

TEST_CASE("models resnet: the fused and the textbook build have the same bits", "[models][resnet][quick]") {
  const struct {
    const char* name;
    std::int64_t image;
  } rows[] = {{"resnet18", 32}, {"resnet18", 72}, {"resnet50", 32}, {"mlp", 12}};
  for (const auto& row : rows) {
    CAPTURE(row.name, row.image);
    const auto fused = loss_and_gradients(row.name, tiny(Build::fused, row.image), 2);
    const auto textbook = loss_and_gradients(row.name, tiny(Build::textbook, row.image), 2);
    REQUIRE(fused.size() == textbook.size());
    for (std::size_t i = 0; i < fused.size(); ++i) {
      CAPTURE(fused[i].name);
      CHECK(is_same_bits(fused[i].values, textbook[i].values));
    }
  }
}

TEST_CASE("models resnet: evaluation uses the running statistics", "[models][resnet][quick]") {
  const Threads alone;
  RandomGenerator generator(2);
  const GeneratorScope scope(generator);
  const auto model = make_model("resnet18", tiny(Build::fused));
  const Batch batch = made_batch(*model, 3);
  model->eval();
  const std::vector<double> all = to_host<double>(model->forward(batch.input));
  Batch one = model->empty_batch(1, cpu);
  copy_into(
      one.input,
      from_host(to_host<float>(batch.input), batch.input.shape()).window(one.input.shape(), one.input.strides(), 0));
  const std::vector<double> first = to_host<double>(model->forward(one.input));
  CHECK(is_same_bits(first, {all.begin(), all.begin() + 10}));  // a sample does not see its neighbours
  for (const nn::NamedTensor& b : model->buffers()) {
    if (b.name.ends_with("num_batches_tracked")) CHECK(item(b.tensor) == 0);
  }
}

TEST_CASE("models resnet: a dry run is the real run, event by event", "[models][resnet][quick]") {
  const struct {
    const char* name;
    ModelOptions options;
    int threads;
  } rows[] = {{"resnet18", tiny(Build::fused), 1},
              {"resnet18", tiny(Build::textbook), 1},
              {"resnet50", tiny(Build::fused, 72), 1},
              {"mlp", tiny(Build::fused, 28, 64), 1},
              {"mlp", tiny(Build::textbook, 28, 64), 2}};
  for (const auto& row : rows) {
    CAPTURE(row.name, row.options.image);
    const memory::Stack real = run_two_steps(row.name, row.options, 2, row.threads, cpu);
    const memory::Stack dried = run_two_steps(row.name, row.options, 2, row.threads, dry(cpu));
    CHECK(real.arena->statistics().peak_committed_bytes == dried.arena->statistics().peak_committed_bytes);
    CHECK(real.ledger->max_allocated() == dried.ledger->max_allocated());
    CHECK(*real.trace == *dried.trace);
    CHECK(real.ledger->bytes() == 0);
  }
}

TEST_CASE("models resnet: what does not fit is refused by name", "[models][resnet][quick]") {
  const nn::TensorOptions on{dry(cpu)};
  const auto with = [](auto member, auto value) {
    ModelOptions options;
    options.*member = value;
    return options;
  };
  std::string message;
  try {
    make_model("resnet19", {}, on);
  } catch (const ValueError& error) {
    message = error.what();
  }
  for (const char* part : {"resnet19", "resnet18", "resnet101", "mlp"}) CHECK(message.find(part) != std::string::npos);
  CHECK_THROWS_AS(make_model("resnet18", with(&ModelOptions::image, 7), on), ValueError);
  CHECK_THROWS_AS(make_model("resnet18", with(&ModelOptions::layers, 18), on), ValueError);
  CHECK_THROWS_AS(make_model("mlp", with(&ModelOptions::vocabulary, 65), on), ValueError);
  CHECK_THROWS_AS(make_model("mlp", with(&ModelOptions::dropout, 0.5), on), ValueError);
  CHECK_THROWS_AS(resnet_theory("mlp", {}, {}), ValueError);
  CHECK_THROWS_AS(make_theory("resnet18").state(-1), ValueError);
  CHECK_THROWS_AS(make_model("mlp", {}, on)->empty_batch(0, cpu), ValueError);
  CHECK(make_model("resnet18", with(&ModelOptions::image, 32), on)->options().classes == 10);
  CHECK(make_model("resnet18", make_model("resnet18", {}, on)->options(), on)->parameter_count() == 11689512);
  CHECK(make_model("resnet50", with(&ModelOptions::channels, 1), on)->parameter_count() == 25557032 - 2 * 64 * 49);
}

// ---- The bytes of a ResNet: theory against the ledger, as integers.

using namespace thimble::models;

namespace {

ModelOptions sized(std::int64_t image, std::int64_t width) {
  ModelOptions options;
  options.image = image;
  options.width = width;
  options.classes = 10;
  return options;
}

std::int64_t booked(const memory::Stack& stack, memory::Category category) {
  return static_cast<std::int64_t>(stack.ledger->bytes(category));
}

}  // namespace

TEST_CASE("models resnet theory: the literature's saved set of ResNet-50", "[models][resnet][theory][quick]") {
  std::int64_t saved_set = 0;
  ModelOptions textbook;
  textbook.build = Build::textbook;
  const Theory theory = make_theory("resnet50", textbook);
  for (const Term& term : theory.outside) {
    const std::int64_t elements = term.elements(1);
    if (term.name == "input") CHECK(elements == 150528);
    if (term.name == "conv outputs") CHECK(elements == 11113984);
    if (term.name == "relu outputs") CHECK(elements == 9608704);
    if (term.name == "pool output") CHECK(elements == 200704);
    if (term.name == "fc input") CHECK(elements == 2048);
    for (const char* name : {"input", "conv outputs", "relu outputs", "pool output", "fc input"}) {
      if (term.name == name) saved_set += elements;
    }
  }
  CHECK(saved_set == 21075968);
  const ModelState state = theory.state(1);  // SGD with momentum
  CHECK(state.parameters + state.gradients + state.optimizer == 12 * 25557032);
  CHECK(saved_set * 4 * 184 + 12 * 25557032 == 15818596832);  // 14.73 GiB at batch 184
}

TEST_CASE("models resnet theory: theory is what the ledger books, to the byte", "[models][resnet][theory][quick]") {
  const struct {
    const char* name;
    ModelOptions options;
    std::int64_t batch;
    DType dtype;
  } rows[] = {{"resnet18", {}, 1, DType::f32},
              {"resnet18", {}, 32, DType::f32},
              {"resnet18", sized(28, 8), 128, DType::f32},
              {"resnet34", {}, 7, DType::f32},
              {"resnet50", {}, 1, DType::f32},
              {"resnet50", {}, 3, DType::f32},
              {"resnet50", {}, 184, DType::f32},
              {"resnet50", {}, 16, DType::bf16},
              {"resnet50", sized(225, 64), 2, DType::f32},  // an odd size
              {"resnet101", {}, 2, DType::f32},
              {"resnet18", sized(32, 64), 2, DType::f64}};
  for (const auto& row : rows) {
    ModelOptions options = row.options;
    options.build = Build::textbook;
    CAPTURE(row.name, options.image, row.batch, to_string(row.dtype));
    const memory::Stack stack = memory::make_resource(dry(cpu));
    const ResourceScope resource(stack.top);
    const auto model = make_model(row.name, options, {dry(cpu), row.dtype});
    const Theory theory = make_theory(row.name, options, row.dtype);
    const ModelState state = theory.state(1);
    CHECK(booked(stack, memory::Category::parameter) == state.parameters + state.buffers);
    optim::Sgd sgd(model->trainable(), {.rate = 0.1, .momentum = 0.9});
    CHECK(booked(stack, memory::Category::optimizer) == state.optimizer);

    const Batch batch = model->empty_batch(row.batch, dry(cpu));
    Tape tape;
    Tensor loss;
    {
      const Recording on(tape);
      loss = model->loss(batch);
    }
    CHECK(booked(stack, memory::Category::activation) == theory.kept_bytes(memory::Category::activation, row.batch));
    CHECK(booked(stack, memory::Category::input) == theory.kept_bytes(memory::Category::input, row.batch));
    CHECK(booked(stack, memory::Category::temporary) ==
          static_cast<std::int64_t>(loss.bytes()));  // nothing else remains
    CHECK(booked(stack, memory::Category::workspace) == 0);
    CHECK(booked(stack, memory::Category::gradient) == 0);
    tape.backward(loss);
    CHECK(booked(stack, memory::Category::gradient) == state.gradients);
    CHECK(booked(stack, memory::Category::activation) == 0);
  }
}

TEST_CASE("models resnet theory: with products in fewer digits, too", "[models][resnet][theory][quick]") {
  ModelOptions options = sized(32, 64);
  options.build = Build::textbook;
  for (const char* name : {"O1", "O2"}) {
    INFO(name);
    const memory::Stack stack = memory::make_resource(dry(cpu));
    const ResourceScope resource(stack.top);
    const auto model = make_model("resnet18", options, nn::precision(name).on(dry(cpu)));
    const Batch batch = model->empty_batch(3, dry(cpu));
    Tape tape;
    Tensor loss;
    {
      const Recording on(tape);
      loss = model->loss(batch);
    }
    const Theory theory = make_theory("resnet18", options, nn::precision(name));
    CHECK(booked(stack, memory::Category::activation) == theory.kept_bytes(memory::Category::activation, 3));
  }
}

TEST_CASE("models resnet theory: the fused build keeps fewer bytes", "[models][resnet][quick]") {
  std::int64_t bytes[2];
  for (const Build build : {Build::fused, Build::textbook}) {
    const memory::Stack stack = memory::make_resource(dry(cpu));
    const ResourceScope resource(stack.top);
    ModelOptions options;
    options.build = build;
    const auto model = make_model("resnet50", options, {dry(cpu)});
    const Batch batch = model->empty_batch(1, dry(cpu));
    Tape tape;
    const Recording on(tape);
    const Tensor loss = model->loss(batch);
    bytes[static_cast<int>(build)] = booked(stack, memory::Category::activation);
  }
  const std::int64_t stem_relu = 112 * 112 * 64 * 4, taps = 56 * 56 * 64;
  const std::int64_t block_outputs = (3 * 56 * 56 * 256 + 4 * 28 * 28 * 512 + 6 * 14 * 14 * 1024 + 3 * 7 * 7 * 2048);
  const std::int64_t masks = (block_outputs + 7) / 8;  // one bit; backward does not read the last relu's result
  const std::int64_t last_relu = 7 * 7 * 2048 * 4;
  CHECK(bytes[0] == bytes[1] - stem_relu + taps + masks - last_relu);
}
