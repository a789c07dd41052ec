// The header's JSON, read event by event: a document tree would accept a key that is there twice, and would build
// whatever depth a hostile file asks for.

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/nn/files/json_events.h>
#include <thimble/nn/files/safetensors.h>
#include <thimble/nn/files/safetensors_sums.h>

namespace thimble {

namespace safetensors_parse_detail {

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

// Receives the parser's events. The header has a fixed form, so the place in it is all the state there is:
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
             "; allowed: dtype, shape, data_offsets");
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

  // Which value was expected where another kind stands.
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

}  // namespace safetensors_parse_detail

std::uint64_t safetensors_header_bytes(std::span<const std::byte> start, std::uint64_t file_bytes,
                                       const std::string& path) {
  if (start.size() < 8 || file_bytes < 8)
    throw FileError(path, std::min<std::uint64_t>(start.size(), file_bytes),
                    "the file ends inside the header's length");
  const auto length = load_le<std::uint64_t>(start.data());
  if (length > safetensors_header_limit)
    throw FileError(path, 0,
                    "the header has " + std::to_string(length) + " bytes; allowed: at most " +
                        std::to_string(safetensors_header_limit));
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
  safetensors_parse_detail::HeaderEvents events(path, count);
  read_json({text, length}, count, events);
  SafetensorsHeader header = std::move(events).take();
  header.data_offset = data_offset;
  std::sort(header.tensors.begin(), header.tensors.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  if (const std::string* twice = header.index_names())
    throw FileError(path, 8, "tensor " + quote(*twice) + " is there twice");
  safetensors_parse_detail::check_ranges(header, file_bytes - data_offset, path);
  take_sums(header, start.first(static_cast<std::size_t>(data_offset)), path);
  return header;
}

}  // namespace thimble
