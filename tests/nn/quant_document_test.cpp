// The code of docs/int8.md, word for word (tests/house keeps them equal): making and loading nets in 8 bits.

#include <sstream>
#include <string>
#include <vector>

#include <thimble/core/tensor/context.h>
#include <thimble/models/model.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/quant/error_report.h>
#include <thimble/nn/quant/weight_only.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/quant_nets.h"

namespace quant_document_test {

using namespace thimble;
namespace quant = nn::quant;

Tensor batch(std::int64_t i) { return quant_nets::images({4, 16, 16, 3}, static_cast<unsigned>(20 + i)); }

}  // namespace quant_document_test

using namespace quant_document_test;

TEST_CASE("int8 document: a net of convolutions is made, saved and loaded", "[quant]") {
  const files_test::TemporaryFolder folder;
  const std::string path = folder / "net.i8";
  const auto model = models::make_model("resnet18", {.image = 16, .channels = 3, .width = 8});
  model->eval();
  const Tensor images = batch(0);
  std::vector<float> saved;
  std::ostringstream report;
  {
    quant::FoldedNet net(
        *model, [&](const Tensor& x) { return model->forward(x); }, batch(0));
    const quant::Scales scales = quant::calibrate(net, 4, [&](std::int64_t i) { return batch(i); });
    quant::QuantizedModel quantized(net, scales);
    Tensor scores = quantized(images);  // f32 in, f32 out
    for (const quant::StepError& e : quant::compare(net, quantized, images)) {
      report << e.name << ": " << e.signal_to_noise_db << " dB, cosine " << e.cosine << "\n";
    }
    quantized.save(path);
    saved = to_host<float>(scores);
  }
  auto net = quant::QuantizedModel::load(path);
  Tensor scores = (*net)(images);  // (N, H, W, C) -> (N, classes)
  CHECK(to_host<float>(scores) == saved);
  CHECK(report.str().starts_with("input: "));
}

TEST_CASE("int8 document: a Q8_0 file is loaded", "[quant]") {
  const files_test::TemporaryFolder folder;
  const std::string path = folder / "gpt.q8";
  const models::ModelOptions sizes{.vocabulary = 50, .sequence = 16, .layers = 2, .heads = 2, .width = 64};
  const Tensor ids = zeros({2, 16}, DType::i64);
  std::vector<float> saved;
  std::vector<quant::StepError> errors;
  {
    const auto exact = models::make_model("char-gpt", sizes), model = models::make_model("char-gpt", sizes);
    nn::save_weights(*exact, folder / "gpt");
    nn::load_weights(*model, folder / "gpt");
    quant::quantize_linear_weights(*model);
    errors = quant::compare_weights(*exact, *model);
    nn::save_weights(*model, path);
    model->eval();
    const NoGrad off;
    saved = to_host<float>(model->forward(ids));

    // 8-bit codes of normally distributed numbers: about 45 dB in blocks of 32.
    REQUIRE(errors.size() == 8);
    for (const quant::StepError& e : errors) {
      INFO(e.name);
      CHECK(e.signal_to_noise_db > 40);
      CHECK(e.signal_to_noise_db < 55);
      CHECK(e.cosine > 0.9999);
    }
    CHECK(errors[0].name == "gpt.h.0.attn.c_attn");
    CHECK_THROWS_AS(quant::compare_weights(*model, *model), ValueError);
    CHECK(quant::compare_weights(*model, *exact).empty());
  }
  auto model = models::make_model("char-gpt", sizes);  // as it was made when it was trained
  quant::quantize_linear_weights(*model);              // room for the file's blocks
  nn::load_weights(*model, path);
  model->eval();
  const NoGrad off;                     // blocks have no gradient
  Tensor logits = model->forward(ids);  // (batch, sequence, vocabulary)
  CHECK(to_host<float>(logits) == saved);
}
