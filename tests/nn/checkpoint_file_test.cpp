#include <cmath>
#include <functional>
#include <limits>

#include <thimble/autograd/functions/loss.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/offload/file_tier.h>
#include <thimble/memory/stack.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/grad_scaler.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/tensor_files.h"

using namespace thimble;
using namespace files_test;

namespace {

// A net with all state that a resume could lose: buffers that forward changes, dropout, an optimizer with state.
class Net final : public nn::Module {
 public:
  explicit Net(std::int64_t width = 12, const nn::TensorOptions& on = {})
      : in_(child<nn::Linear>("in", 6, width, on)),
        norm_(child<nn::BatchNorm2d>("norm", width, on)),
        dropout_(child<nn::Dropout>("dropout", 0.3)),
        out_(child<nn::Linear>("out", width, 5, on)) {}
  Tensor loss(const Tensor& x, const Tensor& targets) {
    return cross_entropy(out_(dropout_(norm_.with_relu(in_(x)))), targets);
  }

 private:
  nn::Linear& in_;
  nn::BatchNorm2d& norm_;
  nn::Dropout& dropout_;
  nn::Linear& out_;
};

// A training run; the data of a step depend only on its number.
struct Training {
  explicit Training(std::uint64_t seed, std::int64_t width = 12)
      : generator(seed), net(make(generator, width)), optimizer(net->trainable(), options()) {}

  double step(std::uint64_t number) {
    const GeneratorScope scope(generator);
    const RandomSite site{99, number, 0, 1};
    const Tensor x = randn({8, 6}, DType::f32, cpu, site);  // (8, 6)
    std::vector<std::int64_t> classes;
    for (std::uint64_t i = 0; i < 8; ++i) classes.push_back(static_cast<std::int64_t>((i * 3 + number) % 5));
    const Tensor targets = from_host(classes, {8});
    return item(nn::training_step(optimizer, [&](std::int64_t) { return net->loss(x, targets); }));
  }
  std::vector<std::vector<double>> values() const {
    std::vector<std::vector<double>> list;
    for (const auto& p : net->parameters()) list.push_back(to_host<double>(p.tensor));
    for (const auto& b : net->buffers()) list.push_back(to_host<double>(b.tensor));
    for (const auto& s : optimizer.state()) list.push_back(to_host<double>(s.tensor));
    list.push_back({static_cast<double>(optimizer.step_count()), optimizer.rate(),
                    static_cast<double>(generator.seed()), static_cast<double>(generator.step())});
    return list;
  }

  static std::unique_ptr<Net> make(RandomGenerator& generator, std::int64_t width) {
    const GeneratorScope scope(generator);
    return std::make_unique<Net>(width);
  }
  static optim::AdamOptions options() {
    optim::AdamOptions options;
    options.rate = 0.01;
    options.weight_decay = 0.1;
    return options;
  }

  RandomGenerator generator;
  std::unique_ptr<Net> net;
  optim::Adam optimizer;
};

void save(const std::string& path, const Training& t, const nn::Metadata& metadata = {}) {
  nn::save_checkpoint(path, *t.net, t.optimizer, t.generator, metadata);
}

nn::Metadata load(const std::string& path, Training& t) {
  return nn::load_checkpoint(path, *t.net, t.optimizer, t.generator);
}

}  // namespace

TEST_CASE("checkpoint file: training goes on bit by bit", "[checkpoint_file]") {
  const TemporaryFolder folder;
  std::vector<double> straight, resumed;
  Training a(7);
  for (std::uint64_t i = 0; i < 6; ++i) straight.push_back(a.step(i));
  {
    Training b(7);
    for (std::uint64_t i = 0; i < 3; ++i) resumed.push_back(b.step(i));
    b.optimizer.set_rate(0.01);
    save(folder / "c", b, {{"epoch", "1"}, {"symbols", "ab\n"}});
  }
  Training c(12345);  // other values, another seed
  c.optimizer.set_rate(0.5);
  CHECK(load(folder / "c", c) == nn::Metadata{{"epoch", "1"}, {"symbols", "ab\n"}});
  for (std::uint64_t i = 3; i < 6; ++i) resumed.push_back(c.step(i));
  CHECK(straight == resumed);
  CHECK(a.values() == c.values());

  // A check of the test: without the generator's state the masks differ, and so do the losses.
  Training d(12345);
  load(folder / "c", d);
  d.generator.set_step(0);
  CHECK(d.step(3) != straight[3]);
}

TEST_CASE("checkpoint file: loading and saving again gives the same bytes", "[checkpoint_file]") {
  const TemporaryFolder folder;
  Training a(1), b(2);
  a.step(0);
  save(folder / "a", a, {{"k", "v"}});
  const nn::Metadata metadata = load(folder / "a", b);
  save(folder / "b", b, metadata);
  CHECK(read_text_file(folder / "a") == read_text_file(folder / "b"));
  CHECK(folder.entries() == 2);
}

TEST_CASE("checkpoint file: numbers are exact", "[checkpoint_file]") {
  const TemporaryFolder folder;
  Training a(std::numeric_limits<std::uint64_t>::max());
  a.optimizer.set_rate(std::nextafter(0.1, 1.0));
  a.optimizer.set_step_count(std::numeric_limits<std::int64_t>::max());
  a.generator.set_step(std::numeric_limits<std::uint64_t>::max() - 1);
  save(folder / "a", a);
  Training b(0);
  load(folder / "a", b);
  CHECK(b.generator.seed() == a.generator.seed());
  CHECK(b.generator.step() == a.generator.step());
  CHECK(b.optimizer.rate() == a.optimizer.rate());
  CHECK(b.optimizer.step_count() == a.optimizer.step_count());
  const nn::CheckpointInfo info = nn::parse_checkpoint_info(SafetensorsReader(folder / "a").header(), "a");
  CHECK(info.optimizer == "adamw");
  CHECK(info.seed == a.generator.seed());
}

TEST_CASE("checkpoint file: what does not match is refused and nothing changes", "[checkpoint_file]") {
  const TemporaryFolder folder;
  Training saved(3);
  saved.step(0);
  save(folder / "good", saved);
  Training target(4);
  target.step(0);
  const auto before = target.values();
  const auto refuses = [&](const std::string& path, const std::string& expected) {
    const std::string error = error_of([&] { load(path, target); });
    INFO(error);
    CHECK(contains(error, expected));
    CHECK(target.values() == before);
  };

  using Entries = std::vector<SafetensorsEntry>;
  struct Case {
    std::function<void(Entries&, nn::Metadata&)> change;
    const char* error;
  };
  const std::vector<Case> cases{
      {[&](Entries& e, nn::Metadata&) {
         entry_in(e, "model.in.weight").shape = {6, 12};
       },
       "ShapeError load_checkpoint: "},
      {[&](Entries& e, nn::Metadata&) {
         entry_in(e, "model.in.weight").shape = {6, 12};
       },
       "tensor 'model.in.weight' is (6, 12) in the file, the model needs (12, 6)"},
      {[&](Entries& e, nn::Metadata&) { entry_in(e, "model.in.bias").dtype = SafetensorsDType::f64; },
       "DTypeError load_checkpoint: "},
      {[&](Entries& e, nn::Metadata&) { entry_in(e, "model.in.bias").dtype = SafetensorsDType::f64; },
       "tensor 'model.in.bias' is f64 in the file, the model needs f32"},
      {[&](Entries& e, nn::Metadata&) { entry_in(e, "optimizer.in.bias.first_moment").name = "optimizer.x"; },
       "the file lacks 'optimizer.in.bias.first_moment'"},
      {[&](Entries& e, nn::Metadata&) { e.erase(e.begin() + (&entry_in(e, "model.norm.running_var") - e.data())); },
       "ValueError"},
      {[&](Entries& e, nn::Metadata&) {
         SafetensorsEntry extra = entry_in(e, "model.in.bias");
         extra.name = "model.extra";
         e.push_back(extra);
       },
       "neither model nor optimizer has 'model.extra'"},
      {[&](Entries& e, nn::Metadata&) { entry_in(e, "model.in.bias").name = "in.bias"; }, "FileError"},
      {[&](Entries&, nn::Metadata& m) { m["thimble.optimizer"] = "sgd"; },
       "optimizer 'sgd' in the file, training uses 'adamw'"},
      {[&](Entries&, nn::Metadata& m) { m.erase("thimble.kind"); }, "no checkpoint: its metadata lack thimble.kind"},
      {[&](Entries&, nn::Metadata& m) { m["thimble.kind"] = "checkpoint 2"; }, "readable: 'checkpoint 1'"},
      {[&](Entries&, nn::Metadata& m) { m.erase("thimble.rate"); }, "its metadata lack thimble.rate"},
      {[&](Entries&, nn::Metadata& m) { m["thimble.rate"] = "7ff0000000000000"; }, "is no finite number >= 0"},
      {[&](Entries&, nn::Metadata& m) { m["thimble.rate"] = "bff0000000000000"; }, "is no finite number >= 0"},
      {[&](Entries&, nn::Metadata& m) { m["thimble.rate"] = "0.1"; }, "no 16 hexadecimal digits"},
      {[&](Entries&, nn::Metadata& m) { m["thimble.step_count"] = "-1"; }, "the metadata's thimble.step_count is '-1'"},
      {[&](Entries&, nn::Metadata& m) { m["thimble.step_count"] = "9223372036854775808"; }, "FileError"},
      {[&](Entries&, nn::Metadata& m) { m["thimble.generator.seed"] = "18446744073709551616"; }, "FileError"},
      {[&](Entries&, nn::Metadata& m) { m["thimble.generator.step"] = "1 "; }, "FileError"},
      {[&](Entries&, nn::Metadata& m) { m["thimble.scaler.good_steps"] = "1"; }, "metadata lack thimble.scaler.scale"},
      {[&](Entries&, nn::Metadata& m) { m["thimble.scaler.scale"] = "0000000000000000"; }, "no finite number > 0"},
      {[&](Entries&, nn::Metadata& m) { m["thimble.generator.step"] = "01"; }, "FileError"},
      {[&](Entries&, nn::Metadata& m) { m["thimble.generator.step"] = ""; }, "FileError"},
  };
  for (const Case& c : cases) {
    Entries entries = SafetensorsReader(folder / "good").header().tensors;
    nn::Metadata metadata = SafetensorsReader(folder / "good").header().metadata;
    c.change(entries, metadata);
    write_zeros(folder / "bad", entries, metadata);
    refuses(folder / "bad", c.error);
  }
  const std::string bytes = read_text_file(folder / "good");
  for (const std::size_t cut : {std::size_t{0}, std::size_t{7}, std::size_t{300}, bytes.size() - 1}) {
    write_text_file(folder / "bad", bytes.substr(0, cut));
    refuses(folder / "bad", "FileError");
  }
  refuses(folder / "none", "FileError");

  Training wide(5, 13);
  CHECK(contains(error_of([&] { load(folder / "good", wide); }), "ShapeError"));
  optim::Sgd sgd(target.net->trainable(), {});
  CHECK(contains(error_of([&] { nn::load_checkpoint(folder / "good", *target.net, sgd, target.generator); }),
                 "optimizer 'adamw' in the file, training uses 'sgd'"));
  // An out-of-range scale is refused before the first tensor is read.
  optim::GradScaler scaler({.scale = 64}), low({.scale = 2, .most = 16});
  nn::save_checkpoint(folder / "scaled", *saved.net, saved.optimizer, saved.generator, {}, &scaler);
  const auto scaled_by = [&](const std::string& name, optim::GradScaler* own) {
    return error_of([&] { nn::load_checkpoint(folder / name, *target.net, target.optimizer, target.generator, own); });
  };
  CHECK(contains(scaled_by("scaled", &low), "expected scale between the least and the largest, got 64"));
  CHECK(contains(scaled_by("scaled", nullptr), "the loss was scaled in the file; training does not"));
  CHECK(contains(scaled_by("good", &low), "the loss was not scaled in the file; training scales it"));
  CHECK(low.state().scale == 2);
  CHECK(target.values() == before);
}

TEST_CASE("checkpoint file: a save that fails leaves the old file", "[checkpoint_file]") {
  const TemporaryFolder folder;
  Training a(6);
  save(folder / "c", a);
  const std::string before = read_text_file(folder / "c");
  CHECK(contains(error_of([&] { save(folder / "c", a, {{"thimble.rate", "1"}}); }), "ValueError"));
  CHECK(contains(error_of([&] { save(folder / "c", a, {{"k", "\xff"}}); }), "ValueError"));
  CHECK(contains(error_of([&] { save(folder / "no/c", a); }), "FileError"));
  Net dry_net(12, {dry(cpu), DType::f32});
  optim::Sgd optimizer(dry_net.trainable(), {});
  CHECK(contains(error_of([&] { nn::save_checkpoint(folder / "c", dry_net, optimizer, a.generator); }), "DeviceError"));
  CHECK(read_text_file(folder / "c") == before);
  CHECK(folder.entries() == 1);
  // A file of another kind is replaced only on demand; an empty file always.
  nn::save_weights(*a.net, folder / "weights");
  files_test::write_text_file(folder / "note", "hello");
  for (const char* const name : {"weights", "note"}) {
    const std::string foreign = read_text_file(folder / name);
    CHECK(contains(error_of([&] { save(folder / name, a); }),
                   "ValueError save_checkpoint: expected a new file or a checkpoint, got "));
    CHECK(read_text_file(folder / name) == foreign);
    nn::save_checkpoint(folder / name, *a.net, a.optimizer, a.generator, {}, nullptr, true);
    CHECK(read_text_file(folder / name) == before);
  }
  files_test::write_text_file(folder / "empty", "");
  save(folder / "empty", a);
  CHECK(read_text_file(folder / "empty") == before);
}

namespace {

/// Adam's state for four layers, which may live in a file.
struct Away {
  explicit Away(std::shared_ptr<memory::Tier> tier)
      : scope(generator), net(64), optimizer(net.trainable(), {.rate = 0.01, .tier = std::move(tier)}) {}

  void step() {
    const Tensor x = randn({8, 6}, DType::f32, cpu, {5, static_cast<std::uint64_t>(optimizer.step_count()), 0, 1});
    const Tensor targets = from_host(std::vector<std::int64_t>{0, 1, 2, 3, 4, 0, 1, 2}, {8});
    nn::training_step(optimizer, [&](std::int64_t) { return net.loss(x, targets); });
  }

  RandomGenerator generator{3};
  GeneratorScope scope;
  Net net;
  optim::Adam optimizer;
};

}  // namespace

TEST_CASE("checkpoint file: state that is away comes here for one parameter at a time", "[checkpoint_file]") {
  const TemporaryFolder folder;
  std::shared_ptr<memory::Tier> tier;
  try {
    tier = std::make_shared<memory::FileTier>();
  } catch (const FileError& error) {
    WARN("SKIPPED: " << error.what());
    return;
  }
  {
    Away here(nullptr);
    for (int i = 0; i < 3; ++i) here.step();
    nn::save_checkpoint(folder / "here", here.net, here.optimizer, here.generator);
  }
  const memory::Stack stack = memory::make_resource(cpu);
  const ResourceScope scope(stack.top);
  Away away(std::make_shared<memory::FileTier>());
  for (int i = 0; i < 3; ++i) away.step();
  std::size_t largest = 0;
  for (const optim::Named& p : away.optimizer.parameters()) largest = std::max(largest, 2 * p.tensor.bytes());
  REQUIRE(largest < away.optimizer.state_bytes());
  const auto extra = [&](auto&& work) {
    const std::size_t before = stack.ledger->bytes(memory::Category::optimizer);
    CHECK(before == 0);
    stack.ledger->reset_peak();
    const std::size_t live = stack.ledger->max_allocated();
    work();
    CHECK(stack.ledger->bytes(memory::Category::optimizer) == 0);
    return stack.ledger->max_allocated() - live;
  };
  CHECK(extra([&] { nn::save_checkpoint(folder / "away", away.net, away.optimizer, away.generator); }) <= largest);
  CHECK(read_text_file(folder / "away") == read_text_file(folder / "here"));

  Away other(std::make_shared<memory::FileTier>());
  other.step();
  CHECK(extra([&] { nn::load_checkpoint(folder / "here", other.net, other.optimizer, other.generator); }) <= largest);
  nn::save_checkpoint(folder / "again", other.net, other.optimizer, other.generator);
  CHECK(read_text_file(folder / "again") == read_text_file(folder / "here"));

  // A failed save leaves the state in the tier, and training goes on.
  CHECK_THROWS_AS(nn::save_checkpoint(folder / "no/such/folder", away.net, away.optimizer, away.generator), FileError);
  CHECK(stack.ledger->bytes(memory::Category::optimizer) == 0);
  away.step();
}

TEST_CASE("checkpoint file: tensors of the cpu need no memory of a resource to be written and read",
          "[checkpoint_file]") {
  const TemporaryFolder folder;
  const memory::Stack stack = memory::make_resource(cpu);
  const ResourceScope scope(stack.top);
  Training a(1), b(2);
  a.step(0);
  const std::uint64_t before = stack.arena->statistics().allocation_count;
  save(folder / "a", a);
  load(folder / "a", b);
  CHECK(stack.arena->statistics().allocation_count == before);
  CHECK(a.values() == b.values());
}
