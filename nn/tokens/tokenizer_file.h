#pragma once
// Hugging Face's tokenizer.json (huggingface/tokenizers, version "1.0" of the file) of GPT-2, Llama 3 and Qwen 2.5.
// Other settings that would change a token are errors:
//
//   key               expected
//   added_tokens      `single_word` false; ids as for Tokenizer
//   normalizer        null, NFC
//   pre_tokenizer     ByteLevel with `use_regex` true (GPT-2's pattern); a Sequence of a Split at one of the three
//                     patterns (nn/tokens/tokenizer.h; behavior Isolated) and ByteLevel with `use_regex` false.
//                     `add_prefix_space` false
//   post_processor    null, ByteLevel, TemplateProcessing of special tokens around one text, a Sequence of these
//   decoder           ByteLevel
//   model             BPE with a token for every byte; `dropout` null, no prefix or suffix of parts of words
//   truncation, padding   null

#include <cstddef>
#include <span>
#include <string>

#include <thimble/nn/tokens/tokenizer.h>

namespace thimble::data {

/// Reads the bytes of a file; `path` is for messages. Throws FileError, naming the key, its value and the expected one,
/// for text that is not JSON, a repeated, missing or unknown key, and a value outside the table above.
Tokenizer parse_tokenizer(std::span<const std::byte> file, const std::string& path);

/// Reads a file of at most 256 MiB. Throws as parse_tokenizer.
Tokenizer read_tokenizer(const std::string& path);

/// The text of a tokenizer.json.
std::string format_tokenizer(const TokenizerParts& parts);

/// Writes a tokenizer.json, which appears under its name only when complete. Throws FileError.
void write_tokenizer(const std::string& path, const Tokenizer& tokenizer);

}  // namespace thimble::data
