// The command `thimble train --device cuda`: on a GPU if there is one; in a build without CUDA on tests/emulated.

#include <thimble/core/error.h>
#include <thimble/models/training/training.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/operator_table.h"
#include "support/trained.h"

using namespace thimble;
using files_test::TemporaryFolder;
using thimble::testing::has_cuda;
using trained_test::run;
using trained_test::Run;

namespace {

models::RunOptions tiny(const char* model, memory::Device device) {
  models::RunOptions options;
  options.setup.model = model;
  options.setup.batch = 2;
  options.setup.sizes.layers = 2, options.setup.sizes.heads = 2, options.setup.sizes.width = 16;
  options.setup.sizes.sequence = 16;
  options.data = "synthetic";
  options.steps = 4;
  options.eval_batches = 2;
  options.device = device;
  return options;
}

}  // namespace

TEST_CASE("cuda train: losses near the CPU's, predicted bytes, a checkpoint that goes on anywhere", "[cuda]") {
  if (!has_cuda()) return;
  const TemporaryFolder folder;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    INFO(to_string(dtype));
    models::RunOptions here = tiny("char-gpt", cpu), there = tiny("char-gpt", cuda());
    here.setup.precision.dtype = there.setup.precision.dtype = dtype;
    const Run expected = run(here);
    there.save = folder / "half.safetensors";
    there.save_every = 2;
    const Run got = run(there);
    CHECK(got.report.predicted_peak_bytes == got.report.measured_peak_bytes);
    REQUIRE(got.losses.size() == expected.losses.size());
    const double tolerance = dtype == DType::f32 ? 1e-4 : 3e-2;
    for (std::size_t i = 0; i < got.losses.size(); ++i) {
      CHECK(got.losses[i] == Approx(expected.losses[i]).epsilon(tolerance));
    }
    CHECK(got.report.evaluation->loss == Approx(expected.report.evaluation->loss).epsilon(tolerance));
    CHECK(run(there).losses == got.losses);  // the same bits again

    // A run cut in two, the first half on the GPU, equals the run on the GPU.
    models::RunOptions first = there, second = tiny("char-gpt", cuda());
    first.steps = 2;
    first.warmup = second.warmup = 0;
    second.setup.precision.dtype = dtype;
    run(first);
    second.resume = first.save;
    const Run rest = run(second);
    REQUIRE(rest.losses.size() == 2);
    CHECK(rest.losses[1] == got.losses[3]);
    second.device = cpu;
    CHECK(run(second).losses[1] == Approx(got.losses[3]).epsilon(tolerance));
  }
}

TEST_CASE("cuda train: blocks in parts write and read files of whole layers", "[cuda]") {
  if (!has_cuda()) return;
  const TemporaryFolder folder;
  models::RunOptions whole = tiny("char-gpt", cuda());
  whole.setup.layout.tp = 2;
  models::RunOptions first = whole, second = whole;
  first.steps = 2;
  first.save = folder / "half", first.save_weights = folder / "weights";
  whole.save = folder / "whole", second.save = folder / "rest";
  second.resume = first.save;
  const Run half = run(first);
  CHECK(half.report.predicted_peak_bytes == half.report.measured_peak_bytes);
  run(whole);
  const Run rest = run(second);
  CHECK(rest.report.predicted_peak_bytes == rest.report.measured_peak_bytes);
  CHECK((files_test::read_text_file(whole.save) == files_test::read_text_file(second.save)));
  models::RunOptions here = tiny("char-gpt", cpu);
  here.resume = first.save;
  CHECK(run(here).losses.size() == 2);
}

TEST_CASE("cuda train: a budget is kept, with the same losses", "[cuda][slow]") {
  if (!has_cuda()) return;
  models::RunOptions options = tiny("char-gpt", cuda());
  options.setup.sizes.layers = 4, options.setup.sizes.width = 48, options.setup.sizes.sequence = 64;
  options.setup.batch = 4;
  options.steps = 2;
  options.eval_batches = 1;
  const Run free = run(options);
  options.budget_bytes = free.report.measured_peak_bytes - (std::size_t{2} << 20);
  const Run planned = run(options);
  CHECK(planned.report.measured_peak_bytes <= options.budget_bytes);
  CHECK(planned.report.predicted_peak_bytes == planned.report.measured_peak_bytes);
  CHECK(planned.losses == free.losses);
}
