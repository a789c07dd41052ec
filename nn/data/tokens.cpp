#include <thimble/nn/data/tokens.h>

#include <algorithm>
#include <array>
#include <limits>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/file.h>
#include <thimble/core/files/file_stream.h>

namespace thimble::data {

namespace {

constexpr std::uint32_t magic = 20240520, version = 1;
constexpr std::uint32_t largest_token_count = std::numeric_limits<std::int32_t>::max();

void require_field(const std::string& path, std::size_t offset, const char* name, std::uint32_t value,
                   std::uint32_t allowed) {
  if (value != allowed)
    throw FileError(path, offset,
                    std::string(name) + " is " + std::to_string(value) + "; expected " + std::to_string(allowed));
}

}  // namespace

std::int64_t token_count(const InputFile& file) {
  const std::string& path = file.path();
  if (file.bytes() < tokens_header_bytes)
    throw FileError(path, file.bytes(),
                    "the file ends inside the header of " + std::to_string(tokens_header_bytes) + " bytes");
  std::array<std::byte, 12> start{};
  file.read(0, start);
  require_field(path, 0, "the magic number", load_le<std::uint32_t>(start.data()), magic);
  require_field(path, 4, "the version", load_le<std::uint32_t>(start.data() + 4), version);
  const auto count = load_le<std::uint32_t>(start.data() + 8);
  if (count > largest_token_count) throw FileError(path, 8, "the number of tokens is negative");
  const std::uint64_t wanted = 2 * std::uint64_t{count}, available = file.bytes() - tokens_header_bytes;
  if (available != wanted)
    throw FileError(path, tokens_header_bytes + std::min(available, wanted),
                    std::string(available < wanted ? "the file is cut short" : "bytes after the last token") + ": " +
                        std::to_string(count) + " tokens need " + std::to_string(wanted) + " bytes, the file has " +
                        std::to_string(available));
  return count;
}

std::vector<std::byte> format_tokens(std::span<const std::uint16_t> tokens) {
  if (tokens.size() > largest_token_count)
    throw ValueError("tokens: " + std::to_string(tokens.size()) + " tokens; expected at most " +
                     std::to_string(largest_token_count));
  std::vector<std::byte> file(tokens_header_bytes + 2 * tokens.size());
  store_le(magic, file.data());
  store_le(version, file.data() + 4);
  store_le(static_cast<std::uint32_t>(tokens.size()), file.data() + 8);
  for (std::size_t i = 0; i < tokens.size(); ++i) store_le(tokens[i], file.data() + tokens_header_bytes + 2 * i);
  return file;
}

void write_tokens(const std::string& path, std::span<const std::uint16_t> tokens) {
  write_file_atomically(path, format_tokens(tokens));
}

}  // namespace thimble::data
