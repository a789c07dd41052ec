// Data parallel steps on N ranks against one rank with all micro-batches: losses, parameters, state and statistics, bit
// for bit. The steps of the one rank know nothing of ranks.

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/numbers/philox.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/view.h>
#include <thimble/dist/data_parallel.h>
#include <thimble/dist/shard_store.h>
#include <thimble/memory/offload/tier.h>
#include <thimble/memory/stack.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/sgd.h>

#include "dist/by_rank.h"
#include "support/catch.h"
#include "support/operator_table.h"
#include "support/sanitizer.h"

using namespace thimble;

namespace {

using Bytes = std::vector<std::byte>;

Bytes bytes_of(const Tensor& t) {
  const Tensor dense = contiguous(to_device(t.detach(), cpu));
  Bytes bytes(dense.bytes());
  if (!bytes.empty()) std::memcpy(bytes.data(), memory::Pin(dense).data(), bytes.size());
  return bytes;
}

struct Case {
  const char* model;
  const char* precision;
  const char* optimizer;
  std::int64_t micro_batches = 1;  // per rank
  double clip = 1;
  std::size_t bucket_bytes = 64 << 10;
  memory::Device device = cpu;
  std::int64_t fp8_margin = 0;
};

struct State {
  Bytes bytes;
  std::int64_t first = 0, elements = 0;  // of its parameter
};

struct Result {  // checked by the main thread: Catch's macros are not thread-safe
  std::vector<double> losses;
  bool has_gradient = false;            // at the end
  std::map<std::string, Bytes> values;  // parameters and buffers
  std::map<std::string, State> states;  // of this rank
};

constexpr std::int64_t samples = 2;  // per micro-batch

models::Setup setup_of(const Case& c, int ranks) {
  models::Setup setup;
  setup.model = c.model;
  setup.optimizer.name = c.optimizer;
  if (*c.precision != 0) models::set_precision(setup, c.precision);
  if (c.fp8_margin > 0) setup.precision.fp8_margin = c.fp8_margin;
  setup.batch = samples * c.micro_batches * ranks;
  setup.optimizer.clip_norm = c.clip;
  if (std::string(c.model) == "resnet18") {
    setup.sizes.image = 16, setup.sizes.width = 8;
  } else {
    setup.sizes.layers = 2, setup.sizes.width = 64, setup.sizes.heads = 2, setup.sizes.sequence = 16;
    setup.sizes.vocabulary = 96, setup.sizes.dropout = 0.1;
  }
  return setup;
}

// Classes differ from sample to sample; a masked text ignores some.
models::Batch batch_of(const models::Model& model, const models::Setup& setup, std::int64_t step) {
  models::Batch batch = model.empty_batch(setup.batch, cpu);
  const auto fill_classes = [&](const Tensor& t, std::int64_t classes, bool has_gaps) {
    std::vector<std::int64_t> values(static_cast<std::size_t>(t.elements()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const PhiloxBlock bits =
          philox4x32({{static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(step), 0, 0}}, {{1, 2}});
      values[i] = bits.word[0] % static_cast<std::uint64_t>(classes);
      if (has_gaps && bits.word[1] % 4 != 0) values[i] = -100;
    }
    copy_into(t, from_host(values, t.shape()));
    return values;
  };
  const std::int64_t classes = model.is_text() ? model.options().vocabulary : model.options().classes;
  const std::vector<std::int64_t> targets = fill_classes(batch.target, classes, model.is_masked());
  if (model.is_masked()) batch.counts = models::count_targets(targets, setup.batch);
  if (model.is_text()) {
    fill_classes(batch.input, classes, false);
  } else {
    copy_into(batch.input, randn(batch.input.shape(), setup.precision.dtype));
  }
  return batch;
}

/// Trains; without ranks it runs the micro-batches of all `count`.
Result train(const Case& c, int count, dist::Communicator* ranks, int zero, int steps) {
  const memory::Stack stack = memory::make_resource(c.device);
  const ResourceScope scope(stack.top);
  const models::Setup setup = setup_of(c, count);
  RandomGenerator generator(setup.seed);
  const GeneratorScope draws(generator);
  std::unique_ptr<models::Model> model;
  {
    const ParameterStoreScope shares(zero == 3 ? std::make_shared<dist::ShardStore>(*ranks) : nullptr);
    model = models::make_model(setup.model, setup.sizes, models::tensor_options(setup, c.device));
  }
  std::unique_ptr<dist::DataParallel> parallel;
  if (ranks != nullptr) {
    dist::DataParallelOptions options{.zero = zero, .buckets = {.bytes = c.bucket_bytes}};
    options.buckets.keeps_parameters = setup.optimizer.name == "adafactor";
    parallel = std::make_unique<dist::DataParallel>(*ranks, model->trainable(), options);
  }
  const auto optimizer =
      parallel ? models::make_optimizer(setup, *model, parallel->parameters()) : models::make_optimizer(setup, *model);
  const auto scaler = models::make_scaler(setup);
  nn::StepOptions options;
  options.clip_norm = c.clip;
  options.scaler = scaler.get();
  options.ranks = parallel.get();
  options.micro_samples = samples;
  const std::int64_t all = c.micro_batches * count;
  options.micro_batches = parallel ? c.micro_batches : all;
  const auto number = [&](std::int64_t i) { return parallel ? parallel->number(i) : i; };
  Result result;
  for (int step = 0; step < steps; ++step) {
    models::Batch batch = batch_of(*model, setup, step);
    batch.input = to_device(batch.input, c.device), batch.target = to_device(batch.target, c.device);
    const std::vector<optim::MicroBatch> parts = models::micro_batches(batch, all);
    options.parts.clear();
    for (std::int64_t i = 0; i < options.micro_batches; ++i) {
      options.parts.push_back(parts[static_cast<std::size_t>(number(i))]);
    }
    const Tensor loss = nn::training_step(
        *optimizer, [&](std::int64_t i) { return model->loss(models::micro_batch(batch, number(i), all)); }, options);
    result.losses.push_back(item(loss));
  }
  for (const nn::NamedTensor& p : model->parameters()) {
    result.values[p.name] = bytes_of(p.tensor);
    result.has_gradient = result.has_gradient || p.tensor.grad().defined();
  }
  for (const nn::NamedTensor& b : model->buffers()) result.values[b.name] = bytes_of(b.tensor);
  for (const optim::Named& p : optimizer->parameters()) {
    for (const optim::Named& s : optimizer->state()) {
      if (s.name.substr(0, s.name.rfind('.')) != p.name) continue;
      result.states[s.name] = {bytes_of(s.tensor), p.first_element, p.whole_elements()};
    }
  }
  return result;
}

/// Whether the bytes of `part` are the state of the same elements in `whole`.
bool is_part_of(const State& part, const State& whole) {
  const auto n = static_cast<std::size_t>(whole.elements);
  if (whole.bytes.size() % n != 0) {  // a scale for 256 elements, or a row or column of a whole parameter
    if (part.first == 0)
      return part.bytes == Bytes(whole.bytes.begin(), whole.bytes.begin() + std::ptrdiff_t(part.bytes.size()));
    const auto at = std::ptrdiff_t(part.first / 256 * 4);
    return part.bytes == Bytes(whole.bytes.begin() + at, whole.bytes.begin() + at + std::ptrdiff_t(part.bytes.size()));
  }
  const auto at = std::ptrdiff_t(static_cast<std::size_t>(part.first) * (whole.bytes.size() / n));
  return part.bytes == Bytes(whole.bytes.begin() + at, whole.bytes.begin() + at + std::ptrdiff_t(part.bytes.size()));
}

void check_equal(const Case& c, int count, int zero, int steps) {
  INFO(c.model << ", " << c.precision << ", " << c.optimizer << ", " << c.micro_batches << " micro-batches, " << count
               << " ranks, ZeRO-" << zero);
  const Result one = train(c, count, nullptr, 0, steps);
  const auto body = [&](dist::Communicator& ranks) { return train(c, count, &ranks, zero, steps); };
  const std::vector<Result> results = testing::by_rank(count, body, c.device);
  std::map<std::string, std::size_t> bytes_of_state;
  for (const Result& r : results) {
    CHECK(r.losses == one.losses);
    CHECK_FALSE(r.has_gradient);
    CHECK(r.values.size() == one.values.size());
    for (const auto& [name, bytes] : one.values) {
      INFO(name);
      CHECK((r.values.at(name) == bytes));  // in parentheses: a failure prints no megabytes
    }
    for (const auto& [name, part] : r.states) {
      INFO(name);
      CHECK(is_part_of(part, one.states.at(name)));
      bytes_of_state[name] += part.bytes.size();
    }
  }
  for (const auto& [name, state] : one.states) {  // every byte is on some rank
    INFO(name);
    CHECK(bytes_of_state[name] == state.bytes.size() * (zero == 0 ? static_cast<std::size_t>(count) : 1));
  }
}

}  // namespace

TEST_CASE("data parallel: the bits of one rank", "[dist]") {
  const int zero = GENERATE(thimble::testing::table_rows({0, 1, 2, 3}));
  const int ranks = GENERATE(thimble::testing::table_rows({1, 2, 3, 4}));
  for (const Case& c : {Case{"char-gpt", "", "adamw"}, Case{"resnet18", "", "momentum"}, Case{"bert-base", "", "adamw"},
                        Case{"char-gpt", "", "adamw", 2}}) {
    check_equal(c, ranks, zero, 3);
  }
}

TEST_CASE("data parallel: the bits of one rank in every precision", "[dist]") {
  const int zero = GENERATE(thimble::testing::table_rows({0, 1, 2, 3}));
  for (const char* precision : {"bf16", "O1", "O2", "bf16-stochastic", "bf16-kahan", "fp8", "fp8-current"}) {
    check_equal({"char-gpt", precision, "adamw"}, 3, zero, 4);
  }
  check_equal({"char-gpt", "fp8", "adamw8", 2}, 2, zero, 4);
  check_equal({.model = "char-gpt", .precision = "fp8", .optimizer = "adamw", .fp8_margin = 3}, 2, zero, 4);
  check_equal({"char-gpt", "", "adamw8"}, 3, zero, 3);
  check_equal({"resnet18", "O2", "momentum8"}, 2, zero, 3);
  if (zero < 3) check_equal({"char-gpt", "", "adafactor"}, 2, zero, 3);
  check_equal({"char-gpt", "", "sgd", 3, 0}, 2, zero, 3);
}

TEST_CASE("data parallel: buckets of any size give the same", "[dist]") {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1} << 12, std::size_t{1} << 30}) {
    check_equal({"char-gpt", "", "adamw", 2, 1, bytes}, 2, 2, 2);
    check_equal({"char-gpt", "", "adamw", 1, 1, bytes}, 3, 0, 2);
    check_equal({"char-gpt", "", "adamw", 2, 1, bytes}, 3, 3, 2);
  }
}

TEST_CASE("data parallel: a parameter without a gradient in a micro-batch adds nothing there", "[dist]") {
  // Both are in one bucket; two of the four micro-batches have a gradient of b. The first step has none, so a rank
  // whose shard is b updates nothing and counts the step.
  const auto train_both = [](dist::Communicator* ranks, int zero, bool is_away) {
    const std::vector<optim::Named> both{{"a", full({dist::shard_grain}, 0.5).require_grad()},
                                         {"b", full({dist::shard_grain}, -0.25).require_grad()}};
    std::unique_ptr<dist::DataParallel> parallel;
    if (ranks != nullptr)
      parallel = std::make_unique<dist::DataParallel>(*ranks, both, dist::DataParallelOptions{.zero = zero});
    optim::AdamOptions of_adam{.rate = 0.125};
    if (is_away) of_adam.tier = memory::make_tier(cpu);
    optim::Adam adam(parallel ? parallel->parameters() : both, of_adam);
    nn::StepOptions options{.micro_batches = parallel ? 2 : 4, .micro_samples = 1};
    options.ranks = parallel.get();
    for (int step = 0; step < 3; ++step) {
      nn::training_step(
          adam,
          [&](std::int64_t i) {
            const std::int64_t m = parallel ? parallel->number(i) : i;
            const Tensor of_a = sum(square(both[0].tensor)) * static_cast<double>(m + 1);
            return m % 3 == 0 || step == 0 ? of_a : of_a + sum(square(both[1].tensor)) * static_cast<double>(m + 2);
          },
          options);
    }
    return std::pair(bytes_of(both[0].tensor), bytes_of(both[1].tensor));
  };
  const auto one = train_both(nullptr, 0, false);
  CHECK(one.second != bytes_of(full({dist::shard_grain}, -0.25)));
  for (int run = 0; run < 6; ++run) {
    const int zero = run / 2;
    const bool is_away = run % 2 == 1;
    INFO("ZeRO " << zero << ", state in a tier: " << is_away);
    for (const auto& found :
         testing::by_rank(2, [&](dist::Communicator& c) { return train_both(&c, zero, is_away); })) {
      CHECK(found == one);
    }
  }
}

TEST_CASE("data parallel: ranks that share a GPU have the bits of one", "[dist][cuda][slow]") {
  if (!thimble::testing::has_cuda()) return;
  const int zero = GENERATE(thimble::testing::table_rows({0, 1, 2, 3}));
  Case c{"char-gpt", "", "adamw", 1, 0.01};  // every step is clipped
  c.device = cuda();
  check_equal(c, 2, zero, 3);
}

namespace {

/// A rank's parameter of two numbers, described by a row.
struct OnRank {
  std::string name = "w";
  std::vector<float> values = {1, 2};
  double rate = 0.1;
  bool is_adam = false;
  std::int64_t micro_batches = 1;
  int zero = 1;
  std::size_t bucket_bytes = 1 << 20;
  std::int64_t updates = 0;
};

/// The error of the first step.
std::string first_step(dist::Communicator& ranks, const OnRank& own) {
  try {
    Tensor w = from_host(own.values, {2});
    w.require_grad();
    dist::DataParallel parallel(ranks, {{own.name, w}}, {.zero = own.zero, .buckets = {.bytes = own.bucket_bytes}});
    std::unique_ptr<optim::Optimizer> optimizer;
    if (own.is_adam) optimizer = std::make_unique<optim::Adam>(parallel.parameters(), optim::AdamOptions{own.rate});
    if (!own.is_adam) optimizer = std::make_unique<optim::Sgd>(parallel.parameters(), optim::SgdOptions{own.rate});
    optimizer->set_step_count(own.updates);
    parallel.begin_step(*optimizer, own.micro_batches);
  } catch (const ValueError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("data parallel: ranks that differ are refused by name before their first step", "[dist]") {
  struct Row {
    OnRank other;
    std::string text;
  };
  const std::vector<Row> rows{
      {{}, ""},
      {{.name = "v"}, "parameters 1, crc32c "},
      {{.values = {1, 3}}, "values of parameters crc32c "},
      {{.rate = 0.25}, "optimizer sgd, rate 0.1, 0 updates done and sgd, rate 0.25, 0 updates done"},
      {{.is_adam = true}, "optimizer sgd, rate 0.1, 0 updates done and adamw, rate 0.1, 0 updates done"},
      {{.micro_batches = 2}, "micro-batches 1 and 2"},
      {{.zero = 0}, "stage of ZeRO 1 and 0"},
      {{.bucket_bytes = 64}, "bytes of buckets 1048576 and 64"},
      {{.updates = 7}, "0 updates done and sgd, rate 0.1, 7 updates done"},
  };
  for (const Row& row : rows) {
    INFO(row.text);
    const auto body = [&](dist::Communicator& c) { return first_step(c, c.rank() == 1 ? row.other : OnRank{}); };
    const std::vector<std::string> texts = testing::by_rank(3, body);
    CHECK(texts[0] == texts[1]);
    CHECK(texts[0] == texts[2]);
    if (row.text.empty()) {
      CHECK(texts[0] == "");
      continue;
    }
    CHECK(texts[0].starts_with("data parallel: expected the same on all ranks, got on ranks 0 and 1 "));
    CHECK(texts[0].find(row.text) != std::string::npos);
  }
}

TEST_CASE("data parallel: the micro-batches of all ranks come in turn, a first one of each, then a second",
          "[data_parallel]") {
  const auto lists = testing::by_rank(3, [](dist::Communicator& ranks) {
    dist::DataParallel parallel(ranks, {{"p", zeros({4}).require_grad()}}, {});
    const std::int64_t own = ranks.rank() + 1;
    const std::vector<optim::MicroBatch> parts{{own, 0.5}, {own + 10, 1}};
    std::vector<std::int64_t> samples;
    for (const optim::MicroBatch& part : parallel.all_parts(parts)) samples.push_back(part.samples);
    return samples;
  });
  for (const auto& samples : lists) CHECK(samples == std::vector<std::int64_t>{1, 2, 3, 11, 12, 13});
}
