// thimble tokenizer: encodes text to tokens and decodes tokens to text.

#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include <thimble/bench/commands.h>
#include <thimble/bench/commands/flags.h>
#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/file_stream.h>
#include <thimble/core/files/outputs.h>
#include <thimble/memory/units.h>
#include <thimble/nn/data/store.h>
#include <thimble/nn/data/tokens.h>
#include <thimble/nn/tokens/tokenizer_file.h>

namespace thimble::bench {
namespace {

constexpr std::uint64_t most_bytes = (std::uint64_t{1} << 32) - 2;

struct TokenizerFlags {
  std::string tokenizer, data, out;
  bool adds_ends = false, takes_special_as_text = false, skips_special = false, overwrites = false;
};

std::string read_text(const std::string& path) {
  const std::vector<std::byte> bytes = read_whole_file(path, most_bytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Checks --out before any work.
void check_out(const TokenizerFlags& flags, const files::FileKind& kind) {
  check_outputs({{"--out", flags.out, &kind}}, {{"--data", flags.data}, {"--tokenizer", flags.tokenizer}},
                flags.overwrites);
}

void encode(const TokenizerFlags& flags) {
  check_out(flags, file_kinds::tokens);
  const data::Tokenizer tokenizer = data::read_tokenizer(flags.tokenizer);
  const std::vector<std::uint32_t> tokens = tokenizer.encode(
      read_text(flags.data), {.adds_ends = flags.adds_ends, .takes_special_as_text = flags.takes_special_as_text});
  if (flags.out.empty()) {
    std::string line;
    for (const std::uint32_t token : tokens) line += (line.empty() ? "" : " ") + std::to_string(token);
    std::printf("%s\n", line.c_str());
    return;
  }
  std::vector<std::uint16_t> narrow;
  narrow.reserve(tokens.size());
  for (const std::uint32_t token : tokens) {
    if (token > std::numeric_limits<std::uint16_t>::max()) {
      throw ValueError("--out: token " + std::to_string(token) + "; a file of tokens has those below 65536");
    }
    narrow.push_back(static_cast<std::uint16_t>(token));
  }
  data::write_tokens(flags.out, narrow);
  std::printf("%s tokens\n", format_grouped(static_cast<std::int64_t>(tokens.size())).c_str());
}

/// Numbers separated by white space.
std::vector<std::uint32_t> parse_numbers(std::string_view text) {
  std::vector<std::uint32_t> numbers;
  constexpr std::string_view spaces = " \t\r\n";
  for (std::size_t at = text.find_first_not_of(spaces); at != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(spaces, at), text.size());
    const std::string word(text.substr(at, end - at));
    numbers.push_back(static_cast<std::uint32_t>(parse_integer("--data", word, 0, 0xFFFFFFFF)));
    at = text.find_first_not_of(spaces, end);
  }
  return numbers;
}

void decode(const TokenizerFlags& flags) {
  check_out(flags, file_kinds::text);
  const data::Tokenizer tokenizer = data::read_tokenizer(flags.tokenizer);
  std::vector<std::uint32_t> tokens;
  if (flags.data.ends_with(".bin") || flags.data.ends_with(".npy")) {
    const data::TokenStore store = data::open_tokens(flags.data);
    std::vector<std::int64_t> all(static_cast<std::size_t>(store.size()));
    store.read(0, all);
    tokens.assign(all.begin(), all.end());
  } else {
    tokens = parse_numbers(read_text(flags.data));
  }
  const std::string text = tokenizer.decode(tokens, flags.skips_special);
  if (!flags.out.empty()) return write_output(flags.out, text);
  std::fwrite(text.data(), 1, text.size(), stdout);
}

CLI::App* add_subcommand(CLI::App& commands, const std::string& name, const std::string& help, TokenizerFlags& flags,
                         const std::string& data_help) {
  CLI::App* const command = commands.add_subcommand(name, help);
  command->add_option("--tokenizer", flags.tokenizer, "tokenizer.json in the form of GPT-2, Llama 3 or Qwen 2.5")
      ->type_name("FILE")
      ->required();
  command->add_option("--data", flags.data, data_help)->type_name("FILE")->required();
  add_overwrite_flag(*command, flags.overwrites);
  return command;
}

}  // namespace

void add_tokenizer(CLI::App& program) {
  CLI::App* const commands = program.add_subcommand("tokenizer", "Text to tokens and back");
  commands->require_subcommand(1);
  const auto flags = std::make_shared<TokenizerFlags>();
  CLI::App* const encode_command = add_subcommand(*commands, "encode", "Text to tokens", *flags, "Text file");
  encode_command
      ->add_option("--out", flags->out, "File of 16-bit tokens (.bin) to write, for 'thimble train' (standard output)")
      ->type_name("FILE");
  encode_command->add_flag("--ends", flags->adds_ends, "Add the tokens around a text, such as 'begin of text'");
  encode_command->add_flag("--special-as-text", flags->takes_special_as_text,
                           "Read special tokens in the text as plain text, for untrusted text");
  encode_command->callback([flags] { encode(*flags); });

  CLI::App* const decode_command = add_subcommand(*commands, "decode", "Tokens to text", *flags,
                                                  "File of tokens (.bin, .npy), or text with their numbers");
  decode_command->add_option("--out", flags->out, "File to write (standard output)")->type_name("FILE");
  decode_command->add_flag("--skip-special", flags->skips_special, "Leave out special tokens");
  decode_command->callback([flags] { decode(*flags); });
}

}  // namespace thimble::bench
