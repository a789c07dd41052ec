// FP8 training on a CUDA device: on a GPU where there is one, in a build without CUDA on the host's emulation.

#include <thimble/models/training/training.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/operator_table.h"
#include "support/trained.h"

using namespace thimble;
using files_test::read_text_file;
using files_test::TemporaryFolder;
using thimble::testing::has_cuda;
using trained_test::run;
using trained_test::Run;

namespace cuda_fp8_train_test {

models::TrainOptions tiny(const char* precision, memory::Device device) {
  models::TrainOptions options;
  options.setup.model = "char-gpt";
  options.setup.batch = 2;
  options.setup.sizes.layers = 2, options.setup.sizes.heads = 2, options.setup.sizes.width = 16;
  options.setup.sizes.sequence = 12;
  models::set_precision(options.setup, precision);
  options.data = "synthetic";
  options.steps = 4;
  options.eval_batches = 1;
  options.warmup = 0;
  options.device = device;
  return options;
}

}  // namespace cuda_fp8_train_test

using namespace cuda_fp8_train_test;

TEST_CASE("cuda fp8 train: losses near the CPU's, predicted bytes, a run that is cut goes on bit by bit",
          "[cuda][fp8]") {
  if (!has_cuda()) return;
  const TemporaryFolder folder;
  for (const char* precision : {"fp8", "fp8-current", "fp8-block"}) {
    INFO(precision);
    const Run expected = run(tiny(precision, cpu));
    models::TrainOptions whole = tiny(precision, cuda());
    whole.save = folder / "whole";
    const Run got = run(whole);
    CHECK(got.report.predicted_peak_bytes == got.report.measured_peak_bytes);
    REQUIRE(got.losses.size() == expected.losses.size());
    for (std::size_t i = 0; i < got.losses.size(); ++i) {
      CHECK(got.losses[i] == Approx(expected.losses[i]).epsilon(2e-2));
    }
    CHECK(got.report.evaluation->loss == Approx(expected.report.evaluation->loss).epsilon(2e-2));

    models::TrainOptions first = tiny(precision, cuda()), second = tiny(precision, cuda());
    first.steps = 2;
    first.save = folder / "half";
    run(first);
    second.resume = first.save;
    second.save = folder / "rest";
    const Run rest = run(second);
    REQUIRE(rest.losses.size() == 2);
    CHECK(rest.losses[1] == got.losses[3]);
    CHECK(read_text_file(second.save) == read_text_file(whole.save));  // parameters, moments, the state of scaling

    // Steps that are recorded: the number of the step, by which amax are recorded, changes from replay to replay.
    models::TrainOptions recorded = tiny(precision, cuda());
    recorded.captures_steps = true;
    recorded.save = folder / "recorded";
    const Run replayed = run(recorded);
    CHECK(replayed.report.captured_launches > 0);
    CHECK(replayed.losses == got.losses);
    CHECK(read_text_file(recorded.save) == read_text_file(whole.save));
    CHECK(replayed.report.predicted_peak_bytes == replayed.report.measured_peak_bytes);
  }
}

TEST_CASE("cuda fp8 train: a budget is kept by recomputation, with the same losses", "[cuda][fp8][slow]") {
  if (!has_cuda()) return;
  for (const char* precision : {"fp8", "fp8-block"}) {
    INFO(precision);
    models::TrainOptions options = tiny(precision, cuda());
    options.setup.sizes.layers = 6, options.setup.sizes.width = 32, options.setup.sizes.sequence = 128;
    options.setup.batch = 4;
    options.steps = 2;
    const Run free = run(options);
    options.budget_bytes = free.report.measured_peak_bytes - (std::size_t{2} << 20);
    const Run planned = run(options);
    CHECK(planned.report.measured_peak_bytes <= options.budget_bytes);
    CHECK(planned.report.predicted_peak_bytes == planned.report.measured_peak_bytes);
    CHECK(planned.losses == free.losses);
  }
}
