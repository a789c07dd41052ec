// Every operator meets every fate: inside a segment and inside a nested one, whatever is kept of it and of its
// neighbours, the gradients are the plain run's, bit for bit.

#include "../examples/own_operators.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions.h>
#include <thimble/autograd/graph.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/matmul/chunked.h>
#include <thimble/core/ops/random.h>

#include "support/catch.h"
#include "support/files.h"

using namespace thimble;

namespace {

using Tensors = std::span<const Tensor>;

/// A call of an operator: `x` are its floating operands, made by an earlier node; `state` two tensors (4) that it may
/// write, 0.1 and 0.9.
struct FateCase {
  std::string name;  ///< name of its node
  std::vector<Shape> operands;
  std::function<Tensor(Tensors x, Tensors state)> run;
  double low = -2, high = 2;  ///< of the operands' values
};

Tensor classes(const Shape& shape, std::int64_t count) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < shape.elements(); ++i) values.push_back((i * i + 2) % count);
  return from_host(values, shape);
}

void add_elementwise(std::vector<FateCase>& rows) {
  const Shape a{3, 1, 4}, b{3, 2, 4};
  const auto unary = [&](const char* name, auto f, double low = -2) {
    rows.push_back({name, {b}, [f](Tensors x, Tensors) { return f(x[0]); }, low});
  };
  unary("neg", neg);
  unary("fake_quantize", [](const Tensor& x) { return fake_quantize(x, full({1}, 0.02), 3, -50, 60); });
  unary("abs", thimble::abs);
  unary("exp", thimble::exp);
  unary("log", thimble::log, 0.2);
  unary("sqrt", thimble::sqrt, 0.2);
  unary("rsqrt", rsqrt, 0.2);
  unary("square", square);
  unary("relu6", relu6);
  unary(
      "pow", [](const Tensor& x) { return thimble::pow(x, 2.5); }, 0.2);
  unary("clamp", [](const Tensor& x) { return clamp(x, -1, 0.5); });
  unary("tanh", thimble::tanh);
  unary("sigmoid", sigmoid);
  unary("relu", relu);
  unary("leaky_relu", [](const Tensor& x) { return leaky_relu(x, 0.1); });
  unary("gelu_tanh", [](const Tensor& x) { return gelu(x); });
  unary("gelu_erf", [](const Tensor& x) { return gelu(x, GeluForm::erf); });
  unary("silu", silu);
  unary("sin", thimble::sin);
  unary("cos", thimble::cos);
  unary("softplus", softplus);
  unary("erf", thimble::erf);
  unary("reciprocal", reciprocal, 0.2);
  unary("add_scalar", [](const Tensor& x) { return add(x, 0.3); });
  unary("mul_scalar", [](const Tensor& x) { return mul(x, 0.3); });
  unary("div_scalar", [](const Tensor& x) { return x / 0.3; });
  unary("scalar_sub", [](const Tensor& x) { return 0.3 - x; });
  unary("mish", [](const Tensor& x) { return apply<own::Mish>(x); });

  using Binary = Tensor (*)(const Tensor&, const Tensor&);
  const auto binary = [&](const char* name, Binary f, double low = -2) {
    rows.push_back({name, {a, b}, [f](Tensors x, Tensors) { return f(x[0], x[1]); }, low});
    rows.push_back({name, {a}, [f](Tensors x, Tensors) { return f(x[0], x[0]); }, low});  // one operand twice
  };
  binary("add", add);
  binary("sub", sub);
  binary("mul", mul);
  binary("swiglu", swiglu);
  binary("div", thimble::div, 0.2);
  binary("minimum", minimum);
  binary("maximum", maximum);
  // They have no gradient, but the backward of `where` reads their results.
  const auto comparison = [&](const char* name, Binary f) {
    rows.push_back({name, {a, b}, [f](Tensors x, Tensors) { return where(f(x[0], x[1]), x[0], x[1]); }});
  };
  comparison("equal", equal);
  comparison("not_equal", not_equal);
  comparison("less", less);
  comparison("less_equal", less_equal);
  comparison("greater", greater);
  comparison("greater_equal", greater_equal);
  comparison("where", less);
}

void add_reductions(std::vector<FateCase>& rows) {
  const Shape x{3, 5, 4};
  rows.push_back({"sum", {x}, [](Tensors in, Tensors) { return sum(in[0], 1); }});
  rows.push_back({"mean", {x}, [](Tensors in, Tensors) { return mean(in[0], {0, 2}); }});
  rows.push_back({"variance", {x}, [](Tensors in, Tensors) { return variance(in[0], {0, 2}); }});
  rows.push_back({"max", {x}, [](Tensors in, Tensors) { return thimble::max(in[0], 1); }});
  rows.push_back({"min", {x}, [](Tensors in, Tensors) { return thimble::min(in[0], 1); }});
  rows.push_back({"logsumexp", {x}, [](Tensors in, Tensors) { return logsumexp(in[0], 1); }});
  rows.push_back({"argmax", {x}, [](Tensors in, Tensors) { return gather(in[0], 1, argmax(in[0], 1, true)); }});
  rows.push_back({"argmin", {x}, [](Tensors in, Tensors) { return gather(in[0], 1, argmin(in[0], 1, true)); }});
  rows.push_back({"norm", {x}, [](Tensors in, Tensors) { return norm(in[0], 2, 1); }});
  rows.push_back({"dot_product", {x, x}, [](Tensors in, Tensors) { return cosine_similarity(in[0], in[1], 1); }});
  rows.push_back({"cumsum", {x}, [](Tensors in, Tensors) { return cumsum(in[0], 1); }});
  rows.push_back({"prod", {x}, [](Tensors in, Tensors) { return prod(in[0], 1); }});
  rows.push_back({"argsort", {x}, [](Tensors in, Tensors) { return gather(in[0], 1, argsort(in[0], 1)); }});
  rows.push_back(
      {"multinomial", {{3, 5}}, [](Tensors in, Tensors) { return gather(in[0], 1, multinomial(in[0], 2)); }, 0.2});
  rows.push_back({"softmax", {x}, [](Tensors in, Tensors) { return softmax(in[0], 1); }});
  rows.push_back({"log_softmax", {x}, [](Tensors in, Tensors) { return log_softmax(in[0]); }});
  rows.push_back({"dropout", {x}, [](Tensors in, Tensors) { return dropout(in[0], 0.4); }});
  rows.push_back({"dropout_textbook", {x}, [](Tensors in, Tensors) { return dropout_textbook(in[0], 0.4); }});
}

void add_views(std::vector<FateCase>& rows) {
  const Shape x{3, 5, 4};
  const auto view = [&](const char* name, auto f) {
    rows.push_back({name, {x}, [f](Tensors in, Tensors) { return f(in[0]); }});
  };
  view("reshape", [](const Tensor& t) { return reshape(t, {15, 4}); });
  view("permute", [](const Tensor& t) { return permute(t, {2, 0, 1}); });
  view("slice", [](const Tensor& t) { return slice(t, 1, 1, 5, 2); });
  view("contiguous", [](const Tensor& t) { return dense(transpose(t)); });
  view("cast", [](const Tensor& t) { return cast(t, DType::bf16); });
  view("pad", [](const Tensor& t) { return pad(t, {0, 1}, {0, 2}, 0.5); });
  view("gather", [](const Tensor& t) { return gather(t, 1, classes({3, 2, 4}, 5)); });
  view("index_select", [](const Tensor& t) { return index_select(t, 1, classes({3}, 5)); });
  view("roll", [](const Tensor& t) { return roll(t, 2, 1); });
  view("flip", [](const Tensor& t) { return flip(t, {0, 2}); });
  rows.push_back({"scatter_add", {x, {3, 2, 4}}, [](Tensors in, Tensors) {
                    return scatter_add(in[0], 1, classes({3, 2, 4}, 5), in[1]);
                  }});
  rows.push_back(
      {"index_add", {x, {3, 3, 4}}, [](Tensors in, Tensors) { return index_add(in[0], 1, classes({3}, 5), in[1]); }});
  rows.push_back({"expand", {{3, 1, 4}}, [](Tensors in, Tensors) { return expand(in[0], {2, 3, 5, 4}); }});
  rows.push_back({"embedding", {{7, 4}}, [](Tensors in, Tensors) { return embedding(in[0], classes({3, 2}, 7)); }});
  rows.push_back({"concat", {x, {3, 2, 4}}, [](Tensors in, Tensors) { return concat({in[0], in[1], in[0]}, 1); }});
}

void add_norms(std::vector<FateCase>& rows) {
  const Shape x{3, 5, 4}, c{4};
  rows.push_back({"layer_norm", {x, c, c}, [](Tensors in, Tensors) { return layer_norm(in[0], in[1], in[2]); }});
  rows.push_back({"rms_norm", {x, c}, [](Tensors in, Tensors) { return rms_norm(in[0], in[1]); }});
  rows.push_back({"group_norm", {x, c, c}, [](Tensors in, Tensors) { return group_norm(in[0], 2, in[1], in[2]); }});
  rows.push_back({"normalize_rows", {x}, [](Tensors in, Tensors) { return apply(own::NormalizeRows{0.1}, in[0]); }});
  for (const bool is_training : {true, false}) {
    const std::string form = is_training ? "" : "_eval";
    const BatchNormOptions options{.training = is_training};
    rows.push_back({"batch_norm" + form, {x, c, c}, [=](Tensors in, Tensors state) {
                      return batch_norm(in[0], in[1], in[2], state[0], state[1], options);
                    }});
    rows.push_back({"batch_norm_relu" + form, {x, c, c}, [=](Tensors in, Tensors state) {
                      return batch_norm_relu(in[0], in[1], in[2], state[0], state[1], options);
                    }});
    rows.push_back({"batch_norm_relu6" + form, {x, c, c}, [=](Tensors in, Tensors state) {
                      return batch_norm_relu6(in[0], in[1], in[2], state[0], state[1], options);
                    }});
    rows.push_back({"batch_norm_add_relu" + form, {x, x, c, c}, [=](Tensors in, Tensors state) {
                      return batch_norm_add_relu(in[0], in[1], in[2], in[3], state[0], state[1], options);
                    }});
  }
}

void add_products(std::vector<FateCase>& rows) {
  const Shape image{2, 4, 4, 4};
  rows.push_back({"matmul", {{2, 3, 4}, {4, 5}}, [](Tensors in, Tensors) { return matmul(in[0], in[1]); }});
  for (const auto activation : {kernels::Activation::none, kernels::Activation::gelu_tanh, kernels::Activation::relu}) {
    rows.push_back({"linear", {{2, 3, 4}, {5, 4}, {5}}, [=](Tensors in, Tensors) {
                      return linear(in[0], in[1], in[2], activation);
                    }});
  }
  rows.push_back({"tiled_feed_forward", {{2, 3, 4}, {5, 4}, {5}, {4, 5}, {4}}, [](Tensors in, Tensors) {
                    const ops::TiledFeedForward op{kernels::Activation::gelu_erf, false, 4};
                    return apply(op, in[0], in[1], in[2], Tensor(), in[3], in[4]);
                  }});
  rows.push_back({"tiled_feed_forward", {{2, 3, 4}, {5, 4}, {5, 4}, {4, 5}}, [](Tensors in, Tensors) {
                    return apply(ops::TiledFeedForward{.tile_rows = 4}, in[0], in[1], Tensor(), in[2], in[3], Tensor());
                  }});
  rows.push_back({"lora_linear", {{2, 3, 4}, {5, 4}, {5}, {2, 4}, {5, 2}}, [](Tensors in, Tensors) {
                    return lora_linear(in[0], in[1], in[2], {}, in[3], in[4], 0.5);
                  }});
  rows.push_back({"lora_linear", {{2, 3, 4}, {5, 4}, {5}, {2, 3, 4}, {2, 4}, {5, 2}}, [](Tensors in, Tensors) {
                    return lora_linear(in[0], in[1], in[2], in[3], in[4], in[5], 0.5);
                  }});
  for (const Fp8Scaling scaling : {Fp8Scaling::delayed, Fp8Scaling::current, Fp8Scaling::block}) {
    rows.push_back({"fp8_linear", {{2, 3, 4}, {5, 4}, {5}}, [=](Tensors in, Tensors) {
                      return fp8_linear(in[0], in[1], in[2], {.scaling = scaling}, make_fp8_state(2, cpu), true,
                                        kernels::Activation::relu);
                    }});
  }
  rows.push_back({"conv2d", {image, {3, 3, 3, 4}, {3}}, [](Tensors in, Tensors) {
                    return conv2d(in[0], in[1], in[2], {.stride = 2, .padding = 1});
                  }});
  rows.push_back({"shared_conv2d", {image, {2, 3, 3, 3}, {4, 2}, {3}}, [](Tensors in, Tensors) {
                    return shared_conv2d(in[0], in[1], in[2], in[3], {.padding = 1});
                  }});
  for (const MaxPoolKeeps keeps : {MaxPoolKeeps::input, MaxPoolKeeps::taps}) {
    rows.push_back({"max_pool2d", {image}, [=](Tensors in, Tensors) {
                      return max_pool2d(in[0], {.kernel = {3, 3}, .stride = {1, 1}}, keeps);
                    }});
  }
  rows.push_back({"avg_pool2d", {image}, [](Tensors in, Tensors) { return avg_pool2d(in[0], {.kernel = {2, 2}}); }});
  for (const Resample mode : {Resample::nearest, Resample::linear}) {
    rows.push_back({"interpolate", {image}, [=](Tensors in, Tensors) { return interpolate(in[0], 6, 3, mode); }});
  }
  rows.push_back({"conv_transpose2d", {image, {4, 3, 3, 2}, {2}}, [](Tensors in, Tensors) {
                    return conv_transpose2d(in[0], in[1], in[2], {.stride = 2});
                  }});
  rows.push_back({"lstm", {{3, 2, 4}, {2, 3}, {2, 3}, {12, 4}, {12, 3}, {12}, {12}}, [](Tensors in, Tensors) {
                    return lstm(in[0], in[1], in[2], {in[3], in[4], in[5], in[6]}).output;
                  }});
  rows.push_back({"gru", {{3, 2, 4}, {2, 3}, {9, 4}, {9, 3}, {9}, {9}}, [](Tensors in, Tensors) {
                    return gru(in[0], in[1], {in[2], in[3], in[4], in[5]});
                  }});
  rows.push_back({"global_avg_pool", {image}, [](Tensors in, Tensors) { return global_avg_pool(in[0]); }});
  rows.push_back(
      {"attention", {{2, 3, 12}}, [](Tensors in, Tensors) { return attention(in[0], 2, {.dropout = 0.2}); }});
  for (const std::int64_t heads : {2, 1}) {
    rows.push_back({"scaled_dot_product_attention",
                    {{2, 3, 2, 2}, {2, 4, heads, 2}, {2, 4, heads, 2}},
                    [](Tensors in, Tensors) { return attention(in[0], in[1], in[2], {.dropout = 0.2}); }});
  }
  rows.push_back({"rotary", {{2, 3, 2, 4}}, [](Tensors in, Tensors) { return rotary(in[0], {.first_position = 5}); }});
}

void add_losses(std::vector<FateCase>& rows) {
  const Shape x{6, 5};
  rows.push_back({"cross_entropy", {x}, [](Tensors in, Tensors) { return cross_entropy(in[0], classes({6}, 5)); }});
  rows.push_back({"nll", {x}, [](Tensors in, Tensors) { return nll(in[0], classes({6}, 5)); }});
  rows.push_back({"mse_loss", {x, x}, [](Tensors in, Tensors) { return mse_loss(in[0], in[1]); }});
  rows.push_back({"l1_loss", {x, x}, [](Tensors in, Tensors) { return l1_loss(in[0], in[1]); }});
  rows.push_back({"huber_loss", {x, x}, [](Tensors in, Tensors) { return huber_loss(in[0], in[1], 0.7); }});
  rows.push_back({"bce_with_logits", {x, x}, [](Tensors in, Tensors) { return bce_with_logits(in[0], in[1], 1.5); }});
  rows.push_back({"kl_div", {x, x}, [](Tensors in, Tensors) { return kl_div(in[0], in[1]); }, 0.1});
  rows.push_back({"linear_cross_entropy", {x, {7, 5}, {7}}, [](Tensors in, Tensors) {
                    return linear_cross_entropy(in[0], in[1], classes({6}, 7), {}, in[2]);
                  }});
}

std::vector<FateCase> fate_cases() {
  std::vector<FateCase> rows;
  add_elementwise(rows);
  add_reductions(rows);
  add_views(rows);
  add_norms(rows);
  add_products(rows);
  add_losses(rows);
  return rows;
}

/// The names of operators in headers: every string that a `name` may be.
std::set<std::string> declared_operators() {
  std::set<std::string> names;
  const std::string mark = "static constexpr const char* name =";
  for (const char* const folder : {"core/ops", "core/kernels/functors"}) {
    if (!std::filesystem::is_directory(folder)) FAIL("not run in the project's root: there is no " << folder);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (entry.path().extension() != ".h" || entry.path().filename() == "op.h")
        continue;  // the rules, with an example
      const std::string text = files_test::read_text_file(entry.path().string());
      for (std::size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + 1)) {
        const std::string statement = text.substr(at, text.find(';', at) - at);
        for (std::size_t open = statement.find('"'); open != std::string::npos;) {
          const std::size_t close = statement.find('"', open + 1);
          names.insert(statement.substr(open + 1, close - open - 1));
          open = statement.find('"', close + 1);
        }
      }
    }
  }
  return names;
}

struct FateRun {
  std::vector<Tensor> values;  // the loss, gradients, state
  TapeGraph graph;             // only when observed

  bool has_bits_of(const FateRun& other) const {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const memory::Pin a(values[i]), b(other.values[i]);
      if (values[i].bytes() != other.values[i].bytes()) return false;
      if (std::memcmp(a.data(), b.data(), values[i].bytes()) != 0) return false;
    }
    return values.size() == other.values.size();
  }
};

/// sum(square(operator(1.25 leaves))): nodes make the operator's operands, and its result is read again.
FateRun run_case(const FateCase& row, std::shared_ptr<const TapePlan> plan, bool observes = false) {
  RandomGenerator generator(5);
  const GeneratorScope random(generator);
  std::vector<Tensor> leaves;
  for (const Shape& shape : row.operands) {
    const auto seed = static_cast<std::uint32_t>(leaves.size());
    leaves.push_back(uniform(shape, row.low, row.high, DType::f32, cpu, RandomSite{5, 0, 0, seed}));
    leaves.back().require_grad();
  }
  const std::vector<Tensor> state{full({4}, 0.1), full({4}, 0.9)};
  Tape tape;
  if (observes) tape.observe();
  tape.follow(std::move(plan));
  FateRun result;
  Tensor loss;
  {
    const Recording on(tape);
    std::vector<Tensor> operands;
    for (const Tensor& leaf : leaves) operands.push_back(mul(leaf, 1.25));
    const Tensor y = row.run(operands, state);
    operands.clear();
    loss = sum(square(y));
  }
  if (observes) {
    result.graph = TapeGraph::of(tape);
    return result;
  }
  result.values.push_back(loss.detach());
  tape.backward(loss);
  for (const Tensor& leaf : leaves) result.values.push_back(leaf.grad());
  for (const Tensor& t : state) result.values.push_back(t);
  return result;
}

/// One segment around all nodes; `is_nested` adds one inside it, from the operator's first node to its last.
TapePlan fate_plan(const TapeGraph& graph, const std::string& name, Fate fate, Fate others, bool is_nested) {
  TapePlan plan;
  const auto count = static_cast<std::uint32_t>(graph.nodes.size());
  std::uint32_t first = count, end = 0;
  for (std::uint32_t n = 0; n < count; ++n) {
    const bool is_it = graph.nodes[n].type->name == name;
    plan.types.push_back(graph.nodes[n].type);
    plan.fates.push_back(is_it ? fate : others);
    if (is_it) first = std::min(first, n), end = n + 1;
  }
  plan.segments.push_back({0, count, TapePlan::none});
  if (is_nested) plan.segments.push_back({first, end, 0});
  return plan;
}

}  // namespace

TEST_CASE("certificate operator: every operator meets every fate", "[certificate]") {
  std::set<std::string> met;
  for (const FateCase& row : fate_cases()) {
    INFO(row.name);
    const FateRun plain = run_case(row, nullptr);
    const TapeGraph graph = run_case(row, nullptr, true).graph;
    std::set<std::string> recorded;
    for (const TapeGraph::Node& node : graph.nodes) recorded.insert(node.type->name);
    REQUIRE(recorded.count(row.name) == 1);
    met.insert(row.name);
    CHECK(plain.values.size() == row.operands.size() + 3);
    for (const Fate fate : {Fate::drop, Fate::keep_output, Fate::keep_saved, Fate::keep}) {
      for (const Fate others : {Fate::drop, Fate::keep_output, Fate::keep_saved, Fate::keep}) {
        for (const bool is_nested : {false, true}) {
          INFO("fate " << int(fate) << ", of others " << int(others) << (is_nested ? ", nested" : ""));
          const auto plan = std::make_shared<TapePlan>(fate_plan(graph, row.name, fate, others, is_nested));
          CHECK(run_case(row, plan).has_bits_of(plain));
        }
      }
    }
  }
  // No declared operator is missing, except functors that are kernels of reductions, not operators.
  std::set<std::string> declared = declared_operators();
  CHECK(declared.size() > 60);
  for (const char* part : {"squared_difference", "variance_gradient", "logsumexp_gradient", "norm_gradient"}) {
    CHECK(declared.erase(part) == 1);
  }
  CHECK(declared.erase("linear_q8") == 1);  // only for inference: throws where a gradient is needed
  for (const std::string& name : declared) {
    INFO("operator without a row: " << name);
    CHECK(met.count(name) == 1);
  }
  for (const std::string& name : met) {
    INFO("row without an operator: " << name);
    CHECK((declared.count(name) == 1 || name == own::Mish::name || name == own::NormalizeRows::name));
  }
}
