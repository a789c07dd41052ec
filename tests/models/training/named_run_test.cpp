// A named model trained by the lines at the top of models/training/training.h.

#include <cstdio>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <thimble/models/models.h>
#include <thimble/thimble.h>

#include "support/catch.h"
#include "support/files.h"

using namespace thimble;
using files_test::TemporaryFolder;

namespace {

struct Trained {
  std::size_t told_bytes = 0;
  models::TrainReport report, rest;
};

Trained train_by_name(const std::string& folder) {
  // begin
  models::TrainOptions options;
  options.setup.model = "char-gpt";  // models::model_list() has them all
  options.setup.sizes.width = 96;    // else the model's own
  options.data = "synthetic";        // or a path: see open_dataset
  options.steps = 6;
  options.budget_bytes = static_cast<std::size_t>(parse_size("64 MiB"));
  options.save = folder + "/run";
  options.log = folder + "/curves";
  const models::PreparedTraining prepared = models::prepare_training(options);
  std::printf("%zu bytes\n", prepared.plan.peak_bytes);  // before the first step; the arena takes as many
  const models::TrainReport report =
      models::train(prepared, [](const nn::Progress& p) { std::printf("loss %f\n", p.loss); });
  options.resume = options.save;
  options.steps = 9;
  const models::TrainReport rest = models::train(models::prepare_training(options));
  // end
  return {prepared.plan.peak_bytes, report, rest};
}

/// The lines of code between two marks, without what is before `indent`.
std::vector<std::string> code_of_test() {
  std::istringstream text(
      files_test::read_text_file((files_test::tests_folder() / "models/training/named_run_test.cpp").string()));
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
  CHECK(trained.report.time_overhead > 0);  // keeping everything is beyond the budget
  CHECK(trained.report.steps == 6);
  CHECK(trained.rest.first_step == 6);
  CHECK(trained.rest.steps == 9);
  CHECK(trained.rest.differences().empty());
  CHECK(std::filesystem::exists(folder / "run"));
  CHECK_FALSE(std::filesystem::is_empty(folder / "curves"));
  models::TrainOptions whole;
  whole.setup.model = "char-gpt";
  whole.setup.sizes.width = 96;
  whole.data = "synthetic";
  whole.steps = 9;
  const models::TrainReport report = models::train(models::prepare_training(whole));  // with everything kept
  CHECK(report.loss_last == trained.rest.loss_last);
  CHECK(report.loss_first == trained.report.loss_first);
}
