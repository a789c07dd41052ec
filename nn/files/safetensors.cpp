#include <thimble/nn/files/safetensors.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/crc32c.h>
#include <thimble/nn/files/json_events.h>

namespace thimble {

namespace {

// No element has all bits of `mask`, the exponent: NaN and infinity set all of its bits.
template <class Bits>
bool none_has(Bits mask, std::span<const std::byte> bytes) noexcept {
  bool is_found = false;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(Bits)) {
    Bits element;
    std::memcpy(&element, bytes.data() + at, sizeof element);
    is_found |= (element & mask) == mask;
  }
  return !is_found;
}

constexpr std::size_t digit_count = 8;
constexpr std::string_view zero_digits = "00000000";

std::string digits_of(std::uint32_t sum) {
  std::string text;
  for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[sum >> shift & 15];
  return text;
}

// The offset of the key's value in a header written here, or npos. Inside a JSON string a quote has a backslash before
// it, so nothing else matches.
std::size_t find_value(std::string_view formatted) {
  const std::string before = '"' + std::string(safetensors_sums_key) + "\":\"";
  const std::size_t at = formatted.find(before);
  return at == std::string_view::npos ? at : at + before.size();
}

std::uint32_t header_sum(std::string_view formatted, std::size_t value) {
  std::uint32_t sum = crc32c(formatted.substr(0, value));
  sum = crc32c(zero_digits, sum);
  return crc32c(formatted.substr(value + digit_count), sum);
}

std::vector<std::size_t> order_by_name(const std::vector<SafetensorsEntry>& tensors) {
  std::vector<std::size_t> order(tensors.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return tensors[a].name < tensors[b].name; });
  return order;
}

// ---- The header's JSON, read event by event: a document tree would accept repeated keys and any depth of a hostile
// file.

SafetensorsDType parse_name(const std::string& name, bool& is_known) {
  for (int i = 0; i <= static_cast<int>(SafetensorsDType::u64); ++i)
    if (to_string(static_cast<SafetensorsDType>(i)) == name) return static_cast<SafetensorsDType>(i);
  is_known = false;
  return SafetensorsDType::u8;
}

std::string allowed_names() {
  std::string text;
  for (int i = 0; i <= static_cast<int>(SafetensorsDType::u64); ++i)
    text += (i == 0 ? "" : ", ") + std::string(to_string(static_cast<SafetensorsDType>(i)));
  return text;
}

// Receives the parser's events. The header has a fixed form, so the only state is the place in it:
// { "__metadata__": {"k": "v"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} }
class HeaderEvents final : public JsonEvents {
 public:
  HeaderEvents(const std::string& path, const std::uint64_t& count) : path_(path), count_(count) {}

  SafetensorsHeader take() && { return std::move(header_); }

  void other(const std::string& found) override { unexpected(found); }

  void unsigned_number(std::uint64_t value) override {
    if (place_ == Place::shape) return add_size(value);
    if (place_ == Place::offsets) return add_offset(value);
    unexpected("a number");
  }

  void string(std::string& value) override {
    if (place_ == Place::metadata) {
      header_.metadata[key_] = std::move(value);
      return;
    }
    if (place_ != Place::entry || key_ != "dtype") unexpected("a string");
    bool is_known = true;
    entry_.dtype = parse_name(value, is_known);
    if (!is_known)
      fail("tensor " + quote(entry_.name) + " has the unknown dtype " + quote(value) + "; known: " + allowed_names());
  }

  void begin_object() override {
    if (place_ == Place::outside) {
      place_ = Place::top;
    } else if (place_ == Place::top && key_ == "__metadata__") {
      place_ = Place::metadata;
    } else if (place_ == Place::top) {
      place_ = Place::entry;
      entry_ = {};
      entry_.name = key_;
      has_ = {};
      offsets_ = 0;
    } else {
      unexpected("an object");
    }
  }

  void key(std::string& name) override {
    if (place_ == Place::top) {
      if (name == "__metadata__") {
        if (has_metadata_) fail("key '__metadata__' is there twice");
        has_metadata_ = true;
      }
    } else if (place_ == Place::metadata) {
      if (header_.metadata.count(name) != 0) fail("key " + quote(name) + " is there twice in __metadata__");
    } else {
      const auto* field = std::find(fields.begin(), fields.end(), name);
      if (field == fields.end())
        fail("tensor " + quote(entry_.name) + " has the unknown key " + quote(name) +
             "; expected dtype, shape, data_offsets");
      bool& has = has_[static_cast<std::size_t>(field - fields.begin())];
      if (has) fail("key " + quote(name) + " is there twice in tensor " + quote(entry_.name));
      has = true;
    }
    key_ = std::move(name);
  }

  void end_object() override {
    if (place_ == Place::entry) {
      for (std::size_t i = 0; i < fields.size(); ++i)
        if (!has_[i]) fail("tensor " + quote(entry_.name) + " has no " + std::string(fields[i]));
      header_.tensors.push_back(std::move(entry_));
    }
    place_ = place_ == Place::top ? Place::outside : Place::top;
  }

  void begin_array() override {
    if (place_ != Place::entry || key_ == "dtype") unexpected("an array");
    place_ = key_ == "shape" ? Place::shape : Place::offsets;
  }

  void end_array() override {
    if (place_ == Place::offsets && offsets_ != 2)
      fail("data_offsets of tensor " + quote(entry_.name) + " are not two numbers");
    place_ = Place::entry;
  }

  [[noreturn]] void invalid(const std::string& token) override {
    fail("the header is not valid JSON near " + quote(token));
  }

 private:
  enum class Place : std::uint8_t { outside, top, metadata, entry, shape, offsets };
  static constexpr std::array<std::string_view, 3> fields{"dtype", "shape", "data_offsets"};

  [[noreturn]] void fail(const std::string& why) const { throw FileError(path_, 8 + count_, why); }

  // Throws with the value that was expected here.
  [[noreturn]] void unexpected(const std::string& found) const {
    switch (place_) {
      case Place::outside:
        fail("the header is not an object: found " + found);
      case Place::top:
        fail("key " + quote(key_) + ": expected an object, found " + found);
      case Place::metadata:
        fail("key " + quote(key_) + " of __metadata__: expected a string, found " + found);
      default:
        fail("tensor " + quote(entry_.name) + ": found " + found + " in " + key_);
    }
  }

  void add_size(std::uint64_t value) {
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      fail("the shape of tensor " + quote(entry_.name) + " has a size above 2^63 - 1");
    if (entry_.shape.size() == safetensors_rank_limit)
      fail("the shape of tensor " + quote(entry_.name) + " has more than " + std::to_string(safetensors_rank_limit) +
           " sizes");
    entry_.shape.push_back(static_cast<std::int64_t>(value));
  }

  void add_offset(std::uint64_t value) {
    if (offsets_ == 2) fail("data_offsets of tensor " + quote(entry_.name) + " are not two numbers");
    (offsets_++ == 0 ? entry_.begin : entry_.end) = value;
  }

  const std::string& path_;
  const std::uint64_t& count_;
  SafetensorsHeader header_;
  Place place_ = Place::outside;
  std::string key_;
  SafetensorsEntry entry_;
  std::array<bool, 3> has_{};
  int offsets_ = 0;
  bool has_metadata_ = false;
};

// The ranges, sorted, must tile the data; each must have the bytes of its shape.
void check_ranges(const SafetensorsHeader& header, std::uint64_t data_bytes, const std::string& path) {
  std::uint64_t covered = 0;
  for (const SafetensorsEntry& entry : header.tensors) {
    const auto fail = [&](const std::string& why) {
      throw FileError(path, header.data_offset + covered, "tensor " + quote(entry.name) + why);
    };
    const std::string range = "[" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + ")";
    if (entry.begin > entry.end) fail(": data_offsets " + range + " run backwards");
    if (entry.end > data_bytes)
      fail(": data_offsets " + range + " end after the file's " + std::to_string(data_bytes) + " bytes of data");
    const std::optional<std::uint64_t> bytes = checked_bytes(entry.shape, size_of(entry.dtype));
    if (!bytes) fail(": the shape has more than 2^63 - 1 bytes");
    if (*bytes != entry.end - entry.begin)
      fail(": data_offsets " + range + " are " + std::to_string(entry.end - entry.begin) +
           " bytes, shape and dtype need " + std::to_string(*bytes));
    if (entry.begin > covered)
      fail(": data_offsets " + range + " leave a hole after byte " + std::to_string(covered) + " of the data");
    if (entry.begin < covered)
      fail(": data_offsets " + range + " overlap the tensor that ends at byte " + std::to_string(covered));
    covered = entry.end;
  }
  if (covered != data_bytes)
    throw FileError(path, header.data_offset + covered,
                    std::to_string(data_bytes - covered) + " bytes after the last tensor");
}

static_assert(std::endian::native == std::endian::little, "elements are read and written as they lie in memory");

struct Row {
  std::string_view name;
  std::size_t bytes;
  std::optional<DType> ours;
};
constexpr std::array<Row, 15> rows{{{"BOOL", 1, DType::boolean},
                                    {"U8", 1, DType::u8},
                                    {"I8", 1, DType::i8},
                                    {"F8_E5M2", 1, DType::f8e5m2},
                                    {"F8_E4M3", 1, DType::f8e4m3},
                                    {"I16", 2, std::nullopt},
                                    {"U16", 2, std::nullopt},
                                    {"F16", 2, DType::f16},
                                    {"BF16", 2, DType::bf16},
                                    {"I32", 4, DType::i32},
                                    {"U32", 4, std::nullopt},
                                    {"F32", 4, DType::f32},
                                    {"F64", 8, DType::f64},
                                    {"I64", 8, DType::i64},
                                    {"U64", 8, std::nullopt}}};

constexpr const Row& row(SafetensorsDType dtype) { return rows[static_cast<std::size_t>(dtype)]; }

// Text as a JSON string. Throws ValueError when it is not UTF-8.
std::string utf8_json(const std::string& text) {
  if (std::optional<std::string> json = json_string(text)) return *std::move(json);
  throw ValueError("safetensors: " + quote(text) + " is not UTF-8 text");
}

void require_header_bytes(std::uint64_t bytes) {
  if (bytes > safetensors_header_limit)
    throw ValueError("safetensors: the header would have at least " + std::to_string(bytes) +
                     " bytes; expected at most " + std::to_string(safetensors_header_limit));
}

template <class Sizes>
std::string json_array(const Sizes& sizes) {
  std::string text = "[";
  for (const auto size : sizes) text += (text.size() == 1 ? "" : ",") + std::to_string(size);
  return text + "]";
}

std::vector<std::byte> read_start(const InputFile& file) {
  std::array<std::byte, 8> length;
  const std::size_t available = static_cast<std::size_t>(std::min<std::uint64_t>(file.bytes(), length.size()));
  file.read(0, std::span(length).first(available));
  const std::uint64_t bytes = safetensors_header_bytes(std::span(length).first(available), file.bytes(), file.path());
  std::vector<std::byte> start(static_cast<std::size_t>(bytes));
  file.read(0, start);
  return start;
}

SafetensorsHeader lay_out_with_sums(std::vector<SafetensorsEntry> tensors,
                                    std::map<std::string, std::string> metadata) {
  for (SafetensorsEntry& entry : tensors) entry.crc32c = 0;  // commit() overwrites it
  return lay_out_safetensors(std::move(tensors), std::move(metadata));
}

}  // namespace

bool all_finite(SafetensorsDType dtype, std::span<const std::byte> bytes) noexcept {
  switch (dtype) {
    case SafetensorsDType::f64:
      return none_has(std::uint64_t{0x7FF0'0000'0000'0000}, bytes);
    case SafetensorsDType::f32:
      return none_has(std::uint32_t{0x7F80'0000}, bytes);
    case SafetensorsDType::bf16:
      return none_has(std::uint16_t{0x7F80}, bytes);
    case SafetensorsDType::f16:
      return none_has(std::uint16_t{0x7C00}, bytes);
    case SafetensorsDType::f8_e5m2:
      return none_has(std::uint8_t{0x7C}, bytes);
    case SafetensorsDType::f8_e4m3:
      return none_has(std::uint8_t{0x7F}, bytes);  // has no infinity
    default:
      return true;
  }
}

bool has_sums(const SafetensorsHeader& header) noexcept {
  const auto& tensors = header.tensors;
  return !tensors.empty() &&
         std::all_of(tensors.begin(), tensors.end(), [](const SafetensorsEntry& e) { return e.crc32c.has_value(); });
}

std::string format_sums(const SafetensorsHeader& header) {
  std::string text(zero_digits);
  for (const std::size_t i : order_by_name(header.tensors)) text += digits_of(*header.tensors[i].crc32c);
  return text;
}

void put_header_sum(std::string& formatted) {
  const std::size_t at = find_value(formatted);
  if (at == std::string::npos) return;
  formatted.replace(at, digit_count, digits_of(header_sum(formatted, at)));
}

void take_sums(SafetensorsHeader& header, std::span<const std::byte> formatted, const std::string& path) {
  const auto found = header.metadata.find(std::string(safetensors_sums_key));
  if (found == header.metadata.end()) return;
  const std::string text = std::move(found->second);
  header.metadata.erase(found);
  const auto fail = [&](const std::string& why) {
    throw FileError(path, 8, "the metadata's " + std::string(safetensors_sums_key) + " " + why);
  };
  if (text.size() != digit_count * (1 + header.tensors.size()) ||
      text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    fail("is no " + std::to_string(digit_count) + " hexadecimal digits for the header and each of " +
         std::to_string(header.tensors.size()) + " tensors");
  }
  const auto sum_at = [&](std::size_t i) {
    std::uint32_t sum = 0;
    const char* const first = text.data() + digit_count * i;
    std::from_chars(first, first + digit_count, sum, 16);
    return sum;
  };
  const std::string_view bytes(reinterpret_cast<const char*>(formatted.data()), formatted.size());
  const std::size_t value = find_value(bytes);
  if (value == std::string_view::npos || value + digit_count > bytes.size() || header_sum(bytes, value) != sum_at(0)) {
    fail("is not that of this header: it was changed after it was written");
  }
  const std::vector<std::size_t> order = order_by_name(header.tensors);
  for (std::size_t i = 0; i < order.size(); ++i) header.tensors[order[i]].crc32c = sum_at(1 + i);
}

void check_sum(const SafetensorsEntry& entry, std::uint32_t sum, const std::string& path, std::uint64_t offset) {
  if (!entry.crc32c || *entry.crc32c == sum) return;
  throw FileError(path, offset,
                  "tensor " + quote(entry.name) + " has the checksum " + digits_of(sum) + ", it was written with " +
                      digits_of(*entry.crc32c) + ": its bytes have changed");
}

std::uint64_t safetensors_header_bytes(std::span<const std::byte> start, std::uint64_t file_bytes,
                                       const std::string& path) {
  if (start.size() < 8 || file_bytes < 8)
    throw FileError(path, std::min<std::uint64_t>(start.size(), file_bytes),
                    "the file ends inside the header's length");
  const auto length = load_le<std::uint64_t>(start.data());
  if (length > safetensors_header_limit)
    throw FileError(path, 0,
                    "the header has " + std::to_string(length) + " bytes; expected at most " +
                        std::to_string(safetensors_header_limit) + ", as in a safetensors file");
  if (length > file_bytes - 8)
    throw FileError(
        path, 0,
        "the header has " + std::to_string(length) + " bytes, the file ends at byte " + std::to_string(file_bytes));
  return 8 + length;
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> start, std::uint64_t file_bytes,
                                    const std::string& path) {
  const std::uint64_t data_offset = safetensors_header_bytes(start, file_bytes, path);
  if (data_offset > start.size()) throw FileError(path, start.size(), "the header is not within the bytes given");
  const auto* text = reinterpret_cast<const char*>(start.data()) + 8;
  const std::size_t length = static_cast<std::size_t>(data_offset) - 8;
  if (length == 0 || text[0] != '{') throw FileError(path, 8, "the header does not begin with '{'");
  if (const void* nul = std::memchr(text, 0, length))
    throw FileError(path, 8 + static_cast<std::uint64_t>(static_cast<const char*>(nul) - text),
                    "the header has a NUL byte");

  std::uint64_t count = 0;
  HeaderEvents events(path, count);
  read_json({text, length}, count, events);
  SafetensorsHeader header = std::move(events).take();
  header.data_offset = data_offset;
  std::sort(header.tensors.begin(), header.tensors.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  if (const std::string* twice = header.index_names())
    throw FileError(path, 8, "tensor " + quote(*twice) + " is there twice");
  check_ranges(header, file_bytes - data_offset, path);
  take_sums(header, start.first(static_cast<std::size_t>(data_offset)), path);
  return header;
}

std::string_view to_string(SafetensorsDType dtype) noexcept { return row(dtype).name; }

std::size_t size_of(SafetensorsDType dtype) noexcept { return row(dtype).bytes; }

SafetensorsDType to_safetensors_dtype(DType dtype) noexcept {
  const auto* found = std::find_if(rows.begin(), rows.end(), [&](const auto& row) { return row.ours == dtype; });
  return static_cast<SafetensorsDType>(found - rows.begin());
}

std::optional<DType> to_dtype(SafetensorsDType dtype) noexcept { return row(dtype).ours; }

DType loadable_dtype(const SafetensorsEntry& entry) {
  if (const std::optional<DType> dtype = to_dtype(entry.dtype)) return *dtype;
  std::string allowed;
  for (const auto& row : rows)
    if (row.ours) allowed += (allowed.empty() ? "" : ", ") + std::string(row.name);
  throw DTypeError("safetensors: tensor " + quote(entry.name) + " has dtype " + std::string(to_string(entry.dtype)) +
                   ", which cannot be loaded; expected " + allowed);
}

const SafetensorsEntry* SafetensorsHeader::find(std::string_view name) const noexcept {
  const auto found = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                      [&](std::uint32_t i, std::string_view n) { return tensors[i].name < n; });
  return found != by_name_.end() && tensors[*found].name == name ? &tensors[*found] : nullptr;
}

const std::string* SafetensorsHeader::index_names() {
  by_name_.resize(tensors.size());
  std::iota(by_name_.begin(), by_name_.end(), 0U);
  std::sort(by_name_.begin(), by_name_.end(),
            [&](std::uint32_t a, std::uint32_t b) { return tensors[a].name < tensors[b].name; });
  for (std::size_t i = 1; i < by_name_.size(); ++i)
    if (tensors[by_name_[i]].name == tensors[by_name_[i - 1]].name) return &tensors[by_name_[i]].name;
  return nullptr;
}

SafetensorsHeader lay_out_safetensors(std::vector<SafetensorsEntry> tensors,
                                      std::map<std::string, std::string> metadata) {
  SafetensorsHeader header;
  header.tensors = std::move(tensors);
  header.metadata = std::move(metadata);
  std::sort(header.tensors.begin(), header.tensors.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  std::uint64_t offset = 0;
  for (SafetensorsEntry& entry : header.tensors) {
    if (entry.name == "__metadata__") throw ValueError("safetensors: a tensor cannot be named '__metadata__'");
    const std::optional<std::uint64_t> bytes = checked_bytes(entry.shape, size_of(entry.dtype));
    if (!bytes || entry.shape.size() > safetensors_rank_limit || offset + *bytes > INT64_MAX)
      throw ShapeError("safetensors: the shape of tensor " + quote(entry.name) + " has a negative size, more than " +
                       std::to_string(safetensors_rank_limit) + " sizes or more than 2^63 - 1 bytes");
    entry.begin = offset;
    entry.end = offset += *bytes;
  }
  if (const std::string* twice = header.index_names())
    throw ValueError("safetensors: tensor " + quote(*twice) + " is there twice");
  header.data_offset = format_safetensors_header(header).size();
  return header;
}

std::string format_safetensors_header(const SafetensorsHeader& header) {
  std::map<std::string, std::string> metadata = header.metadata;
  const std::string sums_key(safetensors_sums_key);
  if (metadata.count(sums_key) != 0) throw ValueError("safetensors: metadata key " + quote(sums_key) + " is taken");
  if (has_sums(header)) metadata[sums_key] = format_sums(header);
  std::uint64_t least = 0;  // bytes of the text, before JSON adds more
  for (const auto& [key, value] : metadata) least += key.size() + value.size();
  for (const SafetensorsEntry& entry : header.tensors) least += entry.name.size();
  require_header_bytes(least);
  std::string text = "{";
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    bool is_first = true;
    for (const auto& [key, value] : metadata) {
      text += (is_first ? "" : ",") + utf8_json(key) + ":" + utf8_json(value);
      is_first = false;
    }
    text += "}";
  }
  for (const SafetensorsEntry& entry : header.tensors) {
    text += (text.size() == 1 ? "" : ",") + utf8_json(entry.name) + ":{\"dtype\":\"" +
            std::string(to_string(entry.dtype)) + "\",\"shape\":" + json_array(entry.shape) +
            ",\"data_offsets\":" + json_array(std::array{entry.begin, entry.end}) + "}";
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  require_header_bytes(text.size());
  std::array<std::byte, 8> length;
  store_le<std::uint64_t>(text.size(), length.data());
  text.insert(0, reinterpret_cast<const char*>(length.data()), length.size());
  if (has_sums(header)) put_header_sum(text);
  return text;
}

SafetensorsReader::SafetensorsReader(const std::string& path)
    : file_(path), header_(parse_safetensors(read_start(file_), file_.bytes(), path)) {}

const SafetensorsEntry& SafetensorsReader::entry(std::string_view name) const {
  if (const SafetensorsEntry* found = header_.find(name)) return *found;
  throw FileError(path(), 8, "there is no tensor " + quote(name) + " in this file");
}

void SafetensorsReader::read(const SafetensorsEntry& entry, std::span<std::byte> out) const {
  if (out.size() != entry.bytes())
    throw ShapeError("safetensors: room for " + std::to_string(out.size()) + " bytes, tensor " + quote(entry.name) +
                     " has " + std::to_string(entry.bytes()));
  read_part(entry, 0, out);
}

void SafetensorsReader::read_part(const SafetensorsEntry& entry, std::uint64_t first, std::span<std::byte> out) const {
  if (first > entry.bytes() || out.size() > entry.bytes() - first)
    throw ShapeError("safetensors: bytes " + std::to_string(first) + " to " + std::to_string(first + out.size()) +
                     " wanted, tensor " + quote(entry.name) + " has " + std::to_string(entry.bytes()));
  const std::uint64_t offset = header_.data_offset + entry.begin + first;
  file_.read(offset, out);
  if (out.size() == entry.bytes() && entry.crc32c) check_sum(entry, crc32c(out), path(), offset);
  if (entry.dtype != SafetensorsDType::boolean) return;
  const std::size_t bad = find_invalid_bool(out);
  if (bad < out.size())
    throw FileError(path(), offset + bad, "tensor " + quote(entry.name) + " has a BOOL that is neither 0 nor 1");
}

void SafetensorsReader::verify(const SafetensorsEntry& entry) const {
  if (!entry.crc32c) return;
  std::vector<std::byte> piece(std::min<std::uint64_t>(entry.bytes(), std::uint64_t{1} << 18));
  const std::uint64_t begin = header_.data_offset + entry.begin;
  std::uint32_t sum = 0;
  for (std::uint64_t at = 0; at < entry.bytes(); at += piece.size()) {
    const auto part = std::span(piece).first(std::min<std::uint64_t>(piece.size(), entry.bytes() - at));
    file_.read(begin + at, part);
    sum = crc32c(part, sum);
  }
  check_sum(entry, sum, path(), begin);
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<SafetensorsEntry> tensors,
                                     std::map<std::string, std::string> metadata)
    : header_(lay_out_with_sums(std::move(tensors), std::move(metadata))),
      file_(path),
      progress_(header_.tensors.size()) {
  file_.write(format_safetensors_header(header_));
}

void SafetensorsWriter::look_at_numbers(const SafetensorsEntry& entry, Progress& progress,
                                        std::span<const std::byte> bytes) {
  const std::size_t size = size_of(entry.dtype);
  bool is_finite = true;
  // A piece may end inside an element. The next piece begins with the rest of it.
  std::size_t cut = static_cast<std::size_t>(progress.bytes % size);
  for (; cut > 0 && !bytes.empty(); bytes = bytes.subspan(1)) {
    progress.cut[cut++] = bytes[0];
    if (cut < size) continue;
    is_finite = all_finite(entry.dtype, std::span(progress.cut).first(size));
    cut = 0;
  }
  const std::size_t rest = bytes.size() % size;
  is_finite = is_finite && all_finite(entry.dtype, bytes.first(bytes.size() - rest));
  if (cut == 0) std::copy(bytes.end() - static_cast<std::ptrdiff_t>(rest), bytes.end(), progress.cut.begin());
  if (!is_finite && not_finite_.empty()) not_finite_ = entry.name;
}

void SafetensorsWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  const SafetensorsEntry* entry = header_.find(name);
  if (entry == nullptr) throw ValueError("safetensors: no tensor " + quote(name) + " was announced for this file");
  Progress& progress = progress_[static_cast<std::size_t>(entry - header_.tensors.data())];
  if (bytes.size() > entry->bytes() - progress.bytes)
    throw ValueError("safetensors: tensor " + quote(name) + " has " + std::to_string(entry->bytes()) + " bytes, got " +
                     std::to_string(progress.bytes) + " and then " + std::to_string(bytes.size()));
  file_.write(header_.data_offset + entry->begin + progress.bytes, bytes);
  look_at_numbers(*entry, progress, bytes);
  progress.crc32c = crc32c(bytes, progress.crc32c);
  progress.bytes += bytes.size();
}

void SafetensorsWriter::commit() {
  for (std::size_t i = 0; i < progress_.size(); ++i) {
    SafetensorsEntry& entry = header_.tensors[i];
    if (progress_[i].bytes != entry.bytes())
      throw ValueError("safetensors: tensor " + quote(entry.name) + " has " + std::to_string(entry.bytes()) +
                       " bytes, only " + std::to_string(progress_[i].bytes) + " were written");
    entry.crc32c = progress_[i].crc32c;
  }
  file_.write(0, bytes_of(format_safetensors_header(header_)));
  file_.commit();
}

}  // namespace thimble
