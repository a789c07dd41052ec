#pragma once
// Flags whose values are checked where they are read: a wrong one is a ValueError, "--flag: expected X, got 'text'".

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <thimble/core/tensor/device.h>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace thimble::bench {

/// A text of the library in the program's words: an option that it names in backticks is its flag here,
/// "`micro_batches`: auto" becomes "--micro-batches: auto".
std::string with_flags(std::string_view text);

/// Throws ValueError: "--head: expected full or chunked, got 'half'".
[[noreturn]] void refuse_value(std::string_view flag, std::string_view expected, const std::string& text);

/// The whole number in `text`, within low .. high. Throws ValueError: "--batch: expected a whole number from 1 to ...,
/// got '0'"; `or_else` follows the numbers there, as in " or auto".
std::int64_t parse_integer(std::string_view flag, const std::string& text, std::int64_t low, std::int64_t high,
                           std::string_view or_else = "");

/// The finite number in `text`, within low .. high. Throws ValueError.
double parse_number(std::string_view flag, const std::string& text, double low, double high,
                    std::string_view or_else = "");

/// The bytes of a SIZE (memory/units.h). Throws ValueError.
std::size_t parse_bytes(std::string_view flag, const std::string& text);

/// Whether `text` is `yes`, where the only other text is `no`. Throws ValueError.
bool parse_choice(std::string_view flag, const std::string& text, std::string_view yes, std::string_view no);

/// The device in `text`: cpu, cuda or cuda:N. Throws ValueError that names `flag`.
memory::Device parse_device_flag(std::string_view flag, const std::string& text);

/// Adds --overwrite: outputs may replace files of other kinds (core/files/outputs.h).
void add_overwrite_flag(CLI::App& command, bool& target);

/// Adds a flag that takes a SIZE (memory/units.h), at least 1 byte; `target` outlives the parser.
CLI::Option* add_size(CLI::App& command, const std::string& flag, std::size_t& target, const std::string& help);

/// Adds a flag that takes a whole number or a number; `target` outlives the parser. The flag is given with its dashes.
CLI::Option* add_integer(CLI::App& command, const std::string& flag, std::int64_t& target, std::int64_t low,
                         std::int64_t high, const std::string& help);
CLI::Option* add_number(CLI::App& command, const std::string& flag, double& target, double low, double high,
                        const std::string& help);

}  // namespace thimble::bench
