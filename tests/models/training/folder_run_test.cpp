// Runs that begin with files: sizes and function come from the file wherever it is read again. A resumed run, saved
// weights, generated text, the plan and the 8-bit form all belong to one model.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/models/generation/generating.h>
#include <thimble/models/llama/llama_files.h>
#include <thimble/models/models.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/training/quantizing.h>
#include <thimble/models/training/training.h>
#include <thimble/models/weights/follow_weights.h>
#include <thimble/nn/files/weights.h>
#include <thimble/thimble.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/model_runs.h"
#include "support/refusal.h"

using namespace thimble;
using namespace thimble::models;
using namespace thimble::testing;
using files_test::contains;
using files_test::TemporaryFolder;
using refusal_test::refusal;

namespace {

constexpr const char* characters = "abcdefghij .\n";

/// A text over all of `characters`.
std::string text_of(const std::string& from, std::size_t length) {
  std::string text;
  for (std::size_t i = 0; i < length; ++i) text += from[(i * i + 3 * i + i / 7) % from.size()];
  return from + text;
}

ModelOptions sizes() {
  return {.vocabulary = 13, .sequence = 12, .layers = 2, .heads = 4, .width = 32, .key_heads = 2, .hidden = 64};
}

/// The configuration of a Llama that no named model matches.
LlamaConfig unusual() {
  LlamaConfig config = llama_config("tiny-llama", sizes());
  config.epsilon = 0.3, config.theta = 50, config.is_tied = false, config.sizes.window = 5, config.positions = 40;
  config.scaling = RotaryScaling{3, 1, 4, 40, RotaryKind::linear};
  return config;
}

RunOptions options_for(const std::string& data, std::int64_t steps) {
  RunOptions o;
  o.setup.model = "tiny-llama", o.setup.batch = 4, o.setup.sizes.sequence = 12;
  o.data = data, o.steps = steps, o.eval_batches = 2;
  return o;
}

}  // namespace

TEST_CASE("folder run: training, its checkpoint and its weights keep the folder's model", "[models][config]") {
  const Threads alone;
  const TemporaryFolder folder;
  const std::string data = folder / "data.txt", path = folder / "model";
  files_test::write_text_file(data, text_of(characters, 2000));
  const LlamaConfig config = unusual();
  save_llama(Llama(config, {}), path);

  RunOptions whole = options_for(data, 4);
  whole.setup.weights = path, whole.save_weights = folder / "own.safetensors";
  const TrainReport of_whole = Engine(whole).run();
  Engine engine(whole);
  const ModelOptions& found = engine.options().setup.sizes;
  CHECK((found.heads == 4 && found.key_heads == 2 && found.hidden == 64 && found.width == 32 && found.window == 5));
  CHECK(found.function.epsilon == 0.3);
  CHECK(found.function.rotary == RotaryPositions{50, config.scaling});
  CHECK(found.function.is_tied == false);

  RunOptions half = whole;
  half.steps = 2, half.save = folder / "half.ckpt", half.save_weights.clear();
  Engine(half).run();
  // Only gives the model's name.
  RunOptions rest = options_for(data, 4);
  rest.setup.sizes = {};
  rest.setup.sizes.sequence = 12, rest.resume = half.save;
  const TrainReport of_rest = Engine(rest).run();
  CHECK(of_rest.loss_last == of_whole.loss_last);
  CHECK(of_rest.evaluation->loss == of_whole.evaluation->loss);
  // Another function of equal parameters is refused with both values.
  RunOptions other = rest;
  other.setup.sizes.function = config.sizes.function;
  other.setup.sizes.function.rotary = RotaryPositions{50, config.scaling};
  other.setup.sizes.function.is_tied = false;
  other.setup.sizes.function.epsilon = 0.25;
  CHECK(contains(refusal<Error>([&] { Engine(other).plan(); }),
                 "was trained with epsilon 0.3; expected the same function"));
  other = rest;
  other.setup.sizes.heads = 2;
  CHECK(contains(refusal<Error>([&] { Engine(other).plan(); }), "`heads`"));

  // Generation uses this function, from the checkpoint and from our weights file.
  for (const bool from_checkpoint : {false, true}) {
    GenerateOptions o;
    o.shape.setup.model = "tiny-llama", o.shape.setup.batch = 1, o.shape.tokens = 3, o.prompt = "abc";
    (from_checkpoint ? o.checkpoint : o.weights) = from_checkpoint ? half.save : whole.save_weights;
    const ModelOptions written = prepare_generation(o).plan.shape.setup.sizes;
    CHECK((written.function.epsilon == 0.3 && written.function.rotary == found.function.rotary && written.window == 5));
    CHECK((written.function.is_tied == false && written.heads == 4 && written.key_heads == 2));
    o.shape.setup.sizes.heads = 8;
    CHECK(contains(refusal<Error>([&] { prepare_generation(o); }), "`heads`: expected 4, as "));
  }
  // A run at rate 0 from our weights file measures the final loss of the run.
  RunOptions again = options_for(data, 1);
  again.setup.weights = whole.save_weights, again.setup.optimizer.rate = 0, again.setup.optimizer.weight_decay = 0;
  CHECK(Engine(again).run().evaluation->loss == of_whole.evaluation->loss);

  // The plan is for the folder's model, and the 8-bit form has its weights.
  RunOptions plan;
  plan.setup = whole.setup, plan.data = data;
  const PlanReport report = make_plan(plan);
  CHECK((report.setup.sizes.window == 5 && report.setup.sizes.function == found.function));
  CHECK(report.plan.peak_bytes == engine.plan().peak_bytes);
  LlamaConfig tied = config;
  tied.is_tied = true;
  save_llama(Llama(tied, {}), folder / "tied");
  RunOptions of_tied = options_for(data, 1);
  of_tied.setup.weights = folder / "tied", of_tied.setup.optimizer.rate = 0, of_tied.setup.optimizer.weight_decay = 0;
  of_tied.eval_batches = 0;
  QuantizeOptions quantized;
  quantized.setup = options_for(data, 1).setup;
  quantized.weights = of_tied.setup.weights, quantized.data = data, quantized.save = folder / "q8";
  CHECK(quantize(quantized).loss_f32 == Approx(Engine(of_tied).run().evaluation->loss).epsilon(1e-5));
  GenerateOptions o;
  o.shape.setup.model = "tiny-llama", o.shape.setup.batch = 1, o.shape.tokens = 3, o.prompt = "abc";
  o.weights = quantized.save;
  const ModelOptions written = prepare_generation(o).plan.shape.setup.sizes;
  CHECK((written.heads == 4 && written.window == 5 && written.function.epsilon == 0.3));
}

TEST_CASE("folder run: weights of other characters are refused", "[models][config]") {
  const Threads alone;
  const TemporaryFolder folder;
  const std::string data = folder / "data.txt", other = folder / "other.txt";
  files_test::write_text_file(data, text_of(characters, 2000));
  files_test::write_text_file(other, text_of("abcdefghiJ .\n", 2000));
  RunOptions o = options_for(data, 1);
  o.setup.model = "char-gpt";
  o.setup.sizes = {.sequence = 12, .layers = 1, .heads = 4, .width = 16};
  o.save_weights = folder / "w.safetensors";
  Engine(o).run();
  RunOptions next = options_for(other, 1);
  next.setup.model = "char-gpt", next.setup.weights = o.save_weights;
  CHECK(contains(refusal<Error>([&] { Engine(next).plan(); }), "`weights`: expected the characters of the data, "));
  next.data = data;
  CHECK(Engine(next).options().setup.sizes.heads == 4);  // char-gpt's default is 6
  RunOptions one_name = next;
  one_name.save = one_name.log = folder / "x";
  CHECK(contains(refusal<Error>([&] { Engine(one_name).plan(); }), "`log`: expected a folder, got "));
  one_name.log.clear(), one_name.keep = 2, one_name.save_weights = folder / "x.step-4";
  CHECK(contains(refusal<Error>([&] { Engine(one_name).plan(); }), "`save_weights`: expected another name, got "));
  next.setup.sizes.heads = 2;
  CHECK(contains(refusal<Error>([&] { Engine(next).plan(); }), "`heads`: expected 4, as "));
}

TEST_CASE("folder run: BERT's older names and its heads for other tasks", "[models][config][quick]") {
  const TemporaryFolder folder;
  const ModelOptions options{.vocabulary = 33, .sequence = 16, .layers = 2, .heads = 2, .width = 32, .dropout = 0};
  const auto first = make_seeded<Model>("bert-base", options), second = make_seeded<Model>("bert-base", options, {}, 2);
  std::vector<nn::NamedTensor> tensors;
  for (nn::NamedTensor t : first->parameters()) {
    if (contains(t.name, "LayerNorm")) thimble::fill(t.tensor, t.name.ends_with("weight") ? 1.5 : 0.25);
    if (contains(t.name, "LayerNorm") && t.name.ends_with("weight")) t.name.replace(t.name.size() - 6, 6, "gamma");
    if (contains(t.name, "LayerNorm") && t.name.ends_with("bias")) t.name.replace(t.name.size() - 4, 4, "beta");
    tensors.push_back(t);
  }
  const Tensor table = first->parameters().front().tensor;
  for (const char* const name : {"bert.pooler.dense.weight", "bert.pooler.dense.bias", "cls.seq_relationship.weight",
                                 "cls.seq_relationship.bias", "bert.embeddings.position_ids"}) {
    tensors.push_back({name, full({2}, 1)});
  }
  const std::string file = folder / "f";
  for (const bool is_strict : {true, false}) {
    nn::write_tensor_file(file, tensors, {});
    const nn::LoadedWeights loaded = nn::load_weights(*second, file, {.is_strict = is_strict});
    CHECK((loaded.missing.empty() && loaded.unused.empty()));
    const auto a = first->parameters(), b = second->parameters();
    for (std::size_t i = 0; i < a.size(); ++i) CHECK(to_host<float>(a[i].tensor) == to_host<float>(b[i].tensor));
  }
  // The decoder is the table, and must equal it.
  tensors.push_back({"cls.predictions.decoder.weight", table});
  nn::write_tensor_file(file, tensors, {});
  nn::load_weights(*second, file);
  tensors.back().tensor = full(table.shape(), 3);
  nn::write_tensor_file(file, tensors, {});
  CHECK(contains(refusal<Error>([&] { nn::load_weights(*second, file); }),
                 "'cls.predictions.decoder.weight': expected a copy"));
  // The decoder suffices without the table; unknown names are reported.
  std::erase_if(tensors, [](const nn::NamedTensor& t) { return t.name == "bert.embeddings.word_embeddings.weight"; });
  nn::write_tensor_file(file, tensors, {});
  nn::load_weights(*second, file);
  CHECK(to_host<float>(second->parameters().front().tensor)[5] == 3);
  tensors.push_back({"cls.of_tomorrow", full({2}, 1)});
  nn::write_tensor_file(file, tensors, {});
  CHECK(contains(refusal<Error>([&] { nn::load_weights(*second, file); }), "the model lacks 'cls.of_tomorrow'"));
}

// ---- A named model trained by the lines at the top of models/training/training.h.

using files_test::TemporaryFolder;

namespace {

struct Trained {
  std::size_t told_bytes = 0;
  models::TrainReport report, rest;
};

Trained train_by_name(const std::string& folder) {
  // begin
  models::RunOptions options;
  options.setup.model = "char-gpt";  // any name of models::model_list()
  options.setup.sizes.width = 96;    // defaults to the model's
  options.data = "synthetic";        // or a path: see open_dataset
  options.steps = 6;
  options.budget_bytes = static_cast<std::size_t>(parse_size("64 MiB"));
  options.save = folder + "/run";
  options.log = folder + "/curves";
  models::Engine engine(options);
  std::printf("%zu bytes\n", engine.plan().peak_bytes);  // before the first step; the arena will take exactly this
  const models::TrainReport report = engine.run([](const nn::Progress& p) { std::printf("loss %f\n", p.loss); });
  options.resume = options.save;
  options.steps = 9;
  const models::TrainReport rest = models::Engine(options).run();
  // end
  return {engine.plan().peak_bytes, report, rest};
}

/// The lines of code between the two marks, without indentation.
std::vector<std::string> code_of_test() {
  std::istringstream text(
      files_test::read_text_file((files_test::tests_folder() / "models/training/folder_run_test.cpp").string()));
  std::vector<std::string> code;
  bool is_inside = false;
  for (std::string line; std::getline(text, line);) {
    if (line == "  // end") break;
    if (is_inside) code.push_back(line.substr(2));
    if (line == "  // begin") is_inside = true;
  }
  return code;
}

/// The indented lines of the comment at a header's top.
std::vector<std::string> code_of_header(const std::string& path) {
  std::istringstream text(files_test::read_text_file(path));
  std::vector<std::string> code;
  for (std::string line; std::getline(text, line) && !line.starts_with("#include");) {
    if (line.starts_with("//   ")) code.push_back(line.substr(5));
  }
  return code;
}

}  // namespace

TEST_CASE("named run: what the header shows is what runs here", "[training]") {
  const std::vector<std::string> shown = code_of_header("models/training/training.h");
  CHECK(shown.size() > 10);
  CHECK(shown == code_of_test());
}

TEST_CASE("named run: bytes are told before the first step, and a run goes on from its checkpoint",
          "[training][slow]") {
  const TemporaryFolder folder;
  const Trained trained = train_by_name(folder.path());
  CHECK(trained.told_bytes <= std::size_t{64} << 20);
  CHECK(trained.report.measured_peak_bytes == trained.told_bytes);
  CHECK(trained.report.predicted_peak_bytes == trained.told_bytes);
  CHECK(trained.report.time_overhead > 0);  // keeping everything exceeds the budget
  CHECK(trained.report.steps == 6);
  CHECK(trained.rest.first_step == 6);
  CHECK(trained.rest.steps == 9);
  CHECK(trained.rest.differences().empty());
  CHECK(std::filesystem::exists(folder / "run"));
  CHECK_FALSE(std::filesystem::is_empty(folder / "curves"));
  models::RunOptions whole;
  whole.setup.model = "char-gpt";
  whole.setup.sizes.width = 96;
  whole.data = "synthetic";
  whole.steps = 9;
  const models::TrainReport report = models::Engine(whole).run();  // keeps everything
  CHECK(report.loss_last == trained.rest.loss_last);
  CHECK(report.loss_first == trained.report.loss_first);
}
