#include <thimble/nn/files/safetensors_sums.h>

#include <algorithm>
#include <charconv>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/crc32c.h>

namespace thimble {
namespace safetensors_sums_detail {

constexpr std::size_t digit_count = 8;
constexpr std::string_view zeros = "00000000";

std::string digits_of(std::uint32_t sum) {
  std::string text;
  for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[sum >> shift & 15];
  return text;
}

// Where the key's value begins in a header as it is written here; npos where it is not there. Inside of a JSON string a
// quote has a backslash before it, so that nothing else looks like this.
std::size_t find_value(std::string_view formatted) {
  const std::string before = '"' + std::string(safetensors_sums_key) + "\":\"";
  const std::size_t at = formatted.find(before);
  return at == std::string_view::npos ? at : at + before.size();
}

std::uint32_t header_sum(std::string_view formatted, std::size_t value) {
  std::uint32_t sum = crc32c(formatted.substr(0, value));
  sum = crc32c(zeros, sum);
  return crc32c(formatted.substr(value + digit_count), sum);
}

std::vector<std::size_t> order_by_name(const std::vector<SafetensorsEntry>& tensors) {
  std::vector<std::size_t> order(tensors.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return tensors[a].name < tensors[b].name; });
  return order;
}

}  // namespace safetensors_sums_detail

bool has_sums(const SafetensorsHeader& header) noexcept {
  const auto& tensors = header.tensors;
  return !tensors.empty() &&
         std::all_of(tensors.begin(), tensors.end(), [](const SafetensorsEntry& e) { return e.crc32c.has_value(); });
}

std::string format_sums(const SafetensorsHeader& header) {
  namespace detail = safetensors_sums_detail;
  std::string text(detail::zeros);
  for (const std::size_t i : detail::order_by_name(header.tensors))
    text += detail::digits_of(*header.tensors[i].crc32c);
  return text;
}

void put_header_sum(std::string& formatted) {
  namespace detail = safetensors_sums_detail;
  const std::size_t at = detail::find_value(formatted);
  if (at == std::string::npos) return;
  formatted.replace(at, detail::digit_count, detail::digits_of(detail::header_sum(formatted, at)));
}

void take_sums(SafetensorsHeader& header, std::span<const std::byte> formatted, const std::string& path) {
  namespace detail = safetensors_sums_detail;
  const auto found = header.metadata.find(std::string(safetensors_sums_key));
  if (found == header.metadata.end()) return;
  const std::string text = std::move(found->second);
  header.metadata.erase(found);
  const auto fail = [&](const std::string& why) {
    throw FileError(path, 8, "the metadata's " + std::string(safetensors_sums_key) + " " + why);
  };
  if (text.size() != detail::digit_count * (1 + header.tensors.size()) ||
      text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    fail("is no " + std::to_string(detail::digit_count) + " hexadecimal digits for the header and each of " +
         std::to_string(header.tensors.size()) + " tensors");
  }
  const auto sum_at = [&](std::size_t i) {
    std::uint32_t sum = 0;
    const char* const first = text.data() + detail::digit_count * i;
    std::from_chars(first, first + detail::digit_count, sum, 16);
    return sum;
  };
  const std::string_view bytes(reinterpret_cast<const char*>(formatted.data()), formatted.size());
  const std::size_t value = detail::find_value(bytes);
  if (value == std::string_view::npos || value + detail::digit_count > bytes.size() ||
      detail::header_sum(bytes, value) != sum_at(0)) {
    fail("is not that of this header: it was changed after it was written");
  }
  const std::vector<std::size_t> order = detail::order_by_name(header.tensors);
  for (std::size_t i = 0; i < order.size(); ++i) header.tensors[order[i]].crc32c = sum_at(1 + i);
}

void check_sum(const SafetensorsEntry& entry, std::uint32_t sum, const std::string& path, std::uint64_t offset) {
  if (!entry.crc32c || *entry.crc32c == sum) return;
  throw FileError(path, offset,
                  "tensor " + quote(entry.name) + " has the checksum " + safetensors_sums_detail::digits_of(sum) +
                      ", it was written with " + safetensors_sums_detail::digits_of(*entry.crc32c) +
                      ": its bytes have changed");
}

}  // namespace thimble
