#include <thimble/models/images.h>

#include <string>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/memory/units.h>
#include <thimble/models/transformer/transformer.h>

namespace thimble::models {

void require_image_options(std::string_view name, const ModelOptions& options, std::int64_t smallest) {
  const auto refuse = [&](const char* option, const std::string& value, const char* models) {
    throw ValueError(std::string(name) + ": " + option + " " + value + ": not an option of this model, but of " +
                     models);
  };
  constexpr const char *text = "models over text", *text_and_vit = "models over text and vit-*";
  if (options.vocabulary > 0) refuse("vocabulary", std::to_string(options.vocabulary), text);
  if (options.sequence > 0) refuse("`sequence`", std::to_string(options.sequence), text);
  if (options.heads > 0) refuse("`heads`", std::to_string(options.heads), text_and_vit);
  if (options.key_heads > 0) refuse("`key_heads`", std::to_string(options.key_heads), models_with_key_heads);
  if (options.hidden > 0) refuse("`hidden`", std::to_string(options.hidden), models_with_key_heads);
  if (options.window > 0) refuse("`window`", std::to_string(options.window), text);
  if (options.dropout > 0) refuse("`dropout`", format_real(options.dropout), "models over text, googlenet and vit-*");
  if (options.feed_forward == FeedForward::tiled) refuse("`feed_forward`", "tiled", text_and_vit);
  if (!options.shares_kernels) {
    throw ValueError(std::string(name) +
                     ": `shares_kernels` off: its convolutions share no kernels, so there is nothing to turn off");
  }
  if (options.image > 0 && options.image < smallest) {
    throw ValueError(std::string(name) + ": `image` " + std::to_string(options.image) + ": at least " +
                     std::to_string(smallest) + " pixels are needed");
  }
}

Batch empty_image_batch(const ModelOptions& options, std::int64_t samples, DType dtype, memory::Device device) {
  if (samples < 1) throw ValueError("empty_batch: " + std::to_string(samples) + " samples; at least 1");
  const Shape images{samples, options.image, options.image, options.channels};
  return {zeros(images, dtype, device, memory::Category::input),
          zeros({samples}, DType::i64, device, memory::Category::input)};
}

}  // namespace thimble::models
