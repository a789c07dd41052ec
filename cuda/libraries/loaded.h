#pragma once
// NVIDIA's shared libraries, loaded at their first call and kept. A program that computes on the CPU has none of their
// bytes: linked, cuBLASLt and cuDNN would take hundreds of MiB before main() begins.

#include <string>

namespace thimble::gpu {

class LoadedLibrary {
 public:
  /// Searches `file` as the system does (LD_LIBRARY_PATH first), then in `folder`. Throws DeviceError.
  LoadedLibrary(const std::string& file, const char* folder);

 protected:
  /// Throws DeviceError: the library has no such function.
  template <class Function>
  Function find(const char* name) const {
    return reinterpret_cast<Function>(address_of(name));
  }

 private:
  void* address_of(const char* name) const;
  std::string file_;
  void* library_;
};

}  // namespace thimble::gpu

/// Declares a member of a LoadedLibrary with the library's function `name`.
#define THIMBLE_LOADED_FUNCTION(name) decltype(&::name) name = find<decltype(&::name)>(#name)
