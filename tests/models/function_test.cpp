// A model's function beyond its sizes: as text in files, and refused where a family has none.

#include <vector>

#include <thimble/core/error.h>
#include <thimble/models/model.h>

#include "support/catch.h"

using namespace thimble;
using namespace thimble::models;

TEST_CASE("function: it is written as text and read again", "[models][config][quick]") {
  const ModelFunction own = complete_options("qwen2.5-7b").function;
  std::vector<ModelFunction> others(8, own);
  others[0].epsilon = 0.1;
  others[1].rotary->theta = 1.0 / 3;
  others[2].rotary->scaling = RotaryScaling{7.3, 0.2, 5, 77, RotaryKind::llama3};
  others[3].rotary->scaling = RotaryScaling{7.3, 1, 4, 8192, RotaryKind::linear};
  others[4].rotary->scaling = RotaryScaling{7.3, 1, 4, 99, RotaryKind::dynamic};
  others[5].rotary->scaling = RotaryScaling{7.3, 2, 9, 99, RotaryKind::yarn, 1.25, false};
  others[6].is_tied = true, others[6].has_bias = false, others[6].positions = 3;
  for (const ModelFunction& f : others) {
    const nn::Metadata texts = function_texts(f, own);
    CHECK(texts.empty() == (f == own));
    CHECK(read_function(texts, own, "x") == f);
  }
  // And from a scaling back to none.
  const ModelFunction scaled = complete_options("llama-3.2-1b").function;
  ModelFunction plain = scaled;
  plain.rotary->scaling.reset();
  CHECK(function_texts(plain, scaled) == nn::Metadata{{"rope_scaling", "default"}});
  CHECK(read_function({{"rope_scaling", "default"}}, scaled, "x") == plain);
  CHECK_THROWS_AS(make_model("gpt2", {.function = {.is_tied = false}}, {dry(cpu)}), ValueError);
  CHECK_THROWS_AS(make_model("mlp", {.function = {.epsilon = 1e-5}}, {dry(cpu)}), ValueError);
  CHECK_THROWS_AS(make_model("bert-base", {.function = {.epsilon = 0.0}}, {dry(cpu)}), ValueError);
}
