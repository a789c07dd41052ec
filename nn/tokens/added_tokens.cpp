#include <thimble/nn/tokens/added_tokens.h>

#include <algorithm>

namespace thimble::data {

TextFinder::TextFinder(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    is_first_[static_cast<unsigned char>(text[0])] = true;
    sorted_.emplace_back(text, sorted_.size());
  }
  std::sort(sorted_.begin(), sorted_.end());
}

std::optional<TextFinder::Found> TextFinder::find(std::string_view text, std::size_t from) const {
  if (sorted_.empty()) return std::nullopt;
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!is_first_[static_cast<unsigned char>(text[begin])]) continue;
    // Those that begin like the text from here on are neighbours; with each byte more there are fewer.
    std::optional<Found> longest;
    auto low = sorted_.begin(), high = sorted_.end();
    for (std::size_t size = 0; low != high; ++size) {
      if (low->first.size() == size) {
        longest = {low->second, begin, begin + size};
        if (++low == high) break;
      }
      if (begin + size == text.size()) break;
      const auto byte = static_cast<unsigned char>(text[begin + size]);
      const auto at = [size](const auto& entry) { return static_cast<unsigned char>(entry.first[size]); };
      low = std::partition_point(low, high, [&](const auto& entry) { return at(entry) < byte; });
      high = std::partition_point(low, high, [&](const auto& entry) { return at(entry) == byte; });
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

}  // namespace thimble::data
