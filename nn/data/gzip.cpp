#include <thimble/nn/data/gzip.h>

#include <zlib.h>

#include <algorithm>

#include <thimble/core/error.h>

namespace thimble::data {

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
      if (code == Z_STREAM_END) {  // of a member; pigz and bgzip write several
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
