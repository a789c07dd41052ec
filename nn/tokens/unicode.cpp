#include <thimble/nn/tokens/unicode.h>

#include <algorithm>
#include <array>
#include <vector>

#include <thimble/core/files/printable.h>
#include <thimble/nn/tokens/unicode_tables.h>

namespace thimble::data {
namespace unicode_detail {

using namespace unicode_tables;

constexpr std::uint32_t code_points = 0x110000;  // of Unicode; byte b that is not UTF-8 is code_points + b
constexpr std::uint32_t low_codes = 0x300;       // those below combine with nothing before them, and are in NFC alone

/// The value of the run that `code` is in. Runs are start << bits | value, sorted, the first from 0.
template <class Runs>
std::uint32_t value_in(const Runs& runs, std::uint32_t code, unsigned bits) {
  const auto after = std::upper_bound(runs.begin(), runs.end(), code << bits | ((1u << bits) - 1));
  return *(after - 1) & ((1u << bits) - 1);
}

std::uint32_t combining_class(std::uint32_t code) {
  return code < low_codes || code >= code_points ? 0 : value_in(combining_runs, code, 8);
}

// Hangul syllables are computed (The Unicode Standard, section 3.12).
constexpr std::uint32_t first_syllable = 0xAC00, first_l = 0x1100, first_v = 0x1161, before_t = 0x11A7;
constexpr std::uint32_t l_count = 19, v_count = 21, t_count = 28, syllables = l_count * v_count * t_count;

constexpr std::uint32_t code_mask = (1u << 21) - 1;

/// Appends the full canonical decomposition of `code`.
void decompose(std::uint32_t code, std::vector<std::uint32_t>& out) {
  std::array<std::uint32_t, 8> waiting{code};  // a first part decomposes again four times at most, a second part never
  for (std::size_t count = 1; count > 0;) {
    const std::uint32_t c = waiting[--count];
    if (c >= first_syllable && c < first_syllable + syllables) {
      const std::uint32_t s = c - first_syllable;
      out.push_back(first_l + s / (v_count * t_count));
      out.push_back(first_v + s / t_count % v_count);
      if (s % t_count != 0) out.push_back(before_t + s % t_count);
      continue;
    }
    const auto single =
        std::lower_bound(single_decompositions.begin(), single_decompositions.end(), std::uint64_t{c} << 21);
    if (single != single_decompositions.end() && *single >> 21 == c) {
      waiting[count++] = static_cast<std::uint32_t>(*single) & code_mask;
      continue;
    }
    const auto pair = std::lower_bound(pair_decompositions.begin(), pair_decompositions.end(), std::uint64_t{c} << 43);
    if (pair == pair_decompositions.end() || *pair >> 43 != c) {
      out.push_back(c);
      continue;
    }
    waiting[count++] = static_cast<std::uint32_t>(*pair >> 1) & code_mask;
    waiting[count++] = static_cast<std::uint32_t>(*pair >> 22) & code_mask;
  }
}

/// What two characters compose to; 0: nothing.
std::uint32_t compose(std::uint32_t first, std::uint32_t second) {
  if (first - first_l < l_count && second - first_v < v_count) {
    return first_syllable + ((first - first_l) * v_count + (second - first_v)) * t_count;
  }
  if (first - first_syllable < syllables && (first - first_syllable) % t_count == 0 && second > before_t &&
      second - before_t < t_count) {
    return first + (second - before_t);
  }
  const std::uint64_t wanted = std::uint64_t{first} << 21 | second;
  constexpr std::uint64_t parts_mask = (std::uint64_t{1} << 42) - 1;
  const auto found = std::lower_bound(
      compositions.begin(), compositions.end(), wanted,
      [](std::uint16_t place, std::uint64_t parts) { return (pair_decompositions[place] >> 1 & parts_mask) < parts; });
  if (found == compositions.end() || (pair_decompositions[*found] >> 1 & parts_mask) != wanted) return 0;
  return static_cast<std::uint32_t>(pair_decompositions[*found] >> 43);
}

/// Canonical ordering: stretches of marks sorted by their combining classes.
void reorder(std::vector<std::uint32_t>& codes) {
  for (auto at = codes.begin(); at != codes.end();) {
    if (combining_class(*at) == 0) {
      ++at;
      continue;
    }
    const auto end = std::find_if(at, codes.end(), [](std::uint32_t code) { return combining_class(code) == 0; });
    std::stable_sort(at, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    at = end;
  }
}

/// Canonical composition, in place: a character joins the last starter that no character of its class or a higher one
/// stands between.
void compose(std::vector<std::uint32_t>& codes) {
  std::size_t size = 0, starter = 0;
  bool has_starter = false;
  std::uint32_t before = 0;  // class of the last character that stayed behind the starter; 0: the starter is the last
  for (const std::uint32_t code : codes) {
    const std::uint32_t its_class = combining_class(code);
    const bool is_free = starter + 1 == size || (before != 0 && before < its_class);
    if (has_starter && is_free) {
      if (const std::uint32_t composed = compose(codes[starter], code); composed != 0) {
        codes[starter] = composed;
        continue;
      }
    }
    if (its_class == 0) starter = size, has_starter = true;
    before = its_class;
    codes[size++] = code;
  }
  codes.resize(size);
}

}  // namespace unicode_detail

Character character_at(std::string_view text, std::size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return {first, 1};
  const std::size_t length = utf8_length(text.substr(at, 4));
  if (length == 0) return {unicode_detail::code_points + first, 1};
  std::uint32_t code = first & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) code = code << 6 | (static_cast<unsigned char>(text[at + i]) & 0x3Fu);
  return {code, length};
}

void append_character(std::string& text, std::uint32_t code) {
  const auto put = [&text](std::uint32_t byte) { text += static_cast<char>(byte); };
  const auto rest = [&](unsigned shift) { put(0x80 | (code >> shift & 0x3F)); };
  if (code >= unicode_detail::code_points) return put(code - unicode_detail::code_points);
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xC0 | code >> 6);
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12), rest(6);
  } else {
    put(0xF0 | code >> 18), rest(12), rest(6);
  }
  rest(0);
}

CharacterClass class_of(std::uint32_t code) {
  // Most texts have few characters beyond these.
  static const auto low = [] {
    std::array<CharacterClass, 0x800> classes{};
    for (std::uint32_t c = 0; c < classes.size(); ++c) {
      classes[c] = static_cast<CharacterClass>(unicode_detail::value_in(unicode_tables::class_runs, c, 2));
    }
    return classes;
  }();
  if (code < low.size()) return low[code];
  if (code >= unicode_detail::code_points) return CharacterClass::other;
  return static_cast<CharacterClass>(unicode_detail::value_in(unicode_tables::class_runs, code, 2));
}

std::string to_nfc(std::string_view text) {
  using namespace unicode_detail;
  std::string out;
  out.reserve(text.size());
  std::vector<std::uint32_t> codes;  // of a stretch that nothing before it, and nothing after it, combines with
  for (std::size_t at = 0; at < text.size();) {
    codes.clear();
    const Character first = character_at(text, at);
    at += first.bytes;
    decompose(first.code, codes);
    while (at < text.size()) {
      const Character next = character_at(text, at);
      if (next.code < low_codes || next.code >= code_points) break;
      decompose(next.code, codes);
      at += next.bytes;
    }
    reorder(codes);
    compose(codes);
    for (const std::uint32_t code : codes) append_character(out, code);
  }
  return out;
}

}  // namespace thimble::data
