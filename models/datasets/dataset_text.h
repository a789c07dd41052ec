#pragma once
// Text as a model's tokens, by characters or by a tokenizer.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <thimble/models/datasets/dataset.h>
#include <thimble/nn/data/text.h>

namespace thimble::data {
class Tokenizer;
}

namespace thimble::models {

class TokenText {
 public:
  /// Tokens are numbers.
  TokenText() = default;
  explicit TokenText(data::CharVocabulary characters) : characters_(std::move(characters)) {}
  /// If null, tokens are numbers.
  explicit TokenText(std::shared_ptr<const data::Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {}

  const std::optional<data::CharVocabulary>& characters() const noexcept { return characters_; }
  const std::shared_ptr<const data::Tokenizer>& tokenizer() const noexcept { return tokenizer_; }

  /// Throws ValueError for a byte that is none of the characters, and if tokens are numbers.
  std::vector<std::int64_t> encode(std::string_view text) const;
  /// Tokens beyond the tokenizer, which a model may have, become U+FFFD; numbers are separated by spaces.
  std::string decode(const std::vector<std::int64_t>& tokens) const;

  /// The characters, which checkpoints keep, or empty.
  std::string symbols() const { return characters_ ? characters_->symbols() : std::string(); }
  /// Identifies the tokenizer by its number of tokens and a checksum, or empty.
  std::string tokenizer_sum() const;

 private:
  std::optional<data::CharVocabulary> characters_;
  std::shared_ptr<const data::Tokenizer> tokenizer_;
};

/// The symbols of CharVocabulary in hexadecimal digits for files: characters may be any bytes, but metadata is text.
std::string to_hexadecimal(std::string_view symbols);
/// The inverse. Throws ValueError for a text that to_hexadecimal does not write.
std::string from_hexadecimal(std::string_view digits);

// ---- The two cases of open_dataset.

/// For models over tokens.
std::unique_ptr<Dataset> open_text(const std::string& path, std::string_view model, bool is_masked, std::uint64_t seed,
                                   const std::string& tokenizer);

/// For models over images.
std::unique_ptr<Dataset> open_images(const std::string& path, const ModelOptions& model_sizes, std::uint64_t seed);

}  // namespace thimble::models
