#include <thimble/models/datasets/token_text.h>

#include <span>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/crc32c.h>
#include <thimble/memory/units.h>
#include <thimble/models/datasets/dataset.h>
#include <thimble/nn/tokens/tokenizer_file.h>

namespace thimble::models {
namespace token_text_detail {

constexpr std::string_view hexadecimal_digits = "0123456789abcdef";

}  // namespace token_text_detail

std::vector<std::int64_t> TokenText::encode(std::string_view text) const {
  if (characters_) {
    const std::vector<std::uint8_t> tokens = characters_->encode(text);
    return {tokens.begin(), tokens.end()};
  }
  if (!tokenizer_) throw ValueError("text: there are neither characters nor a tokenizer to read it by");
  const std::vector<std::uint32_t> tokens = tokenizer_->encode(text);
  return {tokens.begin(), tokens.end()};
}

std::string TokenText::decode(const std::vector<std::int64_t>& tokens) const {
  if (characters_) return characters_->decode(std::vector<std::uint8_t>(tokens.begin(), tokens.end()));
  std::string text;
  for (const std::int64_t token : tokens) {
    if (!tokenizer_) {
      text += (text.empty() ? "" : " ") + std::to_string(token);
      continue;
    }
    const auto id = static_cast<std::uint32_t>(token);
    text += token < tokenizer_->size() ? tokenizer_->decode({&id, 1}) : "\uFFFD";
  }
  return text;
}

std::string TokenText::tokenizer_sum() const {
  if (!tokenizer_) return {};
  const std::string file = data::format_tokenizer(tokenizer_->parts());
  return format_grouped(tokenizer_->size()) + " tokens, " + sum_text(crc32c(std::as_bytes(std::span(file))));
}

std::string to_hexadecimal(std::string_view symbols) {
  std::string text;
  for (const char c : symbols) {
    const auto byte = static_cast<unsigned char>(c);
    text += {token_text_detail::hexadecimal_digits[byte >> 4], token_text_detail::hexadecimal_digits[byte & 15]};
  }
  return text;
}

std::string from_hexadecimal(std::string_view digits) {
  std::string symbols;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    const std::size_t high = token_text_detail::hexadecimal_digits.find(digits[i]);
    const std::size_t low = token_text_detail::hexadecimal_digits.find(i + 1 < digits.size() ? digits[i + 1] : ' ');
    if (high == std::string_view::npos || low == std::string_view::npos) {
      throw ValueError("characters: " + quote(digits) + " are not pairs of hexadecimal digits");
    }
    symbols += static_cast<char>(high << 4 | low);
  }
  return symbols;
}

}  // namespace thimble::models
