#include <thimble/cuda/libraries/loaded.h>

#include <dlfcn.h>

#include <thimble/core/error.h>

namespace thimble::gpu {

LoadedLibrary::LoadedLibrary(const std::string& file, const char* folder)
    : file_(file), library_(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (library_ != nullptr) return;
  const std::string first = dlerror();
  library_ = dlopen((std::string(folder) + "/" + file).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ != nullptr) return;
  throw DeviceError("cuda: " + first + "; " + dlerror() + ". LD_LIBRARY_PATH may name the folder that has " + file);
}

void* LoadedLibrary::address_of(const char* name) const {
  void* const address = dlsym(library_, name);
  if (address == nullptr) throw DeviceError("cuda: " + file_ + " has no " + name + ": " + dlerror());
  return address;
}

}  // namespace thimble::gpu
