#pragma once
// Flags whose values are checked while parsing: a bad one throws ValueError "--flag: expected X, got 'text'".

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <thimble/bench/flag_names.h>
#include <thimble/core/device.h>
#include <thimble/models/techniques/technique.h>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace thimble::bench {

// Parsers of values; `name` is the flag, which begins the error message.
using models::parse_bytes, models::parse_choice, models::parse_integer, models::parse_number, models::refuse_value;

/// Adds the flags of techniques in `sets`, in the techniques' order. An explicit --dtype overrides the dtype of
/// policies and bases; contradictions are refused later.
void add_technique_flags(CLI::App& command, const std::shared_ptr<models::Setup>& setup,
                         std::initializer_list<models::FlagSet> sets);

/// The device in `text`: cpu, cuda or cuda:N. Throws ValueError that names `flag`.
memory::Device parse_device_flag(std::string_view flag, const std::string& text);

/// Throws ValueError if a flag outside `known` is given to a mode that does not read it: "--clip: expected a training
/// step, got --generate; leave out one of them".
void require_flags(const CLI::App& command, std::span<const std::string_view> known, const std::string& expected,
                   const std::string& mode);

/// Adds --overwrite, which lets outputs replace files of other kinds (core/files/outputs.h).
void add_overwrite_flag(CLI::App& command, bool& target);

/// Adds a flag that takes a SIZE (memory/units.h), at least 1 byte; `target` outlives the parser.
CLI::Option* add_size(CLI::App& command, const std::string& flag, std::size_t& target, const std::string& help);

/// Adds a flag with an integer or a number in [low, high]; `flag` includes its dashes, `target` outlives the parser.
CLI::Option* add_integer(CLI::App& command, const std::string& flag, std::int64_t& target, std::int64_t low,
                         std::int64_t high, const std::string& help);
CLI::Option* add_number(CLI::App& command, const std::string& flag, double& target, double low, double high,
                        const std::string& help);

/// Adds a flag whose text is passed to `read`; help shows `type` after it.
CLI::Option* add_text(CLI::App& command, const std::string& flag, const std::string& type, const std::string& help,
                      const std::function<void(const std::string&)>& read);
/// Adds --seed and --device; `target` outlives the parser.
void add_seed(CLI::App& command, std::uint64_t& target, const std::string& help);
void add_device(CLI::App& command, memory::Device& target, const std::string& help);

}  // namespace thimble::bench
