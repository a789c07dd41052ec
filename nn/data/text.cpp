#include <thimble/nn/data/text.h>

#include <cstddef>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/file_stream.h>

namespace thimble::data {

CharVocabulary::CharVocabulary(std::string_view text) {
  if (text.empty()) throw ValueError("character vocabulary: the text is empty");
  std::array<bool, 256> is_used{};
  for (const char c : text) is_used[static_cast<unsigned char>(c)] = true;
  tokens_.fill(-1);
  for (std::size_t byte = 0; byte < is_used.size(); ++byte) {
    if (!is_used[byte]) continue;
    tokens_[byte] = static_cast<std::int16_t>(symbols_.size());
    symbols_ += static_cast<char>(byte);
  }
}

std::vector<std::uint8_t> CharVocabulary::encode(std::string_view text) const {
  std::vector<std::uint8_t> tokens(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::int16_t token = tokens_[static_cast<unsigned char>(text[i])];
    if (token < 0)
      throw ValueError("character vocabulary: byte " + quote(text.substr(i, 1)) + " at position " + std::to_string(i) +
                       "; expected the " + std::to_string(size()) + " characters " + quote(symbols_, 256));
    tokens[i] = static_cast<std::uint8_t>(token);
  }
  return tokens;
}

std::string CharVocabulary::decode(std::span<const std::uint8_t> tokens) const {
  std::string text(tokens.size(), '\0');
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= symbols_.size())
      throw ValueError("character vocabulary: token " + std::to_string(tokens[i]) + " at position " +
                       std::to_string(i) + "; expected below " + std::to_string(size()));
    text[i] = symbols_[tokens[i]];
  }
  return text;
}

TextData split_text(std::string_view text) {
  CharVocabulary vocabulary(text);
  const std::size_t train = text.size() - (text.size() + 9) / 10;  // floor(0.9 size), in integers
  return {vocabulary, vocabulary.encode(text.substr(0, train)), vocabulary.encode(text.substr(train))};
}

TextData read_text(const std::string& path) {
  const std::vector<std::byte> bytes = read_whole_file(path, std::uint64_t{1} << 32);
  if (bytes.empty()) throw FileError(path, 0, "the file is empty");
  return split_text({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace thimble::data
