#include <thimble/core/device.h>

#include <thimble/core/error.h>

namespace thimble {

std::string memory::to_string(memory::Device device) {
  const std::string name = device.is_cpu() ? "cpu" : "cuda:" + std::to_string(device.index);
  return device.is_dry ? "dry(" + name + ")" : name;
}

memory::Device parse_device(std::string_view text) {
  const auto fail = [&]() -> memory::Device {
    throw ValueError("device: '" + std::string(text) + "' is not one of cpu, cuda, cuda:N, dry(cpu), dry(cuda)");
  };
  if (text.starts_with("dry(") && text.ends_with(")")) {
    const std::string_view inner = text.substr(4, text.size() - 5);
    return inner.starts_with("dry") ? fail() : dry(parse_device(inner));
  }
  if (text == "cpu") return cpu;
  if (text == "cuda") return cuda(0);
  if (!text.starts_with("cuda:") || text.size() == 5 || text.size() > 7) return fail();
  int index = 0;
  for (const char c : text.substr(5)) {
    if (c < '0' || c > '9') return fail();
    index = index * 10 + (c - '0');
  }
  return cuda(static_cast<std::uint8_t>(index));
}

}  // namespace thimble
