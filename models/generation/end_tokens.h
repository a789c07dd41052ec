#pragma once
// The tokens that end a text: where a model writes one of them, it has said all.

#include <cstdint>
#include <string>
#include <vector>

#include <thimble/models/datasets/token_text.h>

namespace thimble::models {

/// The first of these that names some: `eos_token_id` of generation_config.json and of config.json in `folder`, where
/// that is a folder that has them, a number or a list; the special tokens <|endoftext|>, <|end_of_text|> and <|eot_id|>
/// of the text's tokenizer. Sorted; empty: none ends a text, as where tokens are characters. Throws FileError naming
/// the key where it is neither null nor tokens.
std::vector<std::int64_t> find_end_tokens(const std::string& folder, const TokenText& text);

}  // namespace thimble::models
