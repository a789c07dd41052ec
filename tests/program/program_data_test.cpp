// The data that `thimble train` takes: texts, tokens and images in each of their file formats.

#include <filesystem>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <thimble/models/training/training.h>
#include <thimble/nn/data/synthetic.h>
#include <thimble/nn/data/tokens.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/trained.h"

namespace program_data_test {

using namespace thimble;
using files_test::contains;
using files_test::TemporaryFolder;
using models::RunOptions;
using trained_test::refusal;
using trained_test::run;
using trained_test::Run;

RunOptions tiny(const std::string& model) {
  RunOptions options;
  options.setup.model = model;
  options.setup.batch = 2;
  options.setup.sizes.width = 8;
  options.steps = 1;
  options.eval_batches = 2;
  return options;
}

}  // namespace program_data_test

TEST_CASE("program: texts and tokens of every kind") {
  using namespace program_data_test;
  const TemporaryFolder folder;
  RunOptions options = tiny("char-gpt");
  options.setup.sizes.layers = 2, options.setup.sizes.heads = 2, options.setup.sizes.sequence = 16;
  options.setup.sizes.width = 16;
  const std::string text = data::synthetic_text(5000, 3);
  files_test::write_text_file(folder / "text.txt", text);
  options.data = folder / "text.txt";
  CHECK(run(options).report.evaluation->loss > 0);

  std::vector<std::uint16_t> tokens;
  for (std::size_t i = 0; i < 2000; ++i) tokens.push_back(static_cast<std::uint16_t>(i * 7 % 60));
  data::write_tokens(folder / "x_train_0.bin", tokens);
  options.data = folder / "x_train_0.bin";
  CHECK(run(options).report.evaluation->loss > 0);
  options.data = folder.path();  // no *val*.bin yet
  CHECK(contains(refusal(options), "val"));
  data::write_tokens(folder / "x_val_0.bin", tokens);
  CHECK(run(options).report.evaluation->loss > 0);
  // The tokens of 16 or 32 bits in NumPy's format train equally.
  const double as_bin = run(options).report.loss_last;
  for (const auto& [name, dtype, bytes] : {std::tuple{"<u2", 2, 2}, std::tuple{"<i4", 4, 4}, std::tuple{"<u4", 4, 4}}) {
    for (const char* const part : {"train", "val"}) {
      std::string header = "{'descr': '" + std::string(name) + "', 'fortran_order': False, 'shape': (2000,), }";
      header += std::string(117 - header.size(), ' ') + "\n";
      std::string file = std::string("\x93NUMPY\x01\0\x76\0", 10) + header;
      for (const std::uint16_t token : tokens) file += files_test::little(token, bytes);
      std::filesystem::remove(folder / ("x_" + std::string(part) + "_0.bin"));
      files_test::write_text_file(folder / ("x_" + std::string(part) + "_0.npy"), file);
    }
    INFO(name << " " << dtype);
    CHECK(run(options).report.loss_last == as_bin);
  }
  for (const char* const part : {"train", "val"}) {
    std::filesystem::remove(folder / ("x_" + std::string(part) + "_0.npy"));
    data::write_tokens(folder / ("x_" + std::string(part) + "_0.bin"), tokens);
  }
  tokens[5] = 65;  // one beyond the model's default vocabulary
  data::write_tokens(folder / "x_val_0.bin", tokens);
  CHECK(contains(refusal(options), "65"));
  CHECK(contains(refusal(options), "vocabulary"));
}

TEST_CASE("program: images of every kind, and a head as wide as their classes") {
  using namespace program_data_test;
  const TemporaryFolder folder;
  RunOptions images = tiny("mlp");
  const auto idx = [](std::vector<unsigned> sizes, std::size_t values) {
    std::string file{'\0', '\0', '\x08', static_cast<char>(sizes.size())};
    for (const unsigned n : sizes)
      for (const int shift : {24, 16, 8, 0}) file += static_cast<char>(n >> shift & 255);
    for (std::size_t i = 0; i < values; ++i) file += static_cast<char>(i * 31 % 10);
    return file;
  };
  files_test::write_text_file(folder / "t10k-images-idx3-ubyte", idx({20, 9, 9}, 20 * 81));
  files_test::write_text_file(folder / "t10k-labels-idx1-ubyte", idx({20}, 20));
  for (const std::string& path : {folder.path(), folder / "t10k-images-idx3-ubyte"}) {
    images.data = path;
    const Run r = run(images);
    CHECK(r.report.parameters == 81 * 8 + 8 + 8 * 8 + 8 + 8 * 10 + 10);
    CHECK(r.report.evaluation->accuracy.has_value());
  }
  images.setup.sizes.image = 12;
  CHECK(contains(refusal(images), "12"));
  CHECK(contains(refusal(images), "9"));

  // The head fits the labels: EMNIST's letters are 1 to 26, in files with different names.
  images.setup.sizes.image = 0;
  const TemporaryFolder letters, hundred;
  const auto pixels = idx({20, 9, 9}, 20 * 81);
  for (const auto& [part, largest] : {std::pair{"train", 25}, std::pair{"test", 26}}) {
    std::string labels = idx({20}, 20);
    labels.back() = static_cast<char>(largest);
    files_test::write_text_file(letters / ("emnist-letters-" + std::string(part) + "-images-idx3-ubyte"), pixels);
    files_test::write_text_file(letters / ("emnist-letters-" + std::string(part) + "-labels-idx1-ubyte"), labels);
  }
  images.data = letters.path();
  CHECK(run(images).report.parameters == 81 * 8 + 8 + 8 * 8 + 8 + 8 * 27 + 27);
  images.data = letters / "emnist-letters-train-images-idx3-ubyte";
  CHECK(run(images).report.parameters == 81 * 8 + 8 + 8 * 8 + 8 + 8 * 26 + 26);
  files_test::write_text_file(letters / "train-images-idx3-ubyte", pixels);
  files_test::write_text_file(letters / "train-labels-idx1-ubyte", idx({20}, 20));
  images.data = letters.path();
  CHECK(contains(refusal(images), "several sets of images: emnist-letters-train and train"));

  std::string records(8 * 3074, '\7');
  images.data = hundred.path();
  CHECK(contains(refusal(images), "train.bin of CIFAR-100"));
  files_test::write_text_file(hundred / "train.bin", records);
  const std::int64_t head = 3072 * 8 + 8 + 8 * 8 + 8 + 8 * 100 + 100;
  CHECK(run(images).report.parameters == head);
  files_test::write_text_file(hundred / "test.bin", records);
  CHECK(run(images).report.parameters == head);
  files_test::write_text_file(hundred / "eight", records);  // known by its size
  for (const char* const name : {"test.bin", "eight"}) {
    images.data = hundred / name;
    CHECK(run(images).report.parameters == head);
  }
}

TEST_CASE("program: a validation part that is no whole batch weighs by its samples, in micro-batches, too") {
  using namespace program_data_test;
  std::vector<double> losses;
  for (const std::int64_t parts : {1, 3}) {
    RunOptions options;
    options.setup.model = "mlp", options.setup.batch = 60, options.setup.micro_batches = parts;
    options.data = "synthetic", options.steps = 1, options.eval_batches = 0;
    losses.push_back(run(options).report.evaluation->loss);
  }
  CHECK(losses[0] == Approx(losses[1]).epsilon(1e-6));
}
