#include <thimble/models/theory/textbook.h>

#include <thimble/models/bert/theory.h>
#include <thimble/models/googlenet/theory.h>
#include <thimble/models/gpt/theory.h>
#include <thimble/models/resnet/theory.h>
#include <thimble/models/sharedconv/theory.h>
#include <thimble/models/vit/theory.h>

namespace thimble::models::theory {

std::optional<std::int64_t> textbook_bytes(std::string_view model, const ModelOptions& options, std::int64_t moments,
                                           DType dtype, std::int64_t batch) {
  ModelOptions sizes = options;
  sizes.build = Build::textbook;
  const auto held = [](const ModelState& state, std::int64_t kept) {
    return state.parameters + state.buffers + state.optimizer + kept;
  };
  const auto both = [](auto&& bytes_of_category) {
    return bytes_of_category(Category::activation) + bytes_of_category(Category::input);
  };
  if (model.starts_with("resnet")) {
    const auto terms = resnet_kept(model, sizes, dtype);
    return held(resnet_state(model, sizes, moments, dtype),
                both([&](Category c) { return bytes_of(terms, c, batch); }));
  }
  if (model == "sharedconv") {
    const auto terms = sharedconv_kept(sizes, dtype);
    return held(sharedconv_state(sizes, moments, dtype), both([&](Category c) { return bytes_of(terms, c, batch); }));
  }
  if (model == "googlenet") {
    return held(googlenet_state(sizes, moments, dtype),
                both([&](Category c) { return googlenet_kept_bytes(sizes, dtype, c, batch); }));
  }
  if (model == "char-gpt" || model.starts_with("gpt")) {
    return held(gpt_state(model, sizes, moments, dtype),
                both([&](Category c) { return gpt_kept_bytes(model, sizes, dtype, c, batch); }));
  }
  if (model.starts_with("bert")) {
    return held(bert_state(model, sizes, moments, dtype),
                both([&](Category c) { return bert_kept_bytes(model, sizes, dtype, c, batch); }));
  }
  if (model.starts_with("vit")) {
    return held(vit_state(model, sizes, moments, dtype),
                both([&](Category c) { return vit_kept_bytes(model, sizes, dtype, c, batch); }));
  }
  return std::nullopt;
}

}  // namespace thimble::models::theory
