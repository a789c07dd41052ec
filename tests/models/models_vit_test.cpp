// Vision transformers: counts, names, the class token, the two builds, training, and their memory against theory and
// between dry and real runs, as integers.

#include <cmath>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/models/vit/vit.h>

#include "support/catch.h"
#include "support/model_runs.h"

using namespace thimble;
using namespace thimble::models;
using namespace thimble::testing;

namespace {

ModelOptions tiny(Build build, double dropout = 0) {
  ModelOptions options;
  options.image = 32, options.layers = 2, options.width = 24, options.heads = 3, options.classes = 10;
  options.dropout = dropout;
  options.build = build;
  return options;
}

// Redraws the head, which starts at zero and would leave the layers before it without a gradient.
void shake_head(Model& model) {
  RandomGenerator generator(8);
  const GeneratorScope scope(generator);
  for (const nn::NamedTensor& p : model.parameters()) {
    if (p.name == "heads.head.weight") fill_normal(p.tensor, 0, 0.3);
  }
}

}  // namespace

TEST_CASE("models vit: parameter counts are the published ones", "[models][vit][quick]") {
  const struct {
    const char* name;
    std::int64_t parameters;
    std::size_t tensors;
  } rows[] = {{"vit-b16", 86567656, 152}, {"vit-l16", 304326632, 296}};
  for (const auto& row : rows) {
    INFO(row.name);
    const auto model = make_vit(row.name, {}, {dry(cpu), DType::f32});
    REQUIRE(model);
    CHECK(model->parameter_count() == row.parameters);
    CHECK(model->parameters().size() == row.tensors);
    CHECK(model->buffers().empty());
    CHECK(make_theory(row.name).state(1).parameter_elements == row.parameters);
    CHECK(make_theory(row.name).state(1).total() == row.parameters * (4 + 4 + 4));
  }
  CHECK(make_vit("vit-h14", {}, {}) == nullptr);
}

TEST_CASE("models vit: names and file shapes are torchvision's", "[models][vit][quick]") {
  const auto model = make_vit("vit-b16", {}, {dry(cpu), DType::f32});
  check_file_shapes(*model, {{"class_token", "(1, 1, 768)"},
                             {"conv_proj.weight", "(768, 3, 16, 16)"},
                             {"conv_proj.bias", "(768)"},
                             {"encoder.pos_embedding", "(1, 197, 768)"},
                             {"encoder.layers.encoder_layer_0.ln_1.weight", "(768)"},
                             {"encoder.layers.encoder_layer_0.self_attention.in_proj_weight", "(2304, 768)"},
                             {"encoder.layers.encoder_layer_7.self_attention.in_proj_bias", "(2304)"},
                             {"encoder.layers.encoder_layer_11.self_attention.out_proj.weight", "(768, 768)"},
                             {"encoder.layers.encoder_layer_0.ln_2.bias", "(768)"},
                             {"encoder.layers.encoder_layer_0.mlp.0.weight", "(3072, 768)"},
                             {"encoder.layers.encoder_layer_0.mlp.3.weight", "(768, 3072)"},
                             {"encoder.ln.weight", "(768)"},
                             {"heads.head.weight", "(1000, 768)"},
                             {"heads.head.bias", "(1000)"}});
}

TEST_CASE("models vit: fused and textbook builds agree up to rounding", "[models][vit][quick]") {
  check_builds_agree<Vit>("vit-b16", tiny, shake_head);
}

TEST_CASE("models vit: positions tell patches apart, samples do not see each other", "[models][vit][quick]") {
  const Threads alone;
  const auto model = make_seeded("vit-b16", tiny(Build::fused));
  shake_head(*model);
  model->eval();
  Batch batch = make_batch(*model, 2);
  std::vector<double> pixels = to_host<double>(batch.input);  // (2, 32, 32, 3)
  const auto scores = [&] {
    return to_host<double>(model->forward(to_dtype(from_host(pixels, {2, 32, 32, 3}), DType::f32)));
  };
  const auto before = scores();
  // Swaps the first image's upper and lower half: the patches move.
  const std::ptrdiff_t half = 16 * 32 * 3;
  std::swap_ranges(pixels.begin(), pixels.begin() + half, pixels.begin() + half);
  const auto after = scores();
  CHECK(!std::equal(before.begin(), before.begin() + 10, after.begin()));
  CHECK(std::equal(before.begin() + 10, before.end(), after.begin() + 10));
  for (const nn::NamedTensor& p : model->parameters()) {
    if (p.name == "encoder.pos_embedding") fill(p.tensor, 0);
  }
  const auto blind = scores();
  std::swap_ranges(pixels.begin(), pixels.begin() + half, pixels.begin() + half);
  const auto swapped = scores();
  CHECK(distance({blind.begin(), blind.begin() + 10}, {swapped.begin(), swapped.begin() + 10}) < 1e-5);
  CHECK_THROWS_AS(model->forward(zeros({1, 48, 32, 3})), ShapeError);
}

TEST_CASE("models vit: the loss starts at log K and falls", "[models][vit][quick]") {
  const Threads alone;
  for (const Build build : {Build::fused, Build::textbook}) {
    const auto model = make_seeded("vit-b16", tiny(build, 0.1));
    optim::AdamOptions options;
    options.rate = 3e-3;
    optim::Adam optimizer(model->trainable(), options);
    RandomGenerator generator(2);
    const GeneratorScope scope(generator);
    const auto losses = train_on(*model, optimizer, make_batch(*model, 6), 30);
    CAPTURE(losses);
    CHECK(losses.front() == Approx(std::log(10.0)).epsilon(1e-5));  // the head is zero
    CHECK(losses.back() < 0.5 * losses.front());
  }
}

TEST_CASE("models vit: theory is the ledger, to the byte", "[models][vit][theory][quick]") {
  check_theories<Vit>("vit-b16", {{2, 32, 24, 3, 2, 10}, {1, 16, 12, 1, 3, 7}, {3, 224, 768, 12, 2, 1000}});
}

TEST_CASE("models vit: dry and real steps are the same events and the same peak", "[models][vit][quick]") {
  for (const Build build : {Build::fused, Build::textbook}) check_dry_run("vit-b16", tiny(build, 0.1), 3);
}

TEST_CASE("models vit: vit-l16 is planned at full size within a second", "[models][vit][quick]") {
  check_planned_within_a_second("vit-l16", 8, 1, make_theory("vit-l16"));
}

TEST_CASE("models vit: weights are saved and loaded byte for byte", "[models][vit][quick]") {
  const Threads alone;
  check_weights_round_trip("vit-b16", tiny(Build::fused));
}

TEST_CASE("models vit: what does not fit is refused by name", "[models][vit][quick]") {
  CHECK_THROWS_AS(vit_options("vit"), ValueError);
  CHECK_THROWS_AS(vit_options("vit-b16", options_with(&ModelOptions::heads, 5)), ValueError);
  CHECK_THROWS_AS(vit_options("vit-b16", options_with(&ModelOptions::dropout, 1.0)), ValueError);
  CHECK_THROWS_AS(vit_options("vit-b16", options_with(&ModelOptions::image, 40)), ValueError);
  CHECK_THROWS_AS(vit_options("vit-b16", options_with(&ModelOptions::image, 8)), ValueError);
  CHECK_THROWS_AS(vit_options("vit-b16", options_with(&ModelOptions::vocabulary, 65)), ValueError);
  CHECK_THROWS_AS(make_theory("vit-b16").state(-1), ValueError);
  for (const auto& [image, classes] : {std::pair{32, 10}, {64, 10}, {80, 1000}, {0, 1000}}) {
    CHECK(vit_options("vit-b16", options_with(&ModelOptions::image, image)).classes == classes);
  }
}
