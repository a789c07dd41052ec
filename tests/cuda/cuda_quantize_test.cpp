// What `thimble quantize --device cuda` does: on a GPU where there is one, in a build without CUDA on the host's
// emulation.

#include <thimble/core/error.h>
#include <thimble/models/training/quantizing.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/quant/quantized_model.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/operator_table.h"

using namespace thimble;
using thimble::testing::has_cuda;

namespace cuda_quantize_test {

models::QuantizeOptions options_for(const std::string& name, const models::ModelOptions& sizes,
                                    const std::string& weights) {
  models::QuantizeOptions o;
  o.setup.model = name;
  o.setup.sizes = sizes;
  o.setup.batch = 2;
  o.data = "synthetic";
  o.weights = weights;
  o.calibration_batches = 1;
  o.eval_batches = 1;
  nn::save_weights(*models::make_model(name, sizes), weights);
  return o;
}

}  // namespace cuda_quantize_test

TEST_CASE("cuda quantize: a net of convolutions, with the CPU's figures and a file for both", "[cuda][quant]") {
  if (!has_cuda()) return;
  const files_test::TemporaryFolder folder;
  const models::ModelOptions sizes{.image = 16, .channels = 3, .classes = 10, .width = 8};
  auto options = cuda_quantize_test::options_for("resnet18", sizes, folder / "f32");
  options.save = folder / "here";
  const models::QuantizeReport here = models::quantize(options);
  options.device = cuda();
  options.save = folder / "there";
  const models::QuantizeReport there = models::quantize(options);
  CHECK(there.predicted_peak_bytes > 0);
  CHECK(there.predicted_peak_bytes == there.measured_peak_bytes);
  CHECK(there.loss_f32 == Approx(here.loss_f32).epsilon(1e-4));
  CHECK(there.loss_int8 == Approx(here.loss_int8).epsilon(1e-2));
  CHECK(there.f32_weight_bytes == here.f32_weight_bytes);
  CHECK(there.int8_file_bytes == here.int8_file_bytes);
  CHECK(there.ms_int8 > 0);
  REQUIRE(there.layers.size() == here.layers.size());
  for (std::size_t i = 0; i < here.layers.size(); ++i) {
    INFO(here.layers[i].name);
    CHECK(there.layers[i].name == here.layers[i].name);
    CHECK(there.layers[i].cosine == Approx(here.layers[i].cosine).margin(2e-3));
  }
  // A device's packed weights have a layout of their own; one file serves all.
  CHECK(nn::quant::QuantizedModel::load(folder / "there", cpu)->weight_bytes() == here.int8_weight_bytes);
  CHECK(nn::quant::QuantizedModel::load(folder / "here", cuda())->weight_bytes() == there.int8_weight_bytes);
}

TEST_CASE("cuda quantize: blocks for the linear layers of a model over text", "[cuda][quant]") {
  if (!has_cuda()) return;
  const files_test::TemporaryFolder folder;
  const models::ModelOptions sizes{.vocabulary = 55, .sequence = 8, .layers = 1, .heads = 2, .width = 32};
  auto options = cuda_quantize_test::options_for("gpt2", sizes, folder / "f32");
  options.save = folder / "here";
  const models::QuantizeReport here = models::quantize(options);
  options.device = cuda();
  options.save = folder / "there";
  const models::QuantizeReport there = models::quantize(options);
  CHECK(there.scheme == "q8_0");
  CHECK(there.loss_f32 == Approx(here.loss_f32).epsilon(1e-4));
  CHECK(there.loss_int8 == Approx(here.loss_int8).epsilon(1e-4));
  CHECK(there.int8_weight_bytes == here.int8_weight_bytes);
  CHECK(files_test::read_text_file(folder / "there") == files_test::read_text_file(folder / "here"));
}
