#include <thimble/memory/placement/csv.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <chrono>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <system_error>
#include <unordered_map>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/file_stream.h>
#include <thimble/memory/placement/problem.h>

namespace thimble::memory {
namespace {

enum Column : std::size_t { id, lower, upper, size, alignment, gaps, offset };
constexpr std::array<std::string_view, 7> columns = {"id", "lower", "upper", "size", "alignment", "gaps", "offset"};
constexpr std::size_t required_columns = 4;
// Column names in older files.
constexpr std::pair<std::string_view, Column> older_columns[] = {
    {"buffer", id}, {"buffer_id", id}, {"begin", lower}, {"start", lower}, {"end", upper}};
constexpr std::string_view known = "id, lower, upper, size, alignment, gaps, offset";
constexpr std::uint64_t largest = std::uint64_t{1} << 62;
constexpr std::uint64_t most_bytes = std::uint64_t{1} << 30;

class Reader {
 public:
  Reader(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  PlacementFile read() {
    if (text_.starts_with("\xEF\xBB\xBF")) next_ = 3;  // byte order mark of spreadsheets
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

  std::vector<std::string> fields() const {
    std::vector<std::string> result(1);
    for (std::size_t at = 0; at < line_.size(); ++at) {
      if (line_[at] == ',') {
        result.emplace_back();
      } else if (line_[at] == '"' && result.back().empty()) {
        const std::size_t end = read_quoted(at, result.back());
        if (end + 1 < line_.size() && line_[end + 1] != ',') fail("text behind the quotes of a field");
        at = end;
      } else {
        result.back() += line_[at];
      }
    }
    return result;
  }

  // Appends the text after the quote at `at` and returns the index of the closing quote.
  std::size_t read_quoted(std::size_t at, std::string& text) const {
    while (++at < line_.size()) {
      if (line_[at] == '"' && (at + 1 == line_.size() || line_[at + 1] != '"')) return at;
      if (line_[at] == '"') ++at;
      text += line_[at];
    }
    fail("a quoted field does not end in its line");
  }

  void read_header() {
    for (const std::string& name : fields()) {
      const auto found = std::find(columns.begin(), columns.end(), name);
      auto column = static_cast<std::size_t>(found - columns.begin());
      for (const auto& [older, meant] : older_columns) {
        if (name == older) column = meant;
      }
      if (column == columns.size()) fail("unknown column " + quote(name) + "; expected " + std::string(known));
      if (place_[column]) fail("column " + quote(name) + " is there twice");
      if (name == "end") after_end_ = 1;
      place_[column] = width_++;
    }
    for (std::size_t column = 0; column < required_columns; ++column) {
      if (!place_[column]) fail("no column " + quote(columns[column]) + "; needed: id, lower, upper, size");
    }
  }

  // `is_last` values in a column named `end` are inclusive, so one is added.
  std::uint64_t number(std::string_view text, std::string_view name, bool is_last = false) const {
    const auto what = [&] { return std::string(name) + " " + quote(text); };
    std::uint64_t result = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, result);
    if (error == std::errc::result_out_of_range || (error == std::errc{} && stop == end && result >= largest)) {
      fail(what() + " is too large; expected a value below 2^62");
    }
    if (text.starts_with('-')) fail(what() + " is negative");
    if (error != std::errc{} || stop != end) fail(what() + " is not a whole number");
    return result + (is_last ? after_end_ : 0);
  }

  std::uint64_t value(const std::vector<std::string>& line, Column column) const {
    return number(line[*place_[column]], columns[column], column == upper);
  }

  // "3-5 8-9@0:4"
  std::vector<Gap> read_gaps(std::string_view text, const Buffer& buffer) const {
    std::vector<Gap> found;
    for (const std::string_view part : split(text, ' ')) {
      if (part.empty()) continue;
      const auto at = split(part, '@'), times = split(at[0], '-');
      const auto window = at.size() == 2 ? split(at[1], ':') : std::vector<std::string_view>{"0", "0"};
      if (at.size() > 2 || times.size() != 2 || window.size() != 2) {
        fail("gap " + quote(part) + " is not of the form lower-upper or lower-upper@from:to");
      }
      const Gap gap{number(times[0], "gap's lower"), number(times[1], "gap's upper", true),
                    number(window[0], "gap's from"), number(window[1], "gap's to")};
      const auto check = [&](bool holds, const std::string& why) {
        if (!holds) fail("gap " + quote(part) + " " + why);
      };
      check(gap.lower < gap.upper, "is empty");
      check(gap.lower >= buffer.lower && gap.upper <= buffer.upper, "is not within the lifetime");
      check(gap.to <= buffer.bytes && (at.size() == 1 || gap.from < gap.to), "holds bytes that are not in the buffer");
      found.push_back(gap);
    }
    std::sort(found.begin(), found.end(), [](const Gap& a, const Gap& b) { return a.lower < b.lower; });
    for (std::size_t i = 1; i < found.size(); ++i) {
      if (found[i].lower < found[i - 1].upper) fail("gaps overlap at " + std::to_string(found[i].lower));
    }
    return found;
  }

  void read_line(PlacementFile& file) {
    const std::vector<std::string> line = fields();
    if (line.size() != width_) {
      fail(std::to_string(line.size()) + " fields where the header has " + std::to_string(width_));
    }
    const std::string& name = line[*place_[id]];
    Buffer buffer;
    buffer.id = file.buffers.size();
    buffer.lower = value(line, lower);
    buffer.upper = value(line, upper);
    buffer.bytes = value(line, size);
    if (place_[alignment]) buffer.alignment = value(line, alignment);
    if (buffer.lower >= buffer.upper) {
      fail("lower " + std::to_string(buffer.lower) + " is not below upper " + std::to_string(buffer.upper));
    }
    if (buffer.bytes == 0) fail("size is 0; expected 1 or more");
    if (!std::has_single_bit(buffer.alignment)) {
      fail("alignment " + std::to_string(buffer.alignment) + " is not a power of two");
    }
    const auto [same, is_new] = line_of_.emplace(name, number_);
    if (!is_new) fail("id " + quote(name) + " is in line " + std::to_string(same->second) + " already");
    sum_ += buffer.bytes;  // both below 2^62: no overflow
    if (sum_ >= largest) fail("all sizes up to here together are too large; expected a sum below 2^62");
    if (place_[gaps]) file.gaps.push_back(read_gaps(line[*place_[gaps]], buffer));
    if (place_[offset]) file.offsets.push_back(value(line, offset));
    file.ids.push_back(name);
    file.buffers.push_back(buffer);
  }

  std::string_view text_;
  const std::string& path_;
  std::string_view line_;
  std::size_t begin_ = 0, next_ = 0;  // of the line, and of the one after it
  std::size_t number_ = 0;            // of the line, from 1
  std::array<std::optional<std::size_t>, columns.size()> place_;
  std::size_t width_ = 0;
  std::uint64_t after_end_ = 0;
  std::uint64_t sum_ = 0;
  std::unordered_map<std::string, std::size_t> line_of_;
};

std::string field(const std::string& text) {
  if (text.find_first_of(",\"") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

std::string gap_text(const std::vector<Gap>& all) {
  std::string text;
  for (const Gap& gap : all) {
    text += (text.empty() ? "" : " ") + std::to_string(gap.lower) + "-" + std::to_string(gap.upper);
    if (gap.from < gap.to) text += "@" + std::to_string(gap.from) + ":" + std::to_string(gap.to);
  }
  return text;
}

}  // namespace

PlacementFile parse_placement(std::string_view text, const std::string& path) { return Reader(text, path).read(); }

PlacementFile read_placement(const std::string& path) {
  const std::vector<std::byte> bytes = read_whole_file(path, most_bytes);
  return parse_placement({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

std::string write_placement(const PlacementFile& file) {
  const auto check = [&](std::size_t count, const char* of) {
    if (count == file.buffers.size()) return;
    throw ValueError("write_placement: " + std::to_string(count) + " " + of + " for " +
                     std::to_string(file.buffers.size()) + " buffers");
  };
  check(file.ids.size(), "ids");
  if (!file.offsets.empty()) check(file.offsets.size(), "offsets");
  if (!file.gaps.empty()) check(file.gaps.size(), "lists of gaps");
  const bool has_alignment =
      std::any_of(file.buffers.begin(), file.buffers.end(), [](const Buffer& buffer) { return buffer.alignment != 1; });
  const bool has_gaps = std::any_of(file.gaps.begin(), file.gaps.end(), [](const auto& all) { return !all.empty(); });
  std::string text = "id,lower,upper,size";
  text += std::string(has_alignment ? ",alignment" : "") + (has_gaps ? ",gaps" : "");
  text += file.offsets.empty() ? "\n" : ",offset\n";
  for (std::size_t i = 0; i < file.buffers.size(); ++i) {
    const Buffer& buffer = file.buffers[i];
    text += field(file.ids[i]) + "," + std::to_string(buffer.lower) + "," + std::to_string(buffer.upper) + "," +
            std::to_string(buffer.bytes);
    if (has_alignment) text += "," + std::to_string(buffer.alignment);
    if (has_gaps) text += "," + gap_text(file.gaps[i]);
    if (!file.offsets.empty()) text += "," + std::to_string(file.offsets[i]);
    text += "\n";
  }
  return text;
}

std::string write_placement(std::span<const Buffer> buffers, std::span<const std::size_t> offsets) {
  PlacementFile file{{buffers.begin(), buffers.end()}, {}, {}, {offsets.begin(), offsets.end()}};
  for (const Buffer& buffer : buffers) file.ids.push_back(std::to_string(buffer.id));
  return write_placement(file);
}

namespace {

// Bytes [from, to) of a buffer during [lower, upper).
struct Piece {
  std::uint64_t lower, upper;
  std::int64_t from, to;
};
using Pieces = std::vector<Piece>;  // one buffer's, in order of time

Pieces pieces_of(const Buffer& buffer, const std::vector<Gap>& gaps, std::size_t unit) {
  const auto down = [&](std::size_t bytes) { return static_cast<std::int64_t>(bytes / unit * unit); };
  const auto up = [&](std::size_t bytes) { return down(bytes + unit - 1); };
  const auto fail = [&](const Gap& gap, const std::string& why) {
    throw ValueError("placement: gap [" + std::to_string(gap.lower) + ", " + std::to_string(gap.upper) +
                     ") of buffer " + std::to_string(buffer.id) + " " + why);
  };
  Pieces pieces;
  std::uint64_t at = buffer.lower;
  for (const Gap& gap : gaps) {
    if (gap.lower >= gap.upper) fail(gap, "is empty");
    if (gap.lower < at) fail(gap, "begins before " + std::to_string(at));
    if (gap.upper > buffer.upper) fail(gap, "ends after the lifetime");
    if (gap.from > gap.to || gap.to > buffer.bytes) fail(gap, "holds bytes that the buffer does not have");
    if (at < gap.lower) pieces.push_back({at, gap.lower, 0, up(buffer.bytes)});
    if (gap.from < gap.to) pieces.push_back({gap.lower, gap.upper, down(gap.from), up(gap.to)});
    at = gap.upper;
  }
  if (at < buffer.upper) pieces.push_back({at, buffer.upper, 0, up(buffer.bytes)});
  return pieces;
}

// Calls f(piece of a, piece of b) for the pairs that overlap in time.
template <class F>
void for_each_pair(const Pieces& a, const Pieces& b, F&& f) {
  for (std::size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    if (a[i].lower < b[k].upper && b[k].lower < a[i].upper) f(a[i], b[k]);
    a[i].upper < b[k].upper ? ++i : ++k;
  }
}

// The largest sum of bytes at any time.
std::int64_t load_of(const std::vector<Pieces>& all) {
  std::vector<std::pair<std::uint64_t, std::int64_t>> events;  // ends, which are negative, come first
  for (const Pieces& pieces : all) {
    for (const Piece& piece : pieces) {
      events.emplace_back(piece.lower, piece.to - piece.from);
      events.emplace_back(piece.upper, piece.from - piece.to);
    }
  }
  std::sort(events.begin(), events.end());
  std::int64_t live = 0, load = 0;
  for (const auto& [time, bytes] : events) load = std::max(load, live += bytes);
  return load;
}

class Placer {
 public:
  Placer(std::span<const Buffer> buffers, const std::vector<Pieces>& pieces, std::size_t unit)
      : buffers_(buffers), pieces_(pieces), unit_(unit) {}

  // Places the buffers in order, each at the lowest free offset.
  packing::Layout place(const std::vector<std::size_t>& order) const {
    packing::Layout layout;
    layout.offsets.resize(buffers_.size());
    std::vector<std::pair<std::int64_t, std::int64_t>> taken;  // open intervals of offsets that would overlap
    for (std::size_t at = 0; at < order.size(); ++at) {
      const std::size_t i = order[at];
      const auto alignment = static_cast<std::int64_t>(std::max(buffers_[i].alignment, unit_));
      taken.clear();
      for (std::size_t before = 0; before < at; ++before) {
        const std::size_t other = order[before];
        for_each_pair(pieces_[i], pieces_[other], [&](const Piece& own, const Piece& placed) {
          taken.emplace_back(layout.offsets[other] + placed.from - own.to,
                             layout.offsets[other] + placed.to - own.from);
        });
      }
      std::sort(taken.begin(), taken.end());
      std::int64_t offset = 0;
      for (const auto& [above, below] : taken) {
        if (offset <= above) break;
        if (offset < below) offset = packing::align_up(below, alignment);
      }
      layout.offsets[i] = offset;
      layout.height = std::max(layout.height, offset + size_of(i));
    }
    return layout;
  }

  std::int64_t size_of(std::size_t i) const {
    return packing::align_up(static_cast<std::int64_t>(buffers_[i].bytes), static_cast<std::int64_t>(unit_));
  }

 private:
  std::span<const Buffer> buffers_;
  const std::vector<Pieces>& pieces_;
  std::size_t unit_;
};

std::vector<Pieces> all_pieces(std::span<const Buffer> buffers, std::span<const std::vector<Gap>> gaps,
                               std::size_t unit) {
  if (gaps.size() != buffers.size()) {
    throw ValueError("placement: gaps of " + std::to_string(gaps.size()) + " buffers for " +
                     std::to_string(buffers.size()) + " buffers");
  }
  std::vector<Pieces> all;
  for (std::size_t i = 0; i < buffers.size(); ++i) all.push_back(pieces_of(buffers[i], gaps[i], unit));
  return all;
}

}  // namespace

Placement place_with_gaps(std::span<const Buffer> buffers, std::span<const std::vector<Gap>> gaps,
                          const PlacementOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  // Placing without gaps checks the arguments, and its offsets are valid for any gaps.
  PlacementOptions quick = options;
  quick.last_stage = PlacementStage::greedy;
  Placement result = memory::place(buffers, quick);
  const std::vector<Pieces> pieces = all_pieces(buffers, gaps, options.unit);
  const Placer placer(buffers, pieces, options.unit);
  packing::Budget budget(options.seconds, options.node_limit);
  result.load = static_cast<std::size_t>(load_of(pieces));
  const std::size_t target = std::max(result.load, options.capacity_bytes / options.unit * options.unit);
  std::vector<std::size_t> best(buffers.size());
  std::iota(best.begin(), best.end(), std::size_t{0});
  const auto try_order = [&](const std::vector<std::size_t>& order, PlacementStage stage) {
    const packing::Layout layout = placer.place(order);
    const auto height = static_cast<std::size_t>(layout.height);
    if (height > result.height) return;
    best = order;
    if (height == result.height) return;
    result.offsets.assign(layout.offsets.begin(), layout.offsets.end());
    result.height = height, result.stage = stage;
  };
  const auto by = [&](auto key) {
    std::vector<std::size_t> order(buffers.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key(a) > key(b); });
    return order;
  };
  const auto length = [&](std::size_t i) { return buffers[i].upper - buffers[i].lower; };
  for (const auto& order :
       {by([&](std::size_t i) { return buffers[i].bytes; }), by([&](std::size_t i) { return length(i); }),
        by([&](std::size_t i) { return static_cast<double>(length(i)) * static_cast<double>(buffers[i].bytes); }),
        by([&](std::size_t i) { return ~buffers[i].lower; })}) {
    if (result.height > target) try_order(order, PlacementStage::greedy);
  }
  std::mt19937_64 random(1);  // fixed seed: deterministic
  while (options.last_stage != PlacementStage::greedy && result.height > target && best.size() > 1 &&
         budget.spend(best.size())) {
    std::vector<std::size_t> order = best;
    const packing::Layout layout = placer.place(order);
    const auto ends = [&](std::size_t i) { return layout.offsets[i] + placer.size_of(i); };
    const auto top =
        std::max_element(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return ends(a) < ends(b); });
    const auto moved = random() % 2 == 0 ? top : order.begin() + static_cast<std::ptrdiff_t>(random() % order.size());
    const auto to =
        order.begin() + static_cast<std::ptrdiff_t>(random() % (static_cast<std::size_t>(moved - order.begin()) + 1));
    std::rotate(to, moved, moved + 1);
    try_order(order, PlacementStage::improvement);
  }
  result.is_optimal = result.height == result.load;
  result.nodes = budget.nodes();
  result.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return result;
}

void check_placement_with_gaps(std::span<const Buffer> buffers, std::span<const std::vector<Gap>> gaps,
                               std::span<const std::size_t> offsets, std::size_t height_bytes) {
  const std::vector<Pieces> pieces = all_pieces(buffers, gaps, 1);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    // A single buffer has no neighbours: this checks its alignment and its end.
    check_placement(buffers.subspan(i, 1), offsets.subspan(i, 1), height_bytes);
    for (std::size_t k = 0; k < i; ++k) {
      for_each_pair(pieces[i], pieces[k], [&](const Piece& a, const Piece& b) {
        const auto at_i = static_cast<std::int64_t>(offsets[i]), at_k = static_cast<std::int64_t>(offsets[k]);
        if (at_i + a.from >= at_k + b.to || at_k + b.from >= at_i + a.to) return;
        throw PlanError("placement: buffer " + std::to_string(buffers[i].id) + " at " + std::to_string(offsets[i]) +
                        " overlaps buffer " + std::to_string(buffers[k].id) + " at " + std::to_string(offsets[k]));
      });
    }
  }
}

}  // namespace thimble::memory
