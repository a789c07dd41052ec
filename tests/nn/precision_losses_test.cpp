// The cost of precision policies for a GPT on tinyshakespeare, as in docs/precision.md. The long runs, minutes of one
// core, are hidden ([.precision]). THIMBLE_DATA names the folder of data sets.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <thimble/core/threads/parallel.h>
#include <thimble/models/training/training.h>

#include "support/catch.h"
#include "support/kernel_data.h"
#include "support/skip.h"
#include "support/trained.h"

namespace {

using namespace thimble;

/// The path of the text; empty if there is none.
std::string text() {
  const char* const data = std::getenv("THIMBLE_DATA");
  const std::string path = data == nullptr ? "" : std::string(data) + "/tinyshakespeare/input.txt";
  if (!path.empty() && std::filesystem::exists(path)) return path;
  thimble_test::skip("THIMBLE_DATA names no folder with tinyshakespeare");
  return {};
}

/// The document's command: 500 steps, always with the same seed and batches.
models::RunOptions training(const std::string& data, const std::string& precision, const std::string& optimizer) {
  models::RunOptions options;
  options.data = data;
  options.setup.model = "char-gpt";
  options.setup.sizes.layers = 4, options.setup.sizes.heads = 4, options.setup.sizes.width = 128;
  options.setup.sizes.sequence = 64;
  options.setup.batch = 12;
  options.steps = 500;
  options.schedule = "cosine";
  options.warmup = 50;
  options.eval_batches = 64;
  options.setup.optimizer.name = optimizer;
  models::set_precision(options.setup, precision);
  return options;
}

double loss_of(const models::RunOptions& options) {
  const trained_test::Run run = trained_test::run(options);
  CHECK(run.report.predicted_peak_bytes == run.report.measured_peak_bytes);
  return run.report.evaluation->loss;
}

}  // namespace

TEST_CASE("precision: a short training stays near f32", "[precision]") {
  const std::string data = "synthetic";
  const kernel_test::Settings settings;
  set_thread_count(1);
  const auto loss = [&](const char* precision, const char* optimizer) {
    models::RunOptions options = training(data, precision, optimizer);
    options.setup.sizes.layers = 2, options.setup.sizes.width = 64, options.setup.sizes.sequence = 32;
    options.steps = 60, options.warmup = 6, options.eval_batches = 8;
    return loss_of(options);
  };
  const double exact = loss("O0", "adamw");
  CHECK(exact < 3.5);  // guessing is 4.01
  for (const char* const precision : {"O2", "bf16", "fp8", "fp8-block"}) {
    INFO(precision);
    CHECK(std::fabs(loss(precision, "adamw") / exact - 1) < 0.05);
  }
  CHECK(std::fabs(loss("O0", "adamw8") / exact - 1) < 0.05);
}

TEST_CASE("precision: 500 steps end within a percent of f32, 8-bit AdamW within half of one", "[.precision]") {
  const std::string data = text();
  if (data.empty()) return;
  const kernel_test::Settings settings;
  set_thread_count(1);
  const double exact = loss_of(training(data, "O0", "adamw"));
  struct Row {
    const char *precision, *optimizer;
    double most;
  };
  for (const Row& row :
       {Row{"O2", "adamw", 0.01}, Row{"bf16", "adamw", 0.01}, Row{"fp8", "adamw", 0.01},
        Row{"fp8-current", "adamw", 0.01}, Row{"fp8-block", "adamw", 0.01}, Row{"O0", "adamw8", 0.005}}) {
    const double loss = loss_of(training(data, row.precision, row.optimizer)), away = loss / exact - 1;
    std::printf("%-12s %-7s %.4f beside %.4f: %+.2f %%\n", row.precision, row.optimizer, loss, exact, 100 * away);
    INFO(row.precision << ", " << row.optimizer);
    CHECK(std::fabs(away) <= row.most);
  }
}
