// Certificates of programs: digests against a published function, contents, and runs that pass or fail.

#include <algorithm>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/view.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/certify/certify.h>
#include <thimble/optim/grad_scaler.h>
#include <thimble/optim/sgd.h>

#include "own_program.h"
#include "support/catch.h"
#include "support/model_runs.h"
#include "support/program.h"

using namespace thimble;
using namespace own_program;

namespace {

nn::Digest digest_of_text(const std::string& text) {
  nn::DigestStream digest;
  digest.add(text.data(), text.size());
  return digest.value();
}

std::size_t index_of(nn::Compared kind) { return static_cast<std::size_t>(kind); }

models::RunOptions small_gpt() {
  models::RunOptions options;
  options.setup.model = "char-gpt";
  options.setup.batch = 16;
  options.setup.sizes.layers = 4, options.setup.sizes.heads = 4, options.setup.sizes.width = 64;
  options.setup.sizes.sequence = 48, options.setup.sizes.dropout = 0.1;
  options.data = "synthetic";
  options.steps = 2;
  options.eval_batches = 1;
  return options;
}

}  // namespace

TEST_CASE("digest: the published function, wherever its input is cut", "[certify]") {
  // MurmurHash3_x64_128 of "" and "hello", seed 0, from its author's program.
  CHECK(digest_of_text("") == nn::Digest{0, 0});
  CHECK(digest_of_text("hello") == nn::Digest{0xcbd8a7b341bd9b02ull, 0x5b1e906a48ae1d19ull});
  const std::string text = "the quick brown fox jumps over the lazy dog, twice and once more";
  const nn::Digest whole = digest_of_text(text);
  for (std::size_t first = 0; first <= text.size(); ++first) {
    for (const std::size_t second : {std::size_t{0}, std::size_t{1}, std::size_t{15}, std::size_t{16}}) {
      nn::DigestStream parts;
      parts.add(text.data(), first);
      const std::size_t end = std::min(first + second, text.size());
      parts.add(text.data() + first, end - first);
      parts.add(text.data() + end, text.size() - end);
      CHECK(parts.value() == whole);
    }
  }
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string other = text;
    other[i] = static_cast<char>(other[i] ^ 1);
    CHECK_FALSE(digest_of_text(other) == whole);
    CHECK_FALSE(digest_of_text(text.substr(0, i)) == whole);
  }
}

TEST_CASE("digest: of tensors, whatever their layout", "[certify]") {
  const Tensor t = reshape(arange(4 * 3000, DType::f32), {4, 3000});
  const Tensor turned = view::transpose(t, 0, 1);
  CHECK_FALSE(turned.is_contiguous());
  CHECK(nn::digest_of(turned) == nn::digest_of(clone(turned)));
  CHECK_FALSE(nn::digest_of(turned) == nn::digest_of(t));
  const Tensor part = view::slice(t, 1, 7, 1200, 3);
  CHECK(nn::digest_of(part) == nn::digest_of(clone(part)));
  CHECK(nn::digest_of(Tensor()) == nn::Digest{});
  CHECK(nn::digest_of(zeros({0})) == nn::Digest{});
  CHECK_FALSE(nn::digest_of(full({2}, 0.0)) == nn::digest_of(full({2}, -0.0)));
  Tensor scaled = full({2}, 1.0);
  const nn::Digest before = nn::digest_of(scaled);
  scaled.set_scale(full({}, 2.0));
  CHECK_FALSE(nn::digest_of(scaled) == before);
}

TEST_CASE("certify: an own program in a budget", "[certify]") {
  const testing::Threads alone;
  nn::TrainerOptions options{.budget_bytes = std::size_t{1} << 40, .seed = 5};
  options.budget_bytes = nn::Trainer<Net, Batch>(program(), options).plan().keep_everything_bytes * 6 / 10;
  nn::Trainer<Net, Batch> trainer(program(), options);
  CHECK(trainer.plan().shapes[0].parts[0].time_overhead > 0);
  const nn::Certificate certificate = trainer.certify(3);
  INFO(certificate.text());
  CHECK(certificate.holds());
  CHECK(certificate.differences.empty());
  const std::size_t parameters = trainer.optimizer().parameters().size();
  CHECK(certificate.tensors[index_of(nn::Compared::loss)] == 3);
  CHECK(certificate.tensors[index_of(nn::Compared::gradient)] == 3 * parameters);
  CHECK(certificate.tensors[index_of(nn::Compared::parameter)] == 3 * parameters);
  CHECK(certificate.tensors[index_of(nn::Compared::optimizer_state)] == 3 * (2 * parameters + 1));
  CHECK(certificate.tensors[index_of(nn::Compared::statistics)] == 3 * trainer.model().buffers().size());
  CHECK(certificate.tensors[index_of(nn::Compared::generator)] == 3 * 2);
  CHECK(certificate.planned.peak_bytes <= certificate.predicted_peak_bytes);
  CHECK(certificate.planned.peak_bytes < certificate.plain.peak_bytes);
  CHECK(certificate.planned.placed.steps == 3);
  CHECK(certificate.planned.placed.deviations == 0);
  CHECK(certificate.text().find("every bit is equal") == 0);
}

TEST_CASE("certify: what differs is named, the first of it first", "[certify]") {
  const testing::Threads alone;
  nn::TrainerOptions options{.budget_bytes = std::size_t{1} << 40, .seed = 5};
  // The second run gets a different batch in its second step.
  Program own = program();
  int real_models = 0;
  const auto model = own.model;
  own.model = [&, model](memory::Device device) {
    real_models += device.is_dry ? 0 : 1;
    return model(device);
  };
  const auto batch = own.batch;
  own.batch = [&, batch](std::int64_t step, memory::Device device) {
    Batch made = batch(step, device);
    if (real_models == 2 && step == 1 && !device.is_dry) fill(view::slice(made.y, 0, 0, 1), 7);
    return made;
  };
  nn::Trainer<Net, Batch> trainer(own, options);
  const nn::Certificate certificate = trainer.certify(3);
  CHECK_FALSE(certificate.holds());
  REQUIRE_FALSE(certificate.differences.empty());
  CHECK(certificate.differences.front() == nn::Difference{1, nn::Compared::loss, "loss", false});
  const auto names = [&](std::int64_t step, nn::Compared kind) {
    return std::any_of(certificate.differences.begin(), certificate.differences.end(),
                       [&](const nn::Difference& d) { return d.step == step && d.kind == kind; });
  };
  CHECK(names(1, nn::Compared::gradient));
  CHECK(names(1, nn::Compared::optimizer_state));
  CHECK_FALSE(names(1, nn::Compared::statistics));  // inputs and weights were equal until then
  CHECK(names(2, nn::Compared::statistics));
  CHECK_FALSE(names(2, nn::Compared::generator));
  CHECK(certificate.text().find("step 1: loss loss") != std::string::npos);
  nn::Certificate by_hand;
  by_hand.steps = 2, by_hand.tensors = {3, 4, 5, 6, 7, 8}, by_hand.bytes = 9, by_hand.predicted_peak_bytes = 10;
  by_hand.plain.peak_bytes = 11, by_hand.planned.peak_bytes = 12;
  const std::string rest =
      "compared over 2 steps, 9 B: 3 of loss, 4 of gradient, 5 of parameter, 6 of optimizer state, 7 of statistics, 8 "
      "of "
      "generator\npeak 11 B plain, 12 B under the plan, predicted 10 B\n";
  CHECK(by_hand.text() == "every bit is equal\n" + rest);
  by_hand.differences.assign(11, {1, nn::Compared::gradient, "w", true});
  const std::string line = "  step 1: gradient w (one run has none)\n";
  std::string ten;
  for (int i = 0; i < 10; ++i) ten += line;
  CHECK(by_hand.text() == "11 tensors differ; the first:\n" + ten + rest);

  nn::Trajectory one{{0, nn::Compared::loss, "loss", 8, {1, 2}}}, none;
  CHECK(nn::compare(one, none) == std::vector<nn::Difference>{{0, nn::Compared::loss, "loss", true}});
  CHECK(nn::compare(none, one).size() == 1);
  CHECK(nn::compare(one, one).empty());
  for (std::uint64_t bit = 0; bit < 64; ++bit) {
    nn::Trajectory other = one;
    (bit % 2 == 0 ? other[0].digest.low : other[0].digest.high) ^= std::uint64_t{1} << bit;
    CHECK(nn::compare(one, other).size() == 1);
  }
  CHECK_FALSE(nn::Certificate().holds());  // nothing was compared
}

TEST_CASE("certify: gradients of each micro-batch have a name, and skipped steps are compared", "[certify]") {
  models::Setup setup = small_gpt().setup;
  setup.micro_batches = 2;
  const std::unique_ptr<nn::TrainingRun> run = models::random_run(setup)(cpu);
  nn::Witness witness(*run);
  run->step();
  nn::Trajectory trajectory;
  witness.note_step(trajectory);
  std::vector<std::string> gradients;
  for (const nn::ComparedTensor& t : trajectory) {
    if (t.kind == nn::Compared::gradient) gradients.push_back(t.name);
  }
  CHECK(gradients.size() == 2 * run->view().optimizers[0]->parameters().size());
  for (const optim::Named& p : run->view().optimizers[0]->parameters()) {
    INFO(p.name);
    CHECK(std::count(gradients.begin(), gradients.end(), p.name) == 1);
    CHECK(std::count(gradients.begin(), gradients.end(), p.name + "[1]") == 1);
  }

  struct Scaled final : nn::TrainingRun {
    void step() override {}
    nn::StepOptions& options() override { return step_options; }
    std::int64_t parameters() const override { return 2; }
    nn::RunView view() override { return {.losses = {1}, .optimizers = {&sgd}, .buffers = {}, .scaler = &scaler}; }
    nn::StepOptions step_options;
    optim::Sgd sgd{{{"p", zeros({2}).require_grad()}}, {}};
    optim::GradScaler scaler{optim::GradScalerOptions()};
  } scaled;
  nn::Trajectory one, other;
  for (nn::Trajectory* const each : {&one, &other}) {
    nn::Witness of(scaled);
    of.note_step(*each);
    optim::GradScalerState state = scaled.scaler.state();
    ++state.skipped_steps;
    scaled.scaler.set_state(state);
  }
  CHECK(nn::compare(one, other) ==
        std::vector<nn::Difference>{{0, nn::Compared::optimizer_state, "skipped steps", false}});
}

TEST_CASE("certify: a training run of the program", "[certify]") {
  const testing::Threads alone;
  models::RunOptions options = small_gpt();
  const std::size_t all = models::Engine(options).plan().peak_bytes;
  CHECK_THROWS_AS(models::Engine(options).certify(), ValueError);
  options.budget_bytes = all * 7 / 10;
  const nn::Certificate certificate = models::Engine(options).certify();
  INFO(certificate.text());
  CHECK(certificate.holds());
  CHECK(certificate.predicted_peak_bytes == certificate.planned.peak_bytes);
  CHECK(certificate.planned.peak_bytes <= options.budget_bytes);
  CHECK(certificate.plain.peak_bytes == all);
  options.setup.micro_batches = 2;
  options.budget_bytes = models::Engine(options).plan().peak_bytes;
  const nn::Certificate of_parts = models::Engine(options).certify();
  CHECK(of_parts.holds());
  CHECK(of_parts.tensors[index_of(nn::Compared::gradient)] ==
        2 * certificate.tensors[index_of(nn::Compared::gradient)]);
  options.setup.packing.is_allowed = true;
  CHECK_THROWS_AS(models::Engine(options).certify(), ValueError);
}

TEST_CASE("certify: runs that show nothing are refused, and so are no steps", "[certify]") {
  models::Setup setup;
  setup.model = "mlp";
  const nn::MakeRun silent = models::inference_run(setup);
  CHECK_THROWS_AS(nn::certify(silent, cpu, {}), ValueError);
  CHECK_THROWS_AS(nn::certify(silent, cpu, {}, {.steps = 0}), ValueError);
  CHECK_THROWS_AS(nn::certify(silent, dry(cpu), {}), DeviceError);
}

TEST_CASE("certify: the command", "[certify]") {
  const files_test::TemporaryFolder folder;
  const std::string sizes = "certify char-gpt --batch 16 --layers 4 --heads 4 --width 64 --seq 48 ";
  const auto result = program_test::run(folder, sizes + "--budget 12MiB --steps 2 --json");
  if (!result) {
    WARN("THIMBLE_PROGRAM is not set: the command was not run");
    return;
  }
  INFO(result->error);
  REQUIRE(result->status == 0);
  const nlohmann::json json = nlohmann::json::parse(result->out);
  CHECK(json.at("holds") == true);
  CHECK(json.at("first_difference").is_null());
  CHECK(json.at("predicted_peak_bytes") == json.at("planned_peak_bytes"));
  CHECK(json.at("planned_peak_bytes") <= 12 << 20);
  CHECK(json.at("compared_tensors") > 100);
  CHECK(program_test::run(folder, sizes + "--steps 2")->status == 2);  // no budget
  CHECK(program_test::run(folder, sizes + "--budget 12MiB --allow-lossy")->status == 2);
}
