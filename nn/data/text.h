#pragma once
// Text as characters: each distinct byte is a token.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace thimble::data {

/// The distinct bytes of a text in ascending order; a byte's token is its index.
class CharVocabulary {
 public:
  /// The vocabulary of `text`. Throws ValueError when it is empty.
  explicit CharVocabulary(std::string_view text);

  int size() const noexcept { return static_cast<int>(symbols_.size()); }
  /// The distinct bytes, sorted. CharVocabulary(symbols()) gives this vocabulary again, so checkpoints keep symbols().
  const std::string& symbols() const noexcept { return symbols_; }

  /// Tokens of a text. Throws ValueError naming the first byte that is not in the vocabulary and its position.
  std::vector<std::uint8_t> encode(std::string_view text) const;
  /// The text of tokens. Throws ValueError naming the first token that is not below size().
  std::string decode(std::span<const std::uint8_t> tokens) const;

 private:
  std::string symbols_;
  std::array<std::int16_t, 256> tokens_;  // by byte, -1 outside the vocabulary
};

/// A text split for training and validation.
struct TextData {
  CharVocabulary vocabulary;
  std::vector<std::uint8_t> train;       ///< the first 90 % of the tokens, rounded down
  std::vector<std::uint8_t> validation;  ///< the rest
};

/// Encodes a text with its vocabulary and splits it 90/10. Throws ValueError when it is empty.
TextData split_text(std::string_view text);

/// Reads a file and splits it. Throws FileError when it cannot be read, is empty or has more than 4 GiB.
TextData read_text(const std::string& path);

}  // namespace thimble::data
