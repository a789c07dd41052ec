#pragma once
// Finds data files.

#include <zlib.h>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace thimble_test {

/// The path of a data file ("mnist/t10k-images-idx3-ubyte.gz"): in the folder of the environment variable THIMBLE_DATA,
/// then in `../shared/data` as seen from the current folder, its parent and its grandparent (so that it works in the
/// project's root and in a build folder). nullopt if it is in none of them.
inline std::optional<std::string> find_data(const std::string& name) {
  namespace fs = std::filesystem;
  std::error_code error;  // an unreadable folder counts as empty
  if (const char* folder = std::getenv("THIMBLE_DATA"); folder != nullptr && *folder != '\0')
    if (const fs::path path = fs::path(folder) / name; fs::is_regular_file(path, error)) return path.string();
  fs::path from = fs::current_path(error);
  for (int level = 0; level < 3; ++level, from = from.parent_path())
    if (const fs::path path = from.parent_path() / "shared" / "data" / name; fs::is_regular_file(path, error))
      return path.string();
  return std::nullopt;
}

}  // namespace thimble_test

namespace files_test {

/// `text` as a gzip file; level 0 stores, 9 compresses best.
inline std::string gzip(std::string_view text, int level = 6) {
  z_stream stream{};
  if (deflateInit2(&stream, level, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::runtime_error("deflateInit2 failed");
  std::string out(deflateBound(&stream, static_cast<uLong>(text.size())) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int code = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (code != Z_STREAM_END) throw std::runtime_error("deflate failed");
  return out;
}

}  // namespace files_test
