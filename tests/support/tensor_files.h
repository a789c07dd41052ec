#pragma once
// Helpers of the tests of weights and checkpoints: files with a header different from the model's, and errors with
// their type.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/nn/files/safetensors.h>

namespace files_test {

/// The error that `call` throws, with the type's name first: "ShapeError load_weights: ...".
template <class F>
std::string error_of(F&& call) {
  try {
    call();
  } catch (const thimble::ShapeError& e) {
    return std::string("ShapeError ") + e.what();
  } catch (const thimble::DTypeError& e) {
    return std::string("DTypeError ") + e.what();
  } catch (const thimble::ValueError& e) {
    return std::string("ValueError ") + e.what();
  } catch (const thimble::FileError& e) {
    return std::string("FileError ") + e.what();
  } catch (const thimble::DeviceError& e) {
    return std::string("DeviceError ") + e.what();
  }
  return "no error";
}

/// The entry of that name, which must exist.
inline thimble::SafetensorsEntry& entry_in(std::vector<thimble::SafetensorsEntry>& list, const std::string& name) {
  return *std::find_if(list.begin(), list.end(), [&](const auto& entry) { return entry.name == name; });
}

/// A file with this header and zeros for all tensors.
inline void write_zeros(const std::string& path, const std::vector<thimble::SafetensorsEntry>& entries,
                        const std::map<std::string, std::string>& metadata = {}) {
  thimble::SafetensorsWriter file(path, entries, metadata);
  for (const thimble::SafetensorsEntry& entry : file.header().tensors) {
    file.append(entry.name, std::vector<std::byte>(static_cast<std::size_t>(entry.bytes())));
  }
  file.commit();
}

/// Copies the file `from` to `to` with element `at` of one tensor changed.
template <class T>
void rewrite_element(const std::string& from, const std::string& to, const std::string& name, std::size_t at, T value) {
  const thimble::SafetensorsReader file(from);
  thimble::SafetensorsWriter out(to, file.header().tensors, file.header().metadata);
  for (const thimble::SafetensorsEntry& entry : file.header().tensors) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(entry.bytes()));
    file.read(entry, bytes);
    if (entry.name == name) std::memcpy(bytes.data() + at * sizeof value, &value, sizeof value);
    out.append(entry.name, bytes);
  }
  out.commit();
}

}  // namespace files_test
