#include <thimble/core/files/npy.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>
#include <string_view>
#include <type_traits>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/file.h>
#include <thimble/core/files/file_stream.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/shape.h>

namespace thimble {

namespace {

static_assert(std::endian::native == std::endian::little, "elements are read and written as they lie in memory");

constexpr std::string_view magic = "\x93NUMPY";
constexpr std::size_t header_limit = 65536;
constexpr std::size_t longest_prefix = 12;  // magic, version, u32 length

struct Descr {
  std::string_view text;
  DType dtype;
  bool is_unsigned = false;  ///< has half of the dtype's bytes
};
constexpr std::array<Descr, 10> descrs{{{"<f8", DType::f64},
                                        {"<f4", DType::f32},
                                        {"<f2", DType::f16},
                                        {"<i8", DType::i64},
                                        {"<i4", DType::i32},
                                        {"|i1", DType::i8},
                                        {"|u1", DType::u8},
                                        {"|b1", DType::boolean},
                                        {"<u2", DType::i32, true},
                                        {"<u4", DType::i64, true}}};

std::string allowed_descrs() {
  std::string text;
  for (const Descr& descr : descrs) text += (text.empty() ? "'" : ", '") + std::string(descr.text) + "'";
  return text;
}

// Reads a Python dict like {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }. A value is a quoted string,
// True or False, or a tuple of integers.
class DictReader {
 public:
  DictReader(std::string_view text, std::uint64_t offset, const std::string& path)
      : text_(text), offset_(offset), path_(path) {}

  NpyHeader read() {
    if (text_.empty() || text_.back() != '\n') fail(text_.size(), "the header does not end in a newline");
    expect('{');
    while (!accept('}')) {
      const std::size_t at = at_;
      const std::string_view key = quoted_text();
      expect(':');
      read_value(key, at);
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_spaces();
    if (at_ != text_.size()) fail(at_, "bytes after the header's dict");
    if (!has_descr_) fail(0, "the header has no 'descr'");
    if (!has_order_) fail(0, "the header has no 'fortran_order'");
    if (!has_shape_) fail(0, "the header has no 'shape'");
    if (is_fortran_at_ != 0 && header_.shape.size() > 1) {
      fail(is_fortran_at_, "fortran_order is True (column-major); save it with numpy.ascontiguousarray");
    }
    return header_;
  }

 private:
  [[noreturn]] void fail(std::size_t at, const std::string& why) const { throw FileError(path_, offset_ + at, why); }

  void read_value(std::string_view key, std::size_t at) {
    bool* seen = key == "descr"           ? &has_descr_
                 : key == "fortran_order" ? &has_order_
                 : key == "shape"         ? &has_shape_
                                          : nullptr;
    if (seen == nullptr) fail(at, "unknown key " + quote(key) + "; expected 'descr', 'fortran_order', 'shape'");
    if (*seen) fail(at, "key " + quote(key) + " is there twice");
    *seen = true;
    if (seen == &has_descr_) read_descr();
    if (seen == &has_order_) read_order();
    if (seen == &has_shape_) read_shape();
  }

  void read_descr() {
    skip_spaces();
    const std::size_t at = at_;
    if (at_ < text_.size() && text_[at_] == '[') fail(at, "structured element types are not supported");
    const std::string_view text = quoted_text();
    const bool has_order = !text.empty() && std::string_view("<>=").find(text[0]) != std::string_view::npos;
    const auto is_meant = [&](const Descr& d) {  // one byte has no order
      return d.text == text || (has_order && d.text[0] == '|' && d.text.substr(1) == text.substr(1));
    };
    const auto* found = std::find_if(descrs.begin(), descrs.end(), is_meant);
    if (found == descrs.end()) {
      const bool is_big = !text.empty() && text[0] == '>';
      fail(at, (is_big ? "big-endian " : "") + ("element type " + quote(text)) + " is not supported; expected " +
                   allowed_descrs() + (is_big ? "; save it with astype('<" + std::string(text.substr(1)) + "')" : ""));
    }
    header_.dtype = found->dtype;
    header_.is_unsigned = found->is_unsigned;
  }

  void read_order() {
    skip_spaces();
    if (text_.substr(at_).starts_with("True")) {
      is_fortran_at_ = at_;
      at_ += 4;
      return;
    }
    if (!text_.substr(at_).starts_with("False")) fail(at_, "fortran_order is neither True nor False");
    at_ += 5;
  }

  void read_shape() {
    expect('(');
    bool has_comma = true;
    while (!accept(')')) {
      const std::size_t at = at_;
      if (!has_comma) fail(at, "expected ',' between two sizes");
      if (header_.shape.size() == max_rank) fail(at, "the shape has more than " + std::to_string(max_rank) + " sizes");
      header_.shape.push_back(integer());
      has_comma = accept(',');
    }
    // "(3)" is the integer 3 in Python, not a shape.
    if (header_.shape.size() == 1 && !has_comma) fail(at_, "the shape is not a tuple");
  }

  std::int64_t integer() {
    skip_spaces();
    const std::size_t at = at_;
    if (at_ < text_.size() && text_[at_] == '-') fail(at, "the shape has a negative size");
    std::int64_t value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      const int digit = text_[at_] - '0';
      if (value > (std::numeric_limits<std::int64_t>::max() - digit) / 10) fail(at, "a size exceeds 2^63 - 1");
      value = 10 * value + digit;
    }
    if (at_ == at) fail(at, "expected a size");
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // Python 2's long
    return value;
  }

  std::string_view quoted_text() {
    skip_spaces();
    const std::size_t begin = at_;
    if (begin >= text_.size() || (text_[begin] != '\'' && text_[begin] != '"')) fail(begin, "expected a quoted string");
    const std::size_t end = text_.find(text_[begin], begin + 1);
    if (end == std::string_view::npos) fail(begin, "a quoted string does not end");
    at_ = end + 1;
    return text_.substr(begin + 1, end - begin - 1);
  }

  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }

  bool accept(char c) {
    skip_spaces();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    if (!accept(c)) fail(at_, std::string("expected '") + c + "'");
  }

  std::string_view text_;
  std::uint64_t offset_;
  const std::string& path_;
  std::size_t at_ = 0;
  NpyHeader header_;
  bool has_descr_ = false, has_order_ = false, has_shape_ = false;
  std::size_t is_fortran_at_ = 0;  // position of `True` in the dict, or 0
};

// The dict's range in the file.
struct Extent {
  std::size_t begin = 0;
  std::uint64_t end = 0;
};

Extent dict_extent(std::span<const std::byte> start, std::uint64_t file_bytes, const std::string& path) {
  for (std::size_t i = 0; i < magic.size(); ++i)
    if (i >= start.size() || static_cast<char>(start[i]) != magic[i]) throw FileError(path, i, "not a .npy file");
  if (start.size() < 10) throw FileError(path, start.size(), "the file ends inside the header's length");
  const int major = std::to_integer<int>(start[6]), minor = std::to_integer<int>(start[7]);
  if (major < 1 || major > 3 || minor != 0)
    throw FileError(path, 6,
                    "format version " + std::to_string(major) + "." + std::to_string(minor) +
                        " is not supported; expected 1.0, 2.0, 3.0");
  Extent extent;
  extent.begin = major == 1 ? 10 : longest_prefix;
  if (start.size() < extent.begin) throw FileError(path, start.size(), "the file ends inside the header's length");
  const std::uint64_t length =
      major == 1 ? load_le<std::uint16_t>(start.data() + 8) : load_le<std::uint32_t>(start.data() + 8);
  if (length > header_limit)
    throw FileError(
        path, 8,
        "the header has " + std::to_string(length) + " bytes; expected at most " + std::to_string(header_limit));
  if (length > file_bytes - extent.begin)
    throw FileError(
        path, 8,
        "the header has " + std::to_string(length) + " bytes, the file ends at byte " + std::to_string(file_bytes));
  extent.end = extent.begin + length;
  return extent;
}

void require_bools(std::span<const std::byte> data, std::uint64_t offset, const std::string& path) {
  const std::size_t bad = find_invalid_bool(data);
  if (bad < data.size()) throw FileError(path, offset + bad, "a bool is neither 0 nor 1");
}

// Widens elements of half the size, stored in the upper half of `out`, in place.
template <class Narrow, class T>
void widen(std::span<std::byte> out) {
  const std::size_t count = out.size() / sizeof(T);
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = load_le<Narrow>(out.data() + out.size() / 2 + sizeof(Narrow) * i);
    store_le(static_cast<std::make_unsigned_t<T>>(value), out.data() + sizeof(T) * i);
  }
}

void widen(const NpyHeader& header, std::span<std::byte> out) {
  if (!header.is_unsigned) return;
  header.dtype == DType::i32 ? widen<std::uint16_t, std::int32_t>(out) : widen<std::uint32_t, std::int64_t>(out);
}

std::uint64_t require_bytes(DType dtype, std::span<const std::int64_t> shape) {
  if (shape.size() > max_rank)
    throw ShapeError("npy: " + std::to_string(shape.size()) + " sizes; expected at most " + std::to_string(max_rank));
  const std::optional<std::uint64_t> bytes = checked_bytes(shape, size_of(dtype));
  if (!bytes) throw ShapeError("npy: the shape has a negative size or more than 2^63 - 1 bytes");
  return *bytes;
}

}  // namespace

NpyHeader parse_npy_header(std::span<const std::byte> start, std::uint64_t file_bytes, const std::string& path) {
  if (start.size() > file_bytes) start = start.first(static_cast<std::size_t>(file_bytes));
  const Extent extent = dict_extent(start, file_bytes, path);
  if (extent.end > start.size()) throw FileError(path, start.size(), "the header is not within the bytes given");
  const std::string_view text(reinterpret_cast<const char*>(start.data()) + extent.begin,
                              static_cast<std::size_t>(extent.end) - extent.begin);
  NpyHeader header = DictReader(text, extent.begin, path).read();
  header.data_offset = extent.end;
  const std::optional<std::uint64_t> bytes = checked_bytes(header.shape, size_of(header.dtype));
  if (!bytes) throw FileError(path, extent.begin, "the shape has more than 2^63 - 1 bytes");
  header.data_bytes = *bytes;
  header.file_bytes = header.is_unsigned ? *bytes / 2 : *bytes;
  const std::uint64_t available = file_bytes - header.data_offset, wanted = header.file_bytes;
  if (available != wanted)
    throw FileError(path, header.data_offset + std::min(available, wanted),
                    std::string(available < wanted ? "the file is cut short" : "bytes after the elements") +
                        ": the shape needs " + std::to_string(wanted) + " bytes of elements, the file has " +
                        std::to_string(available));
  return header;
}

NpyArray parse_npy(std::span<const std::byte> file, const std::string& path) {
  const NpyHeader header = parse_npy_header(file, file.size(), path);
  const auto data = file.subspan(static_cast<std::size_t>(header.data_offset));
  if (header.dtype == DType::boolean) require_bools(data, header.data_offset, path);
  NpyArray array{header.dtype, header.shape, std::vector<std::byte>(static_cast<std::size_t>(header.data_bytes))};
  std::copy(data.begin(), data.end(), array.data.end() - static_cast<std::ptrdiff_t>(data.size()));
  widen(header, array.data);
  return array;
}

NpyHeader read_npy_header(const std::string& path) {
  const InputFile file(path);
  const std::uint64_t most = longest_prefix + header_limit;
  std::vector<std::byte> start(static_cast<std::size_t>(std::min(file.bytes(), most)));
  file.read(0, start);
  return parse_npy_header(start, file.bytes(), path);
}

void read_npy_data(const std::string& path, const NpyHeader& header, std::span<std::byte> out) {
  if (out.size() != header.data_bytes)
    throw ShapeError("read_npy_data: room for " + std::to_string(out.size()) + " bytes, the array has " +
                     std::to_string(header.data_bytes));
  InputFile(path).read(header.data_offset, out.last(static_cast<std::size_t>(header.file_bytes)));
  widen(header, out);
  if (header.dtype == DType::boolean) require_bools(out, header.data_offset, path);
}

NpyArray read_npy(const std::string& path) {
  const NpyHeader header = read_npy_header(path);
  NpyArray array{header.dtype, header.shape, std::vector<std::byte>(static_cast<std::size_t>(header.data_bytes))};
  read_npy_data(path, header, array.data);
  return array;
}

std::string npy_header(DType dtype, std::span<const std::int64_t> shape) {
  const auto* descr = std::find_if(descrs.begin(), descrs.end(), [&](const Descr& d) { return d.dtype == dtype; });
  if (descr == descrs.end())
    throw DTypeError("npy: the format has no name for " + std::string(to_string(dtype)) +
                     "; expected f64, f32, f16, i64, i32, i8, u8, bool");
  require_bytes(dtype, shape);
  std::string sizes;
  for (const std::int64_t size : shape) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  if (shape.size() == 1) sizes += ",";
  std::string dict =
      "{'descr': '" + std::string(descr->text) + "', 'fortran_order': False, 'shape': (" + sizes + "), }";
  // NumPy leaves room for the outermost size to grow to 21 digits without moving the data.
  if (!shape.empty()) dict.append(21 - std::to_string(shape[0]).size(), ' ');
  // Magic, version, length and newline are 11 bytes; 1 to 64 spaces pad to a multiple of 64.
  dict.append(64 - (11 + dict.size()) % 64, ' ');
  dict += '\n';
  std::string header = std::string(magic) + std::string("\x01\x00", 2);
  header += static_cast<char>(dict.size() & 0xff);
  header += static_cast<char>(dict.size() >> 8);
  return header + dict;
}

void write_npy(const std::string& path, DType dtype, std::span<const std::int64_t> shape,
               std::span<const std::byte> data) {
  const std::string header = npy_header(dtype, shape);
  const std::uint64_t bytes = require_bytes(dtype, shape);
  if (data.size() != bytes)
    throw ShapeError("write_npy: " + std::to_string(data.size()) + " bytes given, the shape has " +
                     std::to_string(bytes));
  AtomicFile file(path);
  file.write(header);
  file.write(data);
  file.commit();
}

Tensor load_npy(const std::string& path, memory::Device device, memory::Category category) {
  const NpyHeader header = read_npy_header(path);
  const Shape shape(std::span<const std::int64_t>(header.shape));
  if (device.is_dry) return Tensor::empty(shape, header.dtype, device, category);
  const Tensor result = Tensor::empty(shape, header.dtype, cpu, category);
  {
    const memory::WritePin pin(result);
    read_npy_data(path, header, {static_cast<std::byte*>(pin.data()), result.bytes()});
  }
  return to_device(result, device, category);
}

void save_npy(const std::string& path, const Tensor& t) {
  if (t.scale()) {
    throw DTypeError("save_npy: " + describe(t) +
                     " is quantized; the file cannot hold its scales: dequantize it first");
  }
  npy_header(t.dtype(), std::span(t.shape().begin(), t.shape().end()));  // throws before copying
  if (t.device().is_dry) throw DeviceError("save_npy: " + describe(t) + " has no values: a dry device runs no kernels");
  const Tensor dense = contiguous(to_device(t.detach(), cpu));
  const memory::Pin pin(dense);
  write_npy(path, t.dtype(), std::span(t.shape().begin(), t.shape().end()),
            {static_cast<const std::byte*>(pin.data()), dense.bytes()});
}

}  // namespace thimble
