// thimble devices: what this build can use on this machine.

#include <cstdio>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <thread>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <thimble/bench/commands.h>
#include <thimble/bench/units.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/isa.h>
#include <thimble/core/kernels/matmul.h>
#include <thimble/core/parallel.h>
#include <thimble/memory/backing.h>
#include <thimble/memory/process.h>

namespace thimble::bench {
namespace devices_detail {

// What stands behind the colon of the first line that begins with `key` ("model name	: X"); nothing without one.
std::optional<std::string> field_of(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (line.compare(0, key.size(), key) != 0 || colon == std::string::npos) continue;
    const std::size_t first = line.find_first_not_of(" \t", colon + 1);
    return first == std::string::npos ? std::string() : line.substr(first);
  }
  return std::nullopt;
}

std::int64_t memory_bytes() {
  const auto text = field_of("/proc/meminfo", "MemTotal");
  return text ? std::strtoll(text->c_str(), nullptr, 10) * 1024 : 0;
}

// "always", "madvise" or "never": the word in brackets; "not known" where the kernel does not tell.
std::string huge_pages() {
  std::string line;
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::getline(file, line);
  const std::size_t open = line.find('['), close = line.find(']');
  return open == std::string::npos || close == std::string::npos ? "not known"
                                                                 : line.substr(open + 1, close - open - 1);
}

// Why the device cannot be used; empty when it can.
std::string obstacle(Device device) {
  try {
    make_backing(device);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

nlohmann::ordered_json describe_devices() {
  const bool is_built = kernels::matmul_cuda != nullptr;
  const std::string why = obstacle(cuda());
  nlohmann::ordered_json gpu{{"built", is_built}, {"found", why.empty()}};
  if (!why.empty()) gpu["why"] = why;
  return {{"cpu",
           {{"name", field_of("/proc/cpuinfo", "model name").value_or("not known")},
            {"cores", std::thread::hardware_concurrency()},
            {"threads", thread_count()},
            {"isa", kernels::to_string(kernels::isa())},
            {"memory_bytes", memory_bytes()},
            {"available_bytes", process::available_bytes()},
            {"huge_pages", huge_pages()}}},
          {"cuda", gpu},
          {"dry", {to_string(dry(cpu)), to_string(dry(cuda()))}}};
}

void print_table(const nlohmann::ordered_json& json) {
  const auto& host = json["cpu"];
  const auto& gpu = json["cuda"];
  std::printf("cpu    %s\n", host["name"].get<std::string>().c_str());
  std::printf("       %d cores, %d threads in use, instruction set %s\n", host["cores"].get<int>(),
              host["threads"].get<int>(), host["isa"].get<std::string>().c_str());
  std::printf("       memory %s, %s available, huge pages: %s\n",
              format_bytes(host["memory_bytes"].get<std::int64_t>()).c_str(),
              format_bytes(host["available_bytes"].get<std::int64_t>()).c_str(),
              host["huge_pages"].get<std::string>().c_str());
  std::printf("cuda   %s%s\n", gpu["built"].get<bool>() ? "built" : "not built into this program",
              gpu["found"].get<bool>() ? ", found" : ", not found");
  std::printf("dry    dry(cpu), dry(cuda): predictions without kernels or data, always there\n");
}

}  // namespace devices_detail

void add_devices(CLI::App& program) {
  CLI::App* const command = program.add_subcommand("devices", "Show what this build can use on this machine");
  const auto is_json = std::make_shared<bool>(false);
  command->add_flag("--json", *is_json, "Print JSON");
  command->callback([is_json] {
    const nlohmann::ordered_json json = devices_detail::describe_devices();
    if (*is_json) {
      std::cout << json.dump(2) << "\n";
    } else {
      devices_detail::print_table(json);
    }
  });
}

}  // namespace thimble::bench
