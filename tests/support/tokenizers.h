#pragma once
// Tokenizers of a given size for tests.

#include <string>
#include <string_view>
#include <vector>

#include <thimble/nn/tokens/tokenizer.h>

namespace tokenizer_test {

/// A byte as its letter, in UTF-8.
inline std::string letter_text(int byte) {
  std::string text;
  thimble::data::append_character(text, thimble::data::letter_of(static_cast<std::uint8_t>(byte)));
  return text;
}

/// `size` tokens, at most 697: special ones, the bytes, then pairs over a space and English letters.
inline thimble::data::Tokenizer letter_pairs(std::size_t size,
                                             thimble::data::WordPattern pattern = thimble::data::WordPattern::gpt2,
                                             const std::vector<std::string>& special = {}) {
  thimble::data::TokenizerParts parts;
  parts.pattern = pattern;
  parts.vocabulary = special;
  for (std::uint32_t id = 0; id < special.size(); ++id) {
    parts.added.push_back({.id = id, .content = special[id], .is_special = true});
  }
  const auto first = static_cast<std::uint32_t>(special.size());
  for (int byte = 0; byte < 256; ++byte) parts.vocabulary.push_back(letter_text(byte));
  constexpr std::string_view letters = " etaoinshrdlcumwfgypb";
  for (std::size_t i = 0; parts.vocabulary.size() < size; ++i) {
    const auto left = first + static_cast<std::uint32_t>(letters.at(i / letters.size()));
    const auto right = first + static_cast<std::uint32_t>(letters[i % letters.size()]);
    parts.merges.push_back({left, right, static_cast<std::uint32_t>(parts.vocabulary.size())});
    parts.vocabulary.push_back(parts.vocabulary[left] + parts.vocabulary[right]);
  }
  return thimble::data::Tokenizer(std::move(parts));
}

}  // namespace tokenizer_test
