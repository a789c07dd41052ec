#pragma once
// Shared libraries of NVIDIA's that are loaded where they are first called, and stay. A program that computes on the
// CPU has none of their bytes: linked, cuBLASLt and cuDNN would take hundreds of MiB before main() begins.

#include <string>

namespace thimble::gpu {

class LoadedLibrary {
 public:
  /// Where the system looks for `file` (LD_LIBRARY_PATH first), else in `folder`. Throws DeviceError.
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

/// A member of a LoadedLibrary: the library's function of that name.
#define THIMBLE_LOADED_FUNCTION(name) decltype(&::name) name = find<decltype(&::name)>(#name)
