// Adapters over frozen layers: initial values, forward and gradients against loops, merging, the choice of layers,
// checkpoints, and PEFT's files.

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/gradcheck.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/layers/module.h>
#include <thimble/nn/lora/adapter_files.h>
#include <thimble/nn/lora/lora.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/adam.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/hand_loops.h"
#include "support/near.h"
#include "support/tensor_files.h"

using namespace thimble;
using hand_loops::Values;

namespace lora_test {

/// Two blocks of two layers, and a head outside of blocks.
struct Net final : nn::Module {
  explicit Net(const nn::TensorOptions& on, kernels::Activation activation = kernels::Activation::none,
               bool is_in_out = false)
      : in_out(is_in_out) {
    for (int i = 0; i < 2; ++i) {
      const std::string block = "h." + std::to_string(i);
      const nn::LinearOptions options{.weight_is_in_out = is_in_out, .activation = activation};
      up.push_back(&child<nn::Linear>(block + ".up_proj", 6, 8, on, options));
      down.push_back(&child<nn::Linear>(block + ".down_proj", 8, 6, on, nn::LinearOptions{.weight_is_in_out = in_out}));
    }
    head = &child<nn::Linear>("head", 6, 3, on.outside_blocks());
  }
  Tensor forward(const Tensor& x) {
    Tensor h = x;
    for (std::size_t i = 0; i < up.size(); ++i) h = h + (*down[i])((*up[i])(h));
    return (*head)(h);
  }
  bool in_out;
  std::vector<nn::Linear*> up, down;
  nn::Linear* head;
};

struct Seeded {
  RandomGenerator generator;
  GeneratorScope scope;
  explicit Seeded(std::uint64_t seed = 3) : generator(seed), scope(generator) {}
};

std::vector<std::string> names(const std::vector<nn::NamedLinear>& layers) {
  std::vector<std::string> list;
  for (const nn::NamedLinear& l : layers) list.push_back(l.name);
  return list;
}

/// Fills every B, which starts at 0, so that the adapters have an effect.
void stir(nn::Module& module) {
  for (const nn::NamedLinear& l : nn::adapted_layers(module)) fill_normal(l.adapter->lora_b, 0, 0.3);
}

}  // namespace lora_test

TEST_CASE("lora: names are meant by patterns", "[lora]") {
  CHECK(nn::matches("h.10.attn", "h.*.attn"));
  CHECK(nn::matches("aXbYbZ", "a*b*Z"));
  CHECK(nn::matches("", "*"));
  CHECK_FALSE(nn::matches("h.0.attn.x", "h.*.attn"));
  CHECK_FALSE(nn::matches("ab", "ab?"));
  CHECK(nn::is_at_or_below("h.0.attn.c_attn.weight", "h.*.attn"));
  CHECK_FALSE(nn::is_at_or_below("h.0.attention", "h.0.attn"));
  CHECK(nn::ends_as("model.layers.0.self_attn.q_proj", "q_proj"));
  CHECK(nn::ends_as("model.layers.0.self_attn.q_proj", "self_attn.*_proj"));
  CHECK_FALSE(nn::ends_as("model.layers.0.self_attn.xq_proj", "q_proj"));
}

TEST_CASE("lora: adapters begin as PEFT's do, and change nothing", "[lora]") {
  using namespace lora_test;
  const Seeded seeded;
  Net net({cpu, DType::f32});
  const Tensor x = randn({5, 6});
  const std::vector<float> before = to_host<float>(net.forward(x));
  const auto layers = nn::add_lora(net, {{.rank = 3, .alpha = 6}});
  CHECK(names(layers) == std::vector<std::string>{"h.0.up_proj", "h.0.down_proj", "h.1.up_proj", "h.1.down_proj"});
  CHECK(to_host<float>(net.forward(x)) == before);
  std::vector<std::string> trained;
  for (const nn::Named& p : net.trainable()) trained.push_back(p.name);
  CHECK(trained == std::vector<std::string>{"h.0.up_proj.lora_A.weight", "h.0.up_proj.lora_B.weight",
                                            "h.0.down_proj.lora_A.weight", "h.0.down_proj.lora_B.weight",
                                            "h.1.up_proj.lora_A.weight", "h.1.up_proj.lora_B.weight",
                                            "h.1.down_proj.lora_A.weight", "h.1.down_proj.lora_B.weight"});
  for (const nn::NamedLinear& l : layers) {
    INFO(l.name);
    CHECK(l.adapter->lora_a.shape() == Shape{3, l.layer->inputs()});
    CHECK(l.adapter->lora_b.shape() == Shape{l.layer->outputs(), 3});
    for (const float b : to_host<float>(l.adapter->lora_b)) CHECK(b == 0);
    const double bound = 1 / std::sqrt(static_cast<double>(l.layer->inputs()));  // Kaiming uniform with a = sqrt(5)
    double most = 0;
    for (const float a : to_host<float>(l.adapter->lora_a)) most = std::max(most, std::abs(static_cast<double>(a)));
    CHECK(most <= bound);
    CHECK(most > 0.7 * bound);
  }
  CHECK(to_host<float>(layers[0].adapter->lora_a) != to_host<float>(layers[2].adapter->lora_a));
  // Initial values depend on the seed and the layer's path.
  const Seeded again;
  Net twin({cpu, DType::f32});
  const auto other = nn::add_lora(twin, {{.rank = 3, .alpha = 6}, {"down_proj"}});
  CHECK(names(other) == std::vector<std::string>{"h.0.down_proj", "h.1.down_proj"});
  CHECK(to_host<float>(other[0].adapter->lora_a) == to_host<float>(layers[1].adapter->lora_a));
}

TEST_CASE("lora: forward and gradients against loops", "[lora]") {
  using namespace hand_loops;
  const lora_test::Seeded seeded;
  constexpr std::size_t n = 5, in = 6, out = 4, r = 2;
  constexpr double alpha = 3, scale = alpha / r;
  nn::Linear layer(in, out, {cpu, DType::f64});
  auto& adapter = nn::replace<nn::LoraLinear>(layer, nn::AdapterOptions{.rank = r, .alpha = alpha});
  CHECK(adapter.lora_a.dtype() == DType::f64);
  layer.freeze("weight");
  layer.freeze("bias");
  fill_normal(adapter.lora_b, 0, 1);
  Tensor x = randn({n, in}, DType::f64);
  x.require_grad();
  const Values hx = values_of(x), w = values_of(layer.weight), bias = values_of(layer.bias),
               a = values_of(adapter.lora_a), b = values_of(adapter.lora_b);
  const Values u = product(hx, transposed(a, r, in), n, in, r);
  Values y = product(hx, transposed(w, out, in), n, in, out), added = product(u, transposed(b, out, r), n, r, out);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += bias[i % out] + scale * added[i];
  Values dy(y.size());
  for (std::size_t i = 0; i < y.size(); ++i) dy[i] = 2 * y[i];
  Values du = product(dy, b, n, out, r);
  for (double& v : du) v *= scale;
  Values db = product(transposed(dy, n, out), u, out, n, r), dx = product(dy, w, n, out, in);
  for (double& v : db) v *= scale;
  const Values through = product(du, a, n, r, in);
  for (std::size_t i = 0; i < dx.size(); ++i) dx[i] += through[i];
  Tape tape;
  Tensor result, loss;
  {
    const Recording on(tape);
    result = layer(x);
    loss = sum(square(result));
  }
  check_close(result, y);
  tape.backward(loss);
  check_close(adapter.lora_a.grad(), product(transposed(du, n, r), hx, r, n, in));
  check_close(adapter.lora_b.grad(), db);
  check_close(x.grad(), dx);
  CHECK_FALSE(layer.weight.grad().defined());
}

TEST_CASE("lora: gradients of nets with adapters against central differences", "[lora]") {
  using namespace lora_test;
  const Seeded seeded;
  for (const auto activation : {kernels::Activation::none, kernels::Activation::relu, kernels::Activation::gelu_tanh,
                                kernels::Activation::gelu_erf}) {
    for (const double dropout : {0.0, 0.25}) {
      Net net({cpu, DType::f64}, activation, true);
      nn::add_lora(net, {{.rank = 2, .alpha = 3, .dropout = dropout}});
      stir(net);
      const Tensor x = randn({4, 6}, DType::f64);
      std::vector<Tensor> leaves;
      for (const nn::Named& p : net.trainable()) leaves.push_back(p.tensor);
      const auto loss = [&](std::span<const Tensor>) {
        RandomGenerator same(9);  // for equal masks
        const GeneratorScope scope(same);
        return sum(square(net.forward(x)));
      };
      const auto value = [&] {
        const NoGrad off;
        return item(loss({}));
      };
      Tape tape;
      Tensor result;
      {
        const Recording on(tape);
        result = loss({});
      }
      tape.backward(result);
      for (const Tensor& leaf : leaves) {
        const Values gradient = to_host<double>(Tensor(leaf).grad());
        Values at = to_host<double>(leaf);
        for (std::size_t i = 0; i < at.size(); i += 5) {
          constexpr double step = 1e-5;
          const double before = at[i];
          double sides[2];
          for (const int side : {0, 1}) {
            at[i] = before + (side == 0 ? -step : step);
            copy_into(leaf.detach(), from_host(at, leaf.shape()));
            sides[side] = value();
          }
          at[i] = before;
          copy_into(leaf.detach(), from_host(at, leaf.shape()));
          const double slope = (sides[1] - sides[0]) / (2 * step);
          CHECK(gradient[i] == Approx(slope).epsilon(1e-6).margin(1e-6));
        }
      }
    }
  }
}

TEST_CASE("lora: dropout is of what adapters read, in training alone", "[lora]") {
  using namespace lora_test;
  const Seeded seeded;
  nn::Linear layer(6, 4, {cpu, DType::f32});
  auto& adapter = nn::replace<nn::LoraLinear>(layer, nn::AdapterOptions{.rank = 2, .alpha = 2, .dropout = 0.5});
  const Tensor x = randn({64, 6});
  const std::vector<float> plain = to_host<float>(layer(x));  // B is 0
  fill_normal(adapter.lora_b, 0, 1);
  const std::vector<float> dropped = to_host<float>(layer(x));
  layer.eval();
  const std::vector<float> whole = to_host<float>(layer(x));
  CHECK(dropped != whole);
  CHECK(to_host<float>(layer(x)) == whole);
  fill(adapter.lora_b, 0);
  layer.train();
  CHECK(to_host<float>(layer(x)) == plain);  // dropout spares the layer's own input
}

TEST_CASE("lora: merged weights give what adapted ones do", "[lora]") {
  using namespace lora_test;
  for (const bool is_in_out : {false, true}) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      INFO(to_string(dtype) << " " << is_in_out);
      const Seeded seeded;
      Net net({cpu, dtype}, kernels::Activation::gelu_tanh, is_in_out);
      const Tensor x = randn({7, 6}, dtype);
      const auto values = [&] { return to_host<double>(net.forward(x)); };
      const auto weights = [&] { return to_host<double>(net.up[1]->weight); };
      CHECK_THROWS_AS(nn::merge_lora(net), ValueError);
      nn::LoraLinear& first = *nn::add_lora(net, {{.rank = 3, .alpha = 6}}).front().adapter;
      CHECK_THROWS_AS(nn::unmerge_lora(net), ValueError);
      first.merge();  // of some only: nothing changes
      CHECK_THROWS_AS(nn::unmerge_lora(net), ValueError);
      CHECK_THROWS_AS(nn::merge_lora(net), ValueError);
      for (const nn::NamedLinear& l : nn::adapted_layers(net)) CHECK(l.adapter->is_merged() == (l.adapter == &first));
      first.unmerge();
      stir(net);
      const auto adapted = values(), before = weights();
      nn::merge_lora(net);
      CHECK_THROWS_AS(nn::merge_lora(net), ValueError);
      CHECK(nn::has_adapters(net));  // since the adapters are in its files
      const double tolerance = dtype == DType::f64 ? 1e-14 : dtype == DType::f32 ? 1e-6 : 2e-2;
      const auto near = [&](const Values& a, const Values& b) {
        return thimble_test::largest_difference(a, b) <= tolerance * thimble_test::largest_of(b);
      };
      CHECK(near(values(), adapted));
      CHECK_FALSE(near(weights(), before));
      nn::unmerge_lora(net);
      CHECK(near(weights(), before));
      CHECK(near(values(), adapted));
    }
  }
}

TEST_CASE("lora: what cannot be is refused, with nothing changed", "[lora]") {
  using namespace lora_test;
  Net net({dry(cpu), DType::f32});
  const auto refuses = [&](const nn::LoraOptions& options, const std::string& text) {
    INFO(text);
    CHECK_THROWS_WITH(nn::add_lora(net, options), Catch::Contains(text));
    CHECK_FALSE(nn::has_adapters(net));
    CHECK(net.trainable().size() == 10);
  };
  refuses({{.rank = 0}}, "rank 0; expected at least 1");
  refuses({{.alpha = std::nan("")}}, "alpha nan");
  refuses({{.dropout = 1}}, "dropout 1.000000 is not in [0, 1)");
  refuses({{}, {"up_proj", "q_proj"}}, "target 'q_proj' means no linear layer; there are h.0.up_proj, h.0.down_proj");
  nn::add_lora(net, {{}, {"head"}});  // outside of blocks, but named
  CHECK(net.trainable().size() == 2);
  CHECK_THROWS_AS(nn::add_lora(net, {}), ValueError);  // it already has adapters
  struct Convolutions final : nn::Module {
    nn::Conv2d& conv = child<nn::Conv2d>("conv", 3, 4, 3);
  } other;
  CHECK_THROWS_AS(nn::add_lora(other, {}), ValueError);
}

TEST_CASE("lora: checkpoints have what is trained, and training goes on with the same bits", "[lora]") {
  using namespace lora_test;
  const files_test::TemporaryFolder folder;
  struct Run {
    Seeded seeded;
    Net net{{cpu, DType::f32}};
    std::unique_ptr<optim::Adam> adam;
    Run() {
      nn::add_lora(net, {{.rank = 2, .alpha = 2, .dropout = 0.1}});
      adam = std::make_unique<optim::Adam>(net.trainable(), optim::AdamOptions{.rate = 0.01});
    }
    void step(int number) {
      RandomGenerator data(static_cast<std::uint64_t>(number) + 100);
      Tensor x;
      {
        const GeneratorScope scope(data);
        x = randn({8, 6});
      }
      nn::training_step(*adam, [&](std::int64_t) { return mean(square(net.forward(x) - 1.0)); });
    }
    std::vector<std::vector<float>> values() const {
      std::vector<std::vector<float>> list;
      for (const nn::NamedTensor& p : net.parameters()) list.push_back(to_host<float>(p.tensor));
      for (const nn::Named& s : adam->state()) list.push_back(to_host<float>(s.tensor));
      return list;
    }
  };
  std::vector<std::vector<float>> expected;
  {
    Run whole;
    for (int i = 0; i < 3; ++i) whole.step(i);
    nn::save_checkpoint(folder / "half", whole.net, *whole.adam, whole.seeded.generator);
    for (int i = 3; i < 6; ++i) whole.step(i);
    expected = whole.values();
  }
  const SafetensorsReader file(folder / "half");
  CHECK(file.header().find("model.h.0.up_proj.lora_A.weight") != nullptr);
  CHECK(file.header().find("model.h.0.up_proj.weight") == nullptr);
  CHECK(file.header().tensors.size() == 8 * 3);  // the adapters with two moments each
  Run rest;
  nn::load_checkpoint(folder / "half", rest.net, *rest.adam, rest.seeded.generator);
  for (int i = 3; i < 6; ++i) rest.step(i);
  CHECK(rest.values() == expected);
}

TEST_CASE("lora: PEFT's folders", "[lora]") {
  using namespace lora_test;
  const files_test::TemporaryFolder folder;
  const std::string path = folder / "adapters";
  const Seeded seeded;
  Net net({cpu, DType::f32}, kernels::Activation::none, true);
  CHECK_THROWS_AS(nn::save_adapters(net, path), ValueError);
  nn::add_lora(net, {{.rank = 3, .alpha = 6}, {"up_proj"}});
  stir(net);
  nn::save_adapters(net, path, {.prefix = "transformer.", .base = "some/base"});
  const SafetensorsReader file(path + "/adapter_model.safetensors");
  CHECK(file.header().tensors.size() == 4);
  const SafetensorsEntry& a = file.entry("base_model.model.transformer.h.0.up_proj.lora_A.weight");
  CHECK(a.shape == std::vector<std::int64_t>{3, 6});
  CHECK(file.entry("base_model.model.transformer.h.1.up_proj.lora_B.weight").shape == std::vector<std::int64_t>{8, 3});
  const std::string config = files_test::read_text_file(path + "/adapter_config.json");
  for (const char* const line : {"\"peft_type\": \"LORA\"", "\"r\": 3", "\"lora_alpha\": 6", "\"fan_in_fan_out\": true",
                                 "\"base_model_name_or_path\": \"some/base\"", "\"transformer.h.0.up_proj\""}) {
    INFO(line);
    CHECK(config.find(line) != std::string::npos);
  }
  // Loads into a net without adapters, which gets them, with the prefix or without.
  const Tensor x = randn({5, 6});
  nn::save_weights(net, folder / "all");
  const auto twin = [&] {
    auto made = std::make_unique<Net>(nn::TensorOptions{cpu, DType::f32}, kernels::Activation::none, true);
    nn::load_weights(*made, folder / "all", {.is_strict = false});
    return made;
  };
  const auto other = twin();
  nn::load_adapters(*other, path, {.prefix = "transformer."});
  CHECK(to_host<float>(other->forward(x)) == to_host<float>(net.forward(x)));
  CHECK(other->trainable().size() == 4);
  CHECK_THROWS_WITH(nn::load_adapters(*twin(), path), Catch::Contains("no linear layer 'transformer.h.0.up_proj'"));
  nn::load_adapters(*other, path, {.prefix = "transformer."});  // again, over its own adapters
  const auto more = twin();
  nn::add_lora(*more, {{.rank = 3, .alpha = 6}});
  CHECK_THROWS_WITH(nn::load_adapters(*more, path, {.prefix = "transformer."}), Catch::Contains("is not there"));
  for (const nn::AdapterOptions& options : {nn::AdapterOptions{.rank = 4, .alpha = 6}, {.rank = 3, .alpha = 5}}) {
    const auto unlike = twin();
    nn::add_lora(*unlike, {options, {"up_proj"}});
    CHECK_THROWS_WITH(nn::load_adapters(*unlike, path, {.prefix = "transformer."}),
                      Catch::Contains("r 3 and lora_alpha 6.000000; the module's 'h.0.up_proj' has " +
                                      std::to_string(options.rank) + " and " + std::to_string(options.alpha)));
    nn::replace<nn::LoraLinear>(*nn::linear_layers(*unlike).back().layer, nn::AdapterOptions{.rank = 3, .alpha = 6});
    CHECK_THROWS_WITH(nn::save_adapters(*unlike, folder / "two"), Catch::Contains("differ in rank, alpha"));
  }
  // PEFT supports these; Thimble does not.
  const auto refuses = [&](const std::string& from, const std::string& to, const std::string& text) {
    std::string changed = config;
    changed.replace(changed.find(from), from.size(), to);
    std::ofstream(path + "/adapter_config.json", std::ios::binary) << changed;
    const auto plain = twin();
    CHECK_THROWS_WITH(nn::load_adapters(*plain, path, {.prefix = "transformer."}), Catch::Contains(text));
    CHECK_FALSE(nn::has_adapters(*plain));
  };
  refuses("\"LORA\"", "\"LOHA\"", "peft_type: expected \"LORA\", got \"LOHA\"");
  refuses("\"bias\": \"none\"", "\"bias\": \"all\"", "bias: expected \"none\", got \"all\"");
  refuses("\"r\": 3", "\"r\": 0", "r: expected an integer from 1 to 2^40, got 0");
  refuses("\"r\": 3", "\"r\": 2097152", "r: expected an integer from 1 to 2^20, got 2097152");
  refuses("\"r\": 3", "\"r\": 2", "(3, 6) in the file, the module needs (2, 6)");
  refuses("\"lora_dropout\": 0.0", "\"lora_dropout\": 1.0",
          "lora_dropout: expected a number from 0 to below 1, got 1.0");
  for (const char* const beginning : {"pissa", "pissa_niter_4", "olora", "eva", "corda", "loftq", "lora_ga"}) {
    const std::string value = "\"" + std::string(beginning) + "\"";
    refuses("\"init_lora_weights\": true", "\"init_lora_weights\": " + value, ", got " + value);
  }
  for (const char* const asked :
       {"\"use_dora\": true", "\"use_rslora\": true", "\"lora_bias\": true", "\"rank_pattern\": {\"up_proj\": 2}",
        "\"alpha_pattern\": {\"up_proj\": 2}", "\"modules_to_save\": [\"head\"]", "\"trainable_token_indices\": [1]",
        "\"target_parameters\": [\"x\"]", "\"layer_replication\": [[0, 1]]", "\"alora_invocation_tokens\": [5]",
        "\"eva_config\": {\"rho\": 2}", "\"loftq_config\": {\"loftq_bits\": 4}", "\"use_qalora\": true",
        "\"of_tomorrow\": 0"}) {
    const std::string line = asked;
    refuses("\"inference_mode\": true", line,
            "'" + line.substr(1, line.find("\":") - 1) + "': expected a key that is known");
  }
  std::filesystem::create_directory(folder / "other");
  for (const char* const name : {"h.0.up_proj.lora_A.weight", "base_model.model.h.0.up_proj.weight", "lora_A.weight"}) {
    nn::write_tensor_file(folder / "other/adapter_model.safetensors", {{name, zeros({3, 6})}}, {});
    files_test::write_text_file(folder / "other/adapter_config.json", config);
    CHECK_THROWS_WITH(
        nn::load_adapters(*twin(), folder / "other"),
        Catch::Contains("tensor '" + std::string(name) + "'; expected base_model.model.<layer>.lora_A.weight"));
  }
  // PEFT's rules for target_modules; the file has tensors for up_proj in both blocks.
  const std::string targets =
      config.substr(config.find("\"target_modules\""), config.find("],") + 1 - config.find("\"target_modules\""));
  REQUIRE(targets.ends_with("]"));
  const std::string up = "\"transformer.h.0.up_proj\"", both = "\"transformer.h.0.up_proj\", \"h.1.up_proj\"";
  struct Row {
    std::string value, refusal;  // an empty refusal: the file loads
  };
  const Row rows[] = {
      {"[\"up_proj\"]", ""},
      {"[" + both + "]", ""},
      {"\".*up_proj\"", ""},
      {"\"^transformer\\\\.h\\\\.(0|1)\\\\.(up|q)_proj$\"", ""},
      {"null", ""},
      {"[" + up + "]", "one that means layer 'transformer.h.1.up_proj', which has tensors"},
      {"[\"p_proj\"]", "one that means layer 'transformer.h.0.up_proj'"},
      {"[]", "one that means layer 'transformer.h.0.up_proj'"},
      {"\"up_proj\"", "one that means layer 'transformer.h.0.up_proj'"},  // an expression must match the whole name
      {"[\"up_proj\", \"q_proj\"]", "tensors of a layer 'q_proj'"},
      {"[\"up_proj\", \"down_proj\"]", "tensors of a layer 'down_proj'"},
      {"\".*_proj\"", "tensors of layer 'transformer.h.0.down_proj', which it means"},
      {"\"All-Linear\"", "tensors of layer 'transformer.h.0.down_proj', which it means"},
      {"\"(up\"", "names, \"all-linear\", or at most 1024 bytes"},
      {"\"(.)\\\\1\"", "names, \"all-linear\", or at most 1024 bytes"},
      {"\"" + std::string(5000, 'a') + "\"", "names, \"all-linear\", or at most 1024 bytes"},
      {"\"((.*)*)*x\"", "one that means layer"},  // and quickly
      {"\"((a?){99}){99}\"", "names, \"all-linear\", or at most 1024 bytes"},
      {"\"" + std::string(500, '(') + std::string(500, ')') + "\"", "one that means layer"},
      {"7", "an array of texts, got 7"},
  };
  for (const Row& row : rows) {
    INFO(row.value.substr(0, 80));
    const std::string value = "\"target_modules\": " + row.value;
    if (!row.refusal.empty()) {
      refuses(targets, value, "target_modules: expected " + row.refusal);
      continue;
    }
    std::string changed = config;
    changed.replace(changed.find(targets), targets.size(), value);
    files_test::write_text_file(path + "/adapter_config.json", changed);
    const auto plain = twin();
    nn::load_adapters(*plain, path, {.prefix = "transformer."});
    CHECK(nn::adapted_layers(*plain).size() == 2);
  }
  // Keys that leave out one block's up_proj. A whole name stays in: PEFT numbers only suffixes.
  const auto with = [&](const std::string& names, const std::string& keys) {
    std::string changed = config;
    changed.replace(changed.find(targets), targets.size(), "\"target_modules\": " + names + ", " + keys);
    files_test::write_text_file(path + "/adapter_config.json", changed);
    const auto plain = twin();
    return files_test::error_of([&] { nn::load_adapters(*plain, path, {.prefix = "transformer."}); });
  };
  struct Narrowed {
    std::string names, keys, refusal;
  };
  const std::string last = "[\"up_proj\"]";
  const Narrowed narrowed[] = {
      {last, "\"layers_to_transform\": [1, 0]", "no error"},
      {last, "\"layers_to_transform\": [0, 1], \"layers_pattern\": \"h\"", "no error"},
      {"[" + both + "]", "\"layers_to_transform\": 0",
       "layers_to_transform: expected all but layer 'transformer.h.1.up_proj'"},
      {"[" + both + "]", "\"layers_to_transform\": 1", "no error"},
      {last, "\"layers_to_transform\": [0]", "layers_to_transform: expected all but layer 'transformer.h.1.up_proj'"},
      {last, "\"layers_to_transform\": [0, 1], \"layers_pattern\": [\"blocks\"]",
       "layers_to_transform: expected all but"},
      {last, "\"layers_to_transform\": [-1]", "layers_to_transform: expected integers from 0"},
      {"\".*up_proj\"", "\"layers_to_transform\": [0, 1]", "layers_to_transform: expected null beside a text"},
      {last, "\"exclude_modules\": [\"1.up_proj\"]",
       "exclude_modules: expected all but layer 'transformer.h.1.up_proj'"},
      {last, "\"exclude_modules\": \".*0.*\"", "exclude_modules: expected all but layer 'transformer.h.0.up_proj'"},
      {last, "\"exclude_modules\": \"(\"", "exclude_modules: expected names, or at most 1024 bytes"},
      {"\"all-linear\"", "\"exclude_modules\": [\"down_proj\"]", "no error"},
      {"\"all-linear\"", "\"exclude_modules\": [\"0.down_proj\"]", "tensors of layer 'transformer.h.1.down_proj'"},
      {"null", "\"exclude_modules\": [\"down_proj\"]", "no error"},
  };
  for (const Narrowed& row : narrowed) {
    INFO(row.names + ", " + row.keys);
    CHECK_THAT(with(row.names, row.keys), Catch::Contains(row.refusal));
  }
  // PEFT finds a block's number only behind two words: in `transformer.h.0.up_proj`, not in `h.0.up_proj`.
  nn::save_adapters(net, folder / "bare");
  std::string bare = files_test::read_text_file(folder / "bare/adapter_config.json");
  nn::load_adapters(*twin(), folder / "bare");
  bare.replace(bare.find("\"inference_mode\": true"), 22, "\"layers_to_transform\": [0, 1]");
  bare.replace(bare.find("\"h.0.up_proj\""), 13, "\"up_proj\"");
  files_test::write_text_file(folder / "bare/adapter_config.json", bare);
  CHECK_THROWS_WITH(nn::load_adapters(*twin(), folder / "bare"),
                    Catch::Contains("layers_to_transform: expected all but layer 'h.0.up_proj'"));
  // Keys without effect.
  for (const char* const line :
       {"\"use_dora\": false", "\"rank_pattern\": {}", "\"modules_to_save\": null", "\"layers_to_transform\": [0, 1]",
        "\"runtime_config\": {\"ephemeral_gpu_offload\": true}", "\"revision\": \"main\""}) {
    INFO(line);
    std::string changed = config;
    changed.replace(changed.find("\"inference_mode\": true"), 22, line);
    std::ofstream(path + "/adapter_config.json", std::ios::binary) << changed;
    const auto plain = twin();
    nn::load_adapters(*plain, path, {.prefix = "transformer."});
    CHECK(to_host<float>(plain->forward(x)) == to_host<float>(net.forward(x)));
  }
  refuses("{", "[", "is not JSON");
}
