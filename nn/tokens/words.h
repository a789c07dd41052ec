#pragma once
// How a text is cut into words before its bytes are merged: the patterns of GPT-2, Llama 3 and Qwen 2.5, each as a
// scanner. No merge goes beyond a word.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace thimble::data {

enum class WordPattern : std::uint8_t { gpt2, llama3, qwen2 };

inline constexpr std::array word_patterns{WordPattern::gpt2, WordPattern::llama3, WordPattern::qwen2};

/// "gpt2", "llama3", "qwen2".
std::string_view to_string(WordPattern pattern);
/// The regular expression as the tokenizer's file has it.
std::string_view regex_of(WordPattern pattern);
/// The pattern of this regular expression.
std::optional<WordPattern> find_word_pattern(std::string_view regex);

/// Where the word ends that begins at byte `at` of `text`, which is below its size: what the regular expression matches
/// there. Every character is in some word.
std::size_t end_of_word(WordPattern pattern, std::string_view text, std::size_t at);

}  // namespace thimble::data
