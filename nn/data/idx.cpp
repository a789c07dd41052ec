#include <thimble/nn/data/idx.h>

#include <zlib.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/file_stream.h>
#include <thimble/nn/data/require.h>

namespace thimble::data {

namespace {

constexpr std::uint32_t images_magic = 0x803, labels_magic = 0x801;

// GzipReader's counterpart for plain files.
class PlainReader {
 public:
  PlainReader(std::span<const std::byte> file, const std::string& path) : file_(file), path_(path) {}

  void read(std::span<std::byte> out) {
    if (out.size() > file_.size() - at_)
      throw FileError(path_, file_.size(),
                      "the file is cut short: " + std::to_string(out.size()) + " bytes wanted from byte " +
                          std::to_string(at_) + " on");
    std::copy_n(file_.begin() + static_cast<std::ptrdiff_t>(at_), out.size(), out.begin());
    at_ += out.size();
  }

  void finish() const {
    if (at_ != file_.size())
      throw FileError(path_, at_, std::to_string(file_.size() - at_) + " bytes after the last value");
  }

 private:
  std::span<const std::byte> file_;
  const std::string& path_;
  std::size_t at_ = 0;
};

template <class Reader>
std::uint32_t read_u32(Reader& reader) {
  std::array<std::byte, 4> bytes{};
  reader.read(bytes);
  return load_be<std::uint32_t>(bytes.data());
}

// Magic number and sizes. `most_bytes` is an upper bound on the file's data: no more is ever allocated.
template <class Reader>
std::vector<std::int64_t> read_shape(Reader& reader, std::uint64_t most_bytes, const std::string& path) {
  const std::uint32_t magic = read_u32(reader);
  if (magic != images_magic && magic != labels_magic)
    throw FileError(
        path, 0,
        "the magic number is " + std::to_string(magic) + "; expected 2051 (0x803, images) or 2049 (0x801, labels)");
  std::vector<std::int64_t> shape(magic == images_magic ? 3 : 1);
  for (std::int64_t& size : shape) size = read_u32(reader);
  if (shape.size() == 3 && (shape[1] == 0 || shape[2] == 0)) {
    throw FileError(path, 8,
                    "images of " + std::to_string(shape[1]) + " x " + std::to_string(shape[2]) +
                        " pixels; expected at least 1 x 1");
  }
  most_bytes = std::min(most_bytes, idx_limit_bytes);
  const std::optional<std::uint64_t> bytes = checked_bytes(shape, 1);
  if (!bytes || *bytes > most_bytes)
    throw FileError(path, 4,
                    "the sizes promise " + (bytes ? std::to_string(*bytes) : "more than 2^63 - 1") +
                        " bytes; this file can hold at most " + std::to_string(most_bytes));
  return shape;
}

template <class Reader>
IdxArray read(Reader reader, std::uint64_t most_bytes, const std::string& path) {
  IdxArray array;
  array.shape = read_shape(reader, most_bytes, path);
  array.values.resize(static_cast<std::size_t>(*checked_bytes(array.shape, 1)));
  reader.read(std::as_writable_bytes(std::span(array.values)));
  reader.finish();
  return array;
}

}  // namespace

IdxArray parse_idx(std::span<const std::byte> file, const std::string& path) {
  if (is_gzip(file)) return read(GzipReader(file, path), file.size() * largest_deflate_ratio, path);
  return read(PlainReader(file, path), file.size(), path);
}

IdxHeader parse_idx_header(std::span<const std::byte> start, std::uint64_t file_bytes, const std::string& path) {
  PlainReader reader(start, path);
  IdxHeader header{read_shape(reader, file_bytes, path)};
  if (header.shape.size() != 3) throw FileError(path, 0, "the file has labels; images are needed");
  const std::uint64_t wanted = start.size() + *checked_bytes(header.shape, 1);
  if (file_bytes < wanted)
    throw FileError(path, file_bytes, "the file is cut short: " + std::to_string(wanted) + " bytes wanted");
  if (file_bytes > wanted)
    throw FileError(path, wanted, std::to_string(file_bytes - wanted) + " bytes after the last value");
  return header;
}

Images pair_idx(IdxArray images, const IdxArray& labels, std::int64_t classes, const std::string& images_path,
                const std::string& labels_path) {
  require_between("idx: classes", classes, 0, 256);
  if (images.shape.size() != 3) throw FileError(images_path, 0, "the file has labels; images are needed");
  if (labels.shape.size() != 1) throw FileError(labels_path, 0, "the file has images; labels are needed");
  if (images.shape[0] != labels.shape[0])
    throw FileError(labels_path, 4,
                    std::to_string(labels.shape[0]) + " labels for the " + std::to_string(images.shape[0]) +
                        " images of " + images_path);
  if (classes == 0) {
    const auto largest = std::max_element(labels.values.begin(), labels.values.end());
    classes = std::max<std::int64_t>(10, largest == labels.values.end() ? 0 : *largest + 1);
  }
  for (std::size_t i = 0; i < labels.values.size(); ++i)
    if (labels.values[i] >= classes)
      throw FileError(labels_path, 8 + i,
                      "label " + std::to_string(labels.values[i]) + "; expected below " + std::to_string(classes));
  Images out;
  out.count = images.shape[0], out.height = images.shape[1], out.width = images.shape[2], out.channels = 1;
  out.classes = classes, out.pixels = std::move(images.values);
  out.labels.assign(labels.values.begin(), labels.values.end());
  return out;
}

Images read_idx(const std::string& images_path, const std::string& labels_path, std::int64_t classes) {
  IdxArray images = parse_idx(read_whole_file(images_path, idx_limit_bytes), images_path);
  const IdxArray labels = parse_idx(read_whole_file(labels_path, idx_limit_bytes), labels_path);
  return pair_idx(std::move(images), labels, classes, images_path, labels_path);
}

bool is_gzip(std::span<const std::byte> file) noexcept {
  return file.size() >= 2 && file[0] == std::byte{0x1f} && file[1] == std::byte{0x8b};
}

struct GzipReader::State {
  z_stream stream{};
  std::size_t handed = 0;  // bytes of the file given to zlib
  bool has_ended = false;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { inflateEnd(&stream); }

  // The byte of the file that zlib reads next.
  std::size_t at() const noexcept { return handed - stream.avail_in; }

  // Decompresses until `out` is full or the data end. Returns the number of bytes written.
  std::size_t run(std::span<const std::byte> file, const std::string& path, std::span<std::byte> out) {
    constexpr std::size_t largest_call = std::size_t{1} << 30;  // zlib counts in 32 bits
    std::size_t done = 0;
    while (done < out.size() && !has_ended) {
      if (stream.avail_in == 0) {
        const std::size_t part = std::min(file.size() - handed, largest_call);
        stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(file.data() + handed));
        stream.avail_in = static_cast<uInt>(part);
        handed += part;
      }
      const std::size_t room = std::min(out.size() - done, largest_call);
      stream.next_out = reinterpret_cast<Bytef*>(out.data() + done);
      stream.avail_out = static_cast<uInt>(room);
      const int code = inflate(&stream, Z_NO_FLUSH);
      done += room - stream.avail_out;
      if (code == Z_STREAM_END) {  // the end of a member; pigz and bgzip write several
        has_ended = !is_gzip(file.subspan(at()));
        if (!has_ended) inflateReset(&stream);
      } else if (code == Z_BUF_ERROR) {
        throw FileError(path, handed, "the gzip data are cut short");
      } else if (code != Z_OK) {
        throw FileError(path, at(),
                        std::string("corrupt gzip data: ") +
                            (stream.msg != nullptr ? stream.msg : ("zlib code " + std::to_string(code)).c_str()));
      }
    }
    return done;
  }
};

GzipReader::GzipReader(std::span<const std::byte> file, const std::string& path)
    : file_(file), path_(path), state_(std::make_unique<State>()) {
  constexpr int gzip_only = 15 + 16;  // the largest window, and gzip's framing
  const int code = inflateInit2(&state_->stream, gzip_only);
  if (code != Z_OK) throw FileError(path_, 0, "zlib does not start, code " + std::to_string(code));
}

GzipReader::GzipReader(GzipReader&&) noexcept = default;
GzipReader::~GzipReader() = default;

void GzipReader::read(std::span<std::byte> out) {
  const std::size_t got = state_->run(file_, path_, out);
  if (got < out.size())
    throw FileError(path_, state_->at(),
                    "the decompressed data end " + std::to_string(out.size() - got) + " bytes before the header says");
}

void GzipReader::finish() {
  std::byte beyond{};
  if (state_->run(file_, path_, std::span(&beyond, 1)) != 0)
    throw FileError(path_, state_->at(), "there are more decompressed data than the header says");
  const std::size_t rest = file_.size() - state_->at();
  if (rest != 0) throw FileError(path_, state_->at(), std::to_string(rest) + " bytes after the end of the gzip data");
}

}  // namespace thimble::data
