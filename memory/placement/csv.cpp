#include <thimble/memory/placement/csv.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <memory>
#include <optional>
#include <system_error>
#include <unordered_map>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>

namespace thimble::memory {
namespace csv_detail {

constexpr std::array<std::string_view, 5> columns = {"id", "lower", "upper", "size", "offset"};
constexpr std::size_t required_columns = 4;
constexpr std::uint64_t largest = std::uint64_t{1} << 62;

class Reader {
 public:
  Reader(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  PlacementFile read() {
    if (!next_line()) fail("no header; a placement begins with id,lower,upper,size");
    read_header();
    PlacementFile file;
    while (next_line()) {
      if (line_.empty() && text_.find_first_not_of("\r\n", begin_) == std::string_view::npos) break;
      read_line(file);
    }
    return file;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw FileError(path_, begin_, "line " + std::to_string(number_) + ": " + why);
  }

  bool next_line() {
    begin_ = next_;
    ++number_;
    if (begin_ >= text_.size()) return false;
    const std::size_t end = std::min(text_.find('\n', begin_), text_.size());
    line_ = text_.substr(begin_, end - begin_);
    if (line_.ends_with('\r')) line_.remove_suffix(1);
    next_ = end + 1;
    return true;
  }

  std::vector<std::string_view> fields() const {
    std::vector<std::string_view> result;
    for (std::size_t at = 0;;) {
      const std::size_t comma = line_.find(',', at);
      result.push_back(line_.substr(at, comma - at));
      if (comma == std::string_view::npos) return result;
      at = comma + 1;
    }
  }

  void read_header() {
    for (const std::string_view name : fields()) {
      const auto found = std::find(columns.begin(), columns.end(), name);
      if (found == columns.end()) fail("unknown column " + quote(name) + "; allowed: id, lower, upper, size, offset");
      const auto column = static_cast<std::size_t>(found - columns.begin());
      if (place_[column]) fail("column " + quote(name) + " is there twice");
      place_[column] = width_++;
    }
    for (std::size_t column = 0; column < required_columns; ++column) {
      if (!place_[column]) fail("no column " + quote(columns[column]) + "; needed: id, lower, upper, size");
    }
  }

  std::uint64_t value(const std::vector<std::string_view>& line, std::size_t column) const {
    const std::string_view text = line[*place_[column]];
    const auto what = [&] { return std::string(columns[column]) + " " + quote(text); };
    std::uint64_t result = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, result);
    if (error == std::errc::result_out_of_range || (error == std::errc{} && stop == end && result >= largest)) {
      fail(what() + " is too large; allowed are values below 2^62");
    }
    if (text.starts_with('-')) fail(what() + " is negative");
    if (error != std::errc{} || stop != end) fail(what() + " is not a whole number");
    return result;
  }

  void read_line(PlacementFile& file) {
    const std::vector<std::string_view> line = fields();
    if (line.size() != width_) {
      fail(std::to_string(line.size()) + " fields where the header has " + std::to_string(width_));
    }
    Buffer buffer;
    buffer.id = value(line, 0);
    buffer.lower = value(line, 1);
    buffer.upper = value(line, 2);
    buffer.bytes = value(line, 3);
    if (buffer.lower >= buffer.upper) {
      fail("lower " + std::to_string(buffer.lower) + " is not below upper " + std::to_string(buffer.upper));
    }
    if (buffer.bytes == 0) fail("size is 0; allowed are 1 and more");
    const auto [same, is_new] = line_of_.emplace(buffer.id, number_);
    if (!is_new) fail("id " + std::to_string(buffer.id) + " is in line " + std::to_string(same->second) + " already");
    sum_ += buffer.bytes;  // of at most 2^62 each: no overflow before it is told
    if (sum_ >= largest) fail("all sizes up to here together are too large; allowed is a sum below 2^62");
    if (place_[required_columns]) file.offsets.push_back(value(line, required_columns));
    file.buffers.push_back(buffer);
  }

  std::string_view text_;
  const std::string& path_;
  std::string_view line_;
  std::size_t begin_ = 0, next_ = 0;  // of the line, and of the one after it
  std::size_t number_ = 0;            // of the line, from 1
  std::array<std::optional<std::size_t>, columns.size()> place_;
  std::size_t width_ = 0;
  std::uint64_t sum_ = 0;
  std::unordered_map<std::uint64_t, std::size_t> line_of_;
};

}  // namespace csv_detail

PlacementFile parse_placement(std::string_view text, const std::string& path) {
  return csv_detail::Reader(text, path).read();
}

PlacementFile read_placement(const std::string& path) {
  const auto fail = [&](std::uint64_t offset) {
    throw FileError(path, offset, std::error_code(errno, std::generic_category()).message());
  };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) fail(0);
  std::string text;
  std::array<char, 1 << 16> part;
  for (std::size_t count = 0; (count = std::fread(part.data(), 1, part.size(), file.get())) > 0;) {
    text.append(part.data(), count);
  }
  if (std::ferror(file.get()) != 0) fail(text.size());
  return parse_placement(text, path);
}

std::string write_placement(std::span<const Buffer> buffers, std::span<const std::size_t> offsets) {
  if (!offsets.empty() && offsets.size() != buffers.size()) {
    throw ValueError("write_placement: " + std::to_string(offsets.size()) + " offsets for " +
                     std::to_string(buffers.size()) + " buffers");
  }
  std::string text = offsets.empty() ? "id,lower,upper,size\n" : "id,lower,upper,size,offset\n";
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const Buffer& buffer = buffers[i];
    text += std::to_string(buffer.id) + "," + std::to_string(buffer.lower) + "," + std::to_string(buffer.upper) + "," +
            std::to_string(buffer.bytes);
    if (!offsets.empty()) text += "," + std::to_string(offsets[i]);
    text += "\n";
  }
  return text;
}

}  // namespace thimble::memory
