#pragma once
// Text as a model's tokens: its characters, or what a tokenizer makes of it.

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
  /// Neither: tokens are numbers.
  TokenText() = default;
  explicit TokenText(data::CharVocabulary characters) : characters_(std::move(characters)) {}
  /// Null as above.
  explicit TokenText(std::shared_ptr<const data::Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {}

  const std::optional<data::CharVocabulary>& characters() const noexcept { return characters_; }
  const std::shared_ptr<const data::Tokenizer>& tokenizer() const noexcept { return tokenizer_; }

  /// Throws ValueError for a byte that is none of the characters, and where tokens are numbers.
  std::vector<std::int64_t> encode(std::string_view text) const;
  /// A token that the tokenizer has not, as a model may have rows beyond it, is U+FFFD; numbers have
  /// spaces between.
  std::string decode(const std::vector<std::int64_t>& tokens) const;

  /// The characters, as a checkpoint keeps them; empty: there are none.
  std::string symbols() const { return characters_ ? characters_->symbols() : std::string(); }
  /// What tells the tokenizer from others: how many tokens it has, and a checksum; empty: there is none.
  std::string tokenizer_sum() const;

 private:
  std::optional<data::CharVocabulary> characters_;
  std::shared_ptr<const data::Tokenizer> tokenizer_;
};

/// The symbols of CharVocabulary in hexadecimal digits, as files keep them: characters may be any bytes, and metadata
/// are text.
std::string to_hexadecimal(std::string_view symbols);
/// The same back. Throws ValueError for what to_hexadecimal does not write.
std::string from_hexadecimal(std::string_view digits);

// ---- What open_dataset opens.

/// For models over tokens.
std::unique_ptr<Dataset> open_text(const std::string& path, std::string_view model, bool is_masked, std::uint64_t seed,
                                   const std::string& tokenizer);

/// For models over images.
std::unique_ptr<Dataset> open_images(const std::string& path, const ModelOptions& model_sizes, std::uint64_t seed);

}  // namespace thimble::models
