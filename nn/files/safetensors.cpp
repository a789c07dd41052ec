#include <thimble/nn/files/safetensors.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/crc32c.h>
#include <thimble/nn/files/finite_bytes.h>
#include <thimble/nn/files/json_events.h>
#include <thimble/nn/files/safetensors_sums.h>

namespace thimble {

namespace safetensors_detail {

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
                     " bytes; allowed: at most " + std::to_string(safetensors_header_limit));
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

}  // namespace safetensors_detail

std::string_view to_string(SafetensorsDType dtype) noexcept { return safetensors_detail::row(dtype).name; }

std::size_t size_of(SafetensorsDType dtype) noexcept { return safetensors_detail::row(dtype).bytes; }

SafetensorsDType to_safetensors_dtype(DType dtype) noexcept {
  const auto& rows = safetensors_detail::rows;
  const auto* found = std::find_if(rows.begin(), rows.end(), [&](const auto& row) { return row.ours == dtype; });
  return static_cast<SafetensorsDType>(found - rows.begin());
}

std::optional<DType> to_dtype(SafetensorsDType dtype) noexcept { return safetensors_detail::row(dtype).ours; }

DType loadable_dtype(const SafetensorsEntry& entry) {
  if (const std::optional<DType> dtype = to_dtype(entry.dtype)) return *dtype;
  std::string allowed;
  for (const auto& row : safetensors_detail::rows)
    if (row.ours) allowed += (allowed.empty() ? "" : ", ") + std::string(row.name);
  throw DTypeError("safetensors: tensor " + quote(entry.name) + " has dtype " + std::string(to_string(entry.dtype)) +
                   ", which cannot be loaded; allowed: " + allowed);
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
  std::uint64_t least = 0;  // text alone, before it is turned into JSON
  for (const auto& [key, value] : metadata) least += key.size() + value.size();
  for (const SafetensorsEntry& entry : header.tensors) least += entry.name.size();
  safetensors_detail::require_header_bytes(least);
  std::string text = "{";
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    bool is_first = true;
    for (const auto& [key, value] : metadata) {
      text += (is_first ? "" : ",") + safetensors_detail::utf8_json(key) + ":" + safetensors_detail::utf8_json(value);
      is_first = false;
    }
    text += "}";
  }
  for (const SafetensorsEntry& entry : header.tensors) {
    text += (text.size() == 1 ? "" : ",") + safetensors_detail::utf8_json(entry.name) + ":{\"dtype\":\"" +
            std::string(to_string(entry.dtype)) + "\",\"shape\":" + safetensors_detail::json_array(entry.shape) +
            ",\"data_offsets\":" + safetensors_detail::json_array(std::array{entry.begin, entry.end}) + "}";
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  safetensors_detail::require_header_bytes(text.size());
  std::array<std::byte, 8> length;
  store_le<std::uint64_t>(text.size(), length.data());
  text.insert(0, reinterpret_cast<const char*>(length.data()), length.size());
  if (has_sums(header)) put_header_sum(text);
  return text;
}

SafetensorsReader::SafetensorsReader(const std::string& path)
    : file_(path), header_(parse_safetensors(safetensors_detail::read_start(file_), file_.bytes(), path)) {}

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

namespace safetensors_detail {

SafetensorsHeader lay_out_with_sums(std::vector<SafetensorsEntry> tensors,
                                    std::map<std::string, std::string> metadata) {
  for (SafetensorsEntry& entry : tensors) entry.crc32c = 0;  // room for what commit() writes
  return lay_out_safetensors(std::move(tensors), std::move(metadata));
}

}  // namespace safetensors_detail

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<SafetensorsEntry> tensors,
                                     std::map<std::string, std::string> metadata)
    : header_(safetensors_detail::lay_out_with_sums(std::move(tensors), std::move(metadata))),
      file_(path),
      progress_(header_.tensors.size()) {
  file_.write(format_safetensors_header(header_));
}

void SafetensorsWriter::look_at_numbers(const SafetensorsEntry& entry, Progress& progress,
                                        std::span<const std::byte> bytes) {
  const std::size_t size = size_of(entry.dtype);
  bool is_finite = true;
  // Pieces may end inside of an element; the next one begins with the rest of it.
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
