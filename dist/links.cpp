#include <thimble/dist/links.h>

#include <array>

#include <thimble/core/error.h>

namespace thimble::dist {
namespace {

const std::array<Link, 8>& table() {
  static const std::array<Link, 8> all = [] {
    const auto row = [](const char* name, const char* source, double gigabytes_per_s, double microseconds) {
      return Link{name, source, 0.8 * gigabytes_per_s * 1e9, microseconds * 1e-6};
    };
    return std::array<Link, 8>{{
        row("nvlink-4", "NVIDIA H100 data sheet: 900 GB/s, 450 each way", 450, 5),
        row("nvlink-3", "NVIDIA A100 data sheet: 600 GB/s, 300 each way", 300, 5),
        row("pcie-5", "PCI Express 5.0, 16 lanes of 32 GT/s: 63 GB/s each way", 63, 10),
        row("infiniband-400", "InfiniBand NDR, 4 lanes of 100 Gb/s: 50 GB/s", 50, 10),
        row("ethernet-400", "IEEE 802.3bs, 400GBASE: 50 GB/s", 50, 30),
        row("pcie-4", "PCI Express 4.0, 16 lanes of 16 GT/s: 31.5 GB/s each way", 31.5, 10),
        row("infiniband-100", "InfiniBand EDR, 4 lanes of 25 Gb/s: 12.5 GB/s", 12.5, 10),
        row("ethernet-100", "IEEE 802.3bj, 100GBASE: 12.5 GB/s", 12.5, 30),
    }};
  }();
  return all;
}

}  // namespace

std::span<const Link> link_list() { return table(); }

const Link& link(std::string_view name) {
  std::string names;
  for (const Link& l : link_list()) {
    if (l.name == name) return l;
    names += (names.empty() ? "" : ", ") + l.name;
  }
  throw ValueError("link: '" + std::string(name) + "' is not one of " + names);
}

}  // namespace thimble::dist
