#pragma once
// Tokens that a text is split at before anything else: "<|endoftext|>" and the like.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace thimble::data {

struct AddedToken {
  std::uint32_t id = 0;
  std::string content;         ///< its text
  bool is_special = false;     ///< decode() can leave it out
  bool strips_left = false;    ///< spaces before it belong to it (lstrip)
  bool strips_right = false;   ///< and those after it (rstrip)
  bool is_normalized = false;  ///< looked for, in the form that its own text takes, after the text was normalized
};

/// Finds texts of a list in another text.
class TextFinder {
 public:
  struct Found {
    std::size_t number;  ///< in the list
    std::size_t begin, end;
  };

  TextFinder() = default;
  /// Texts that are not empty.
  explicit TextFinder(const std::vector<std::string>& texts);

  /// The first place from `from` on where one of them stands; of several there the longest.
  std::optional<Found> find(std::string_view text, std::size_t from) const;

 private:
  std::vector<std::pair<std::string, std::size_t>> sorted_;  // text, number
  std::array<bool, 256> is_first_{};                         // by a text's first byte
};

}  // namespace thimble::data
