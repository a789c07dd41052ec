// How a trainer tells batches apart, whatever holds their tensors, and micro-batches weighted by their samples.

#include <array>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/view.h>

#include "nn/own_program.h"
#include "support/catch.h"
#include "support/model_runs.h"
#include "support/refusal.h"

using namespace thimble;

namespace {

/// (N, 64) -> (N, 64)
struct Pairwise final : nn::Module {
  explicit Pairwise(memory::Device device)
      : up(child<nn::Linear>("up", 64, 256, nn::TensorOptions{device})),
        down(child<nn::Linear>("down", 256, 64, nn::TensorOptions{device})) {}
  nn::Linear &up, &down;
};

template <class Batch>
nn::TrainedProgram<Pairwise, Batch> pairwise(std::function<Batch(const Tensor& x)> make,
                                             std::function<Tensor(const Batch&)> input) {
  return {.model = [](memory::Device device) { return std::make_unique<Pairwise>(device); },
          .optimizer = [](Pairwise& net) { return std::make_unique<optim::Sgd>(net.trainable(), optim::SgdOptions{}); },
          .loss =
              [input](Pairwise& net, const Batch& batch) {
                const Tensor x = input(batch);
                return mse_loss(net.down(gelu(net.up(x))), x);
              },
          .batch =
              [make](std::int64_t step, memory::Device device) {
                return make(randn({step < 2 ? 256 : 2048, 64}, DType::f32, device));
              }};
}

/// Two shapes of batches in a strict run: two plans, and exactly the predicted bytes.
template <class Batch>
void check_seen(const char* name, std::function<Batch(const Tensor& x)> make,
                std::function<Tensor(const Batch&)> input) {
  INFO(name);
  const auto own = pairwise<Batch>(std::move(make), std::move(input));
  nn::TrainerOptions options{.steps = 4, .example_steps = {0, 2}};
  nn::Trainer<Pairwise, Batch> trainer(own, options);
  CHECK(trainer.plan().shapes.size() == 2);
  trainer.run();
  CHECK(trainer.plan().peak_bytes == trainer.peak_bytes());
  options.budget_bytes = trainer.plan().peak_bytes;
  options.is_strict = true;
  nn::Trainer<Pairwise, Batch> tight(own, options);
  tight.run();
  CHECK(tight.plan().peak_bytes == tight.peak_bytes());
  CHECK(tight.placed().deviations == 0);
}

using Pair = std::pair<Tensor, Tensor>;
using Triple = std::tuple<Tensor, int, double>;
struct Nested {
  std::map<std::string, std::vector<Pair>> inputs;
  std::optional<Tensor> mask;
};
struct Ten {
  Tensor a, b, c, d, e, f, g, h, i, j;
};
class Hidden {
 public:
  explicit Hidden(Tensor x) : x_(std::move(x)) {}
  const Tensor& x() const { return x_; }

 private:
  Tensor x_;
};
class Told {
 public:
  explicit Told(Tensor x) : x_(std::move(x)) {}
  std::vector<Tensor> tensors() const { return {x_}; }

 private:
  Tensor x_;
};
struct Based : Ten {
  Tensor last;
};
Pair tensors(const Based& batch) { return {batch.a, batch.last}; }
struct Arrays {
  int sizes[3];
  Tensor parts[2], grid[1][2];
  Pair more;
  char name[4];
};
struct Unseen {
  Ten ten;
  std::function<Tensor()> last;
};

}  // namespace

TEST_CASE("trainer: tensors of a batch are seen in whatever holds them", "[trainer]") {
  const testing::Threads alone;
  check_seen<Tensor>(
      "tensor", [](const Tensor& x) { return x; }, [](const Tensor& b) { return b; });
  check_seen<Pair>(
      "pair", [](const Tensor& x) { return std::make_pair(x, x); }, [](const Pair& b) { return b.second; });
  check_seen<Triple>(
      "tuple", [](const Tensor& x) { return std::make_tuple(x, 7, 0.5); },
      [](const Triple& b) { return std::get<0>(b); });
  using Array = std::array<Tensor, 2>;
  check_seen<Array>(
      "array",
      [](const Tensor& x) {
        return std::to_array({x, x});
      },
      [](const Array& b) { return b[1]; });
  using List = std::list<Tensor>;
  check_seen<List>(
      "list", [](const Tensor& x) { return List{x}; }, [](const List& b) { return b.front(); });
  using Maybe = std::optional<Tensor>;
  check_seen<Maybe>(
      "optional", [](const Tensor& x) { return Maybe{x}; }, [](const Maybe& b) { return *b; });
  using Either = std::variant<int, Tensor>;
  check_seen<Either>(
      "variant", [](const Tensor& x) { return Either{x}; }, [](const Either& b) { return std::get<Tensor>(b); });
  using Shared = std::shared_ptr<Ten>;
  check_seen<Shared>(
      "pointer",
      [](const Tensor& x) {
        return std::make_shared<Ten>(Ten{{}, {}, {}, {}, {}, {}, {}, {}, {}, x});
      },
      [](const Shared& b) { return b->j; });
  check_seen<Nested>(
      "nested",
      [](const Tensor& x) {
        return Nested({{{"x", {Pair(x, {})}}}, std::nullopt});
      },
      [](const Nested& b) { return b.inputs.at("x")[0].first; });
  check_seen<Arrays>(
      "arrays",
      [](const Tensor& x) {
        return Arrays({{1, 2, 3}, {x, x}, {{x, x}}, {x, x}, "abc"});
      },
      [](const Arrays& b) { return b.parts[1]; });
  const Tensor some = zeros({3, 2});
  nn::BatchOutline outline;
  nn::trainer_detail::look_at(outline, Arrays{{1, 2, 3}, {some, {}}, {{{}, some}}, {some, {}}, ""});
  CHECK(outline.shapes == "f32 (3, 2), none, none, f32 (3, 2), f32 (3, 2), none");
  CHECK(outline.values == "[3], [2], [2], [1], [4]");
  check_seen<Told>(
      "function of the type", [](const Tensor& x) { return Told(x); }, [](const Told& b) { return b.tensors()[0]; });
  check_seen<Based>(
      "function beside the type",
      [](const Tensor& x) {
        return Based({{}, x});
      },
      [](const Based& b) { return b.last; });
}

TEST_CASE("trainer: a tensor made without a device is refused with the fix", "[trainer]") {
  auto own = pairwise<Tensor>([](const Tensor& x) { return x; }, [](const Tensor& x) { return x + zeros({64}); });
  CHECK_THROWS_WITH(
      (nn::Trainer<Pairwise, Tensor>(own, {.steps = 1})),
      Catch::Contains("add: operands on different devices, f32 (256, 64) on dry(cpu) and f32 (64) on cpu;") &&
          Catch::Contains("create both tensors on the device that the trainer passes to model and batch"));
}

TEST_CASE("trainer: an optimizer of no parameters is refused", "[trainer]") {
  auto own = pairwise<Tensor>([](const Tensor& x) { return x; }, [](const Tensor& x) { return x; });
  own.optimizer = [](Pairwise&) {
    return std::make_unique<optim::Sgd>(std::vector<optim::Named>(), optim::SgdOptions{});
  };
  CHECK_THROWS_WITH(
      (nn::Trainer<Pairwise, Tensor>(own, {.steps = 1})),
      Catch::StartsWith("trainer: the optimizer of part ") && Catch::Contains(" has no parameters; expected"));
}

TEST_CASE("trainer: a batch may be a view of a tensor that the program keeps", "[trainer]") {
  const testing::Threads alone;
  const Tensor data = randn({512, 96});
  auto own = pairwise<Tensor>([](const Tensor& x) { return x; }, [](const Tensor& b) { return b; });
  own.batch = [&](std::int64_t, memory::Device device) { return to_device(view::slice(data, 1, 0, 64), device); };
  nn::Trainer<Pairwise, Tensor> trainer(own, {.budget_bytes = std::size_t{64} << 20, .steps = 3, .is_strict = true});
  trainer.run();
  CHECK(trainer.plan().peak_bytes == trainer.peak_bytes());
}

TEST_CASE("trainer: a batch whose tensors cannot be seen needs a key", "[trainer]") {
  const testing::Threads alone;
  const auto refusal = [](const auto& own) {
    return refusal_test::refusal<ValueError>([&] { nn::Trainer(own, nn::TrainerOptions{.steps = 4}); });
  };
  auto hidden = pairwise<Hidden>([](const Tensor& x) { return Hidden(x); }, [](const Hidden& b) { return b.x(); });
  CHECK(refusal(hidden).find("Hidden' cannot be seen; give the program a `key`") != std::string::npos);
  hidden.key = [](const Hidden& b) { return to_string(b.x().shape()); };
  CHECK(refusal(hidden).empty());
  const auto unseen =
      pairwise<Unseen>([](const Tensor&) { return Unseen(); }, [](const Unseen& b) { return b.last(); });
  CHECK(refusal(unseen).find("std::function") != std::string::npos);
  const auto none = pairwise<double>([](const Tensor&) { return 0.5; }, [](double) { return zeros({8, 64}); });
  CHECK(refusal(none).find("expected a batch with tensors") != std::string::npos);
}

TEST_CASE("trainer: a number in a batch that changes the step has a plan, one that does not has none", "[trainer]") {
  const testing::Threads alone;
  using Counted = std::pair<Tensor, std::int64_t>;
  auto own = pairwise<Counted>([](const Tensor& x) { return Counted{x, 0}; }, [](const Counted& b) { return b.first; });
  own.batch = [](std::int64_t step, memory::Device device) {
    return Counted{randn({256, 64}, DType::f32, device), step};
  };
  using Loss = std::function<Tensor(Pairwise&, const Tensor&, bool is_late)>;
  const std::pair<const char*, Loss> losses[] = {
      {"more operators",
       [](Pairwise& net, const Tensor& x, bool is_late) {
         const Tensor y = net.down(gelu(net.up(x)));
         return mse_loss(is_late ? net.down(gelu(net.up(y))) : y, x);
       }},
      {"other operators, the same blocks",
       [](Pairwise& net, const Tensor& x, bool is_late) {
         const Tensor h = net.up(x);
         return mse_loss(net.down(is_late ? exp(h) : tanh(h)), x);
       }},
      {"the same operators, other blocks", [](Pairwise& net, const Tensor& x, bool is_late) {
         const Tensor y = slice(x, 0, 0, is_late ? 256 : 128);
         return mse_loss(net.down(gelu(net.up(y))), y);
       }}};
  for (const auto& [name, loss] : losses) {
    own.loss = [&loss = loss](Pairwise& net, const Counted& batch) {
      return loss(net, batch.first, batch.second >= 3);
    };
    for (const bool has_budget : {false, true}) {
      INFO(name << (has_budget ? ", in a budget" : ""));
      nn::TrainerOptions options{.steps = 6, .is_strict = has_budget};
      options.budget_bytes = has_budget ? std::size_t{64} << 20 : 0;
      nn::Trainer<Pairwise, Counted> trainer(own, options);
      trainer.run();
      CHECK(trainer.plan().shapes.size() == 2);
      CHECK(trainer.plan().peak_bytes == trainer.peak_bytes());
      CHECK(trainer.placed().deviations == 0);
    }
  }
}

TEST_CASE("trainer: a number that changes in every step costs one dry recording", "[trainer]") {
  const testing::Threads alone;
  using Counted = std::pair<Tensor, std::int64_t>;
  auto own = pairwise<Counted>([](const Tensor& x) { return Counted{x, 0}; }, [](const Counted& b) { return b.first; });
  own.batch = [](std::int64_t step, memory::Device device) {
    return Counted{randn({16, 64}, DType::f32, device), step};
  };
  std::int64_t dry_models = 0, dry_losses = 0;
  own.model = [&](memory::Device device) {
    dry_models += device.is_dry;
    return std::make_unique<Pairwise>(device);
  };
  const auto loss = own.loss;
  own.loss = [&](Pairwise& net, const Counted& batch) {
    dry_losses += batch.first.device().is_dry;
    return loss(net, batch);
  };
  nn::Trainer<Pairwise, Counted> trainer(own, {.budget_bytes = std::size_t{16} << 20, .is_strict = true});
  trainer.step();
  trainer.step();  // records the example, too
  dry_models = dry_losses = 0;
  constexpr std::int64_t more = 1500;  // more batches than the trainer remembers
  for (std::int64_t i = 0; i < more; ++i) trainer.step();
  CHECK(dry_models == more);
  CHECK(dry_losses == more);
  CHECK(trainer.plan().shapes.size() == 1);
  CHECK(trainer.certify(2).holds());
}

namespace {

struct Rows {
  Tensor shared, x, y;  // (3), (N, 8), (N, 1); shared is the same for all samples
};

nn::TrainedProgram<nn::Linear, Rows> ragged(std::int64_t samples) {
  return {
      .model =
          [](memory::Device device) {
            return std::make_unique<nn::Linear>(8, 1, nn::TensorOptions{device, DType::f64});
          },
      .optimizer =
          [](nn::Linear& net) { return std::make_unique<optim::Sgd>(net.trainable(), optim::SgdOptions{.rate = 0.5}); },
      .loss = [](nn::Linear& net, const Rows& rows) { return mse_loss(dropout(net(rows.x), 0.25), rows.y); },
      .batch =
          [samples](std::int64_t, memory::Device device) {
            const Tensor x = randn({samples, 8}, DType::f64, device);
            return Rows{zeros({3}, DType::f64, device), x, exp(slice(x, 1, 0, 1))};
          },
      .micro_batch =
          [](const Rows& rows, std::int64_t i, std::int64_t count) {
            const std::int64_t n = rows.x.size(0), from = n * i / count, to = n * (i + 1) / count;
            return Rows{rows.shared, slice(rows.x, 0, from, to), slice(rows.y, 0, from, to)};
          }};
}

}  // namespace

TEST_CASE("trainer: micro-batches of unequal sizes are the whole batch", "[trainer]") {
  const testing::Threads alone;
  using Own = nn::Trainer<nn::Linear, Rows>;
  const auto train = [](nn::TrainerOptions options) {
    options.seed = 3, options.steps = 3, options.is_strict = options.budget_bytes > 0;
    Own trainer(ragged(22), options);
    std::vector<double> all;
    trainer.run([&](const nn::Progress& p) { all.push_back(p.loss); });
    CHECK(trainer.peak_bytes() == trainer.plan().peak_bytes);
    for (const nn::NamedTensor& p : trainer.model().parameters()) {
      for (const double value : to_host<double>(p.tensor)) all.push_back(value);
    }
    return all;
  };
  const std::vector<double> whole = train({});
  for (const std::int64_t count : {2, 3, 4, 7, 22}) {
    for (const bool has_budget : {false, true}) {
      INFO(count << " micro-batches, budget " << has_budget);
      nn::TrainerOptions options{.budget_bytes = std::size_t(has_budget ? 64 : 0) << 20};
      options.step.micro_batches = count;
      const std::vector<double> parts = train(options);
      REQUIRE(parts.size() == whole.size());
      for (std::size_t i = 0; i < whole.size(); ++i) CHECK(std::abs(parts[i] - whole[i]) < 1e-13);
    }
  }
  // Unequal micro-batches follow one plan, which recomputes.
  auto deep = pairwise<Tensor>([](const Tensor& x) { return x; }, nullptr);
  deep.batch = [](std::int64_t, memory::Device device) { return randn({8191, 64}, DType::f32, device); };
  deep.loss = [](Pairwise& net, Tensor h) {
    for (int i = 0; i < 4; ++i) h = h + net.down(gelu(net.up(h)));
    return mean(square(h));
  };
  deep.micro_batch = [](const Tensor& x, std::int64_t i, std::int64_t) {
    return slice(x, 0, 4095 * i, 4095 + 4096 * i);
  };
  nn::Trainer<Pairwise, Tensor> trainer(deep, {.budget_bytes = std::size_t{32} << 20, .step = {.micro_batches = 2}});
  CHECK(trainer.plan().shapes[0].parts[0].time_overhead > 0);
  CHECK(trainer.certify(2).holds());
  nn::TrainerOptions options;
  options.step.micro_batches = 4, options.step.micro_samples = 6;
  CHECK_NOTHROW(train(options));
  const auto refusal = [&](std::int64_t samples, const std::function<void(nn::TrainerOptions&)>& change,
                           const std::function<void(nn::TrainedProgram<nn::Linear, Rows>&)>& also = nullptr) {
    nn::TrainerOptions other{.steps = 1};
    other.step.micro_batches = 4;
    change(other);
    auto own = ragged(samples);
    if (also) also(own);
    return refusal_test::refusal<ValueError>([&] { Own trainer(own, other); });
  };
  CHECK(refusal(22, [](auto& o) { o.step.micro_samples = 1000; }).find("expected 6 samples") != std::string::npos);
  CHECK(refusal(22, [](auto& o) { o.step.micro_samples = 5; }).find("got 5") != std::string::npos);
  CHECK(refusal(22, [](auto& o) {
          o.step.parts = {{5, 5}, {6, 6}, {6, 6}, {5, 5}};
        }).find("parts[2]: expected 5") != std::string::npos);
  CHECK(refusal(22, [](auto& o) { o.step.parts = {{5, 1}, {6, 2}, {5, 3}, {6, 4}}; }).empty());
  CHECK(refusal(3, [](auto&) {}).find("cuts 3 samples into micro-batches, 1 of 0, 3 of 1; expected") !=
        std::string::npos);
  CHECK(refusal(
            22, [](auto&) {},
            [](auto& own) {
              own.micro_batch = [cut = own.micro_batch](const Rows& rows, std::int64_t i, std::int64_t n) {
                return cut(rows, i, n + 1);  // the last samples are lost
              };
            })
            .find("must cut the samples") != std::string::npos);
  CHECK(refusal(22, [](auto& o) { o.step.micro_batches = 1, o.step.micro_samples = 22; }).find("one micro-batch") !=
        std::string::npos);
}
