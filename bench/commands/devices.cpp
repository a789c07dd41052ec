// thimble devices: processors, units and GPUs that this build can use on this machine.

#include <cstdio>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <thread>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <thimble/bench/commands.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/cpu/base/units.h>
#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/arena/backing.h>
#include <thimble/memory/process/process.h>
#include <thimble/memory/units.h>

namespace thimble::bench {
namespace {

// The text after the colon of the first line that begins with `key` ("model name	: X").
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

// "always", "madvise" or "never", the word in brackets; "not known" if the kernel reports none.
std::string huge_pages() {
  std::string line;
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::getline(file, line);
  const std::size_t open = line.find('['), close = line.find(']');
  return open == std::string::npos || close == std::string::npos ? "not known"
                                                                 : line.substr(open + 1, close - open - 1);
}

// Reason that the device cannot be used, or an empty text.
std::string obstacle(memory::Device device) {
  try {
    memory::make_backing(device);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

// 12040 is "12.4".
std::string cuda_version(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

nlohmann::ordered_json describe_gpus() {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const kernels::GpuFacts& gpu : kernels::device_runtime_cuda->devices()) {
    list.push_back({{"device", to_string(cuda(static_cast<std::uint8_t>(list.size())))},
                    {"name", gpu.name},
                    {"capability", std::to_string(gpu.capability_major) + "." + std::to_string(gpu.capability_minor)},
                    {"multiprocessors", gpu.multiprocessors},
                    {"memory_bytes", gpu.memory_bytes},
                    {"free_bytes", gpu.free_bytes},
                    {"driver", cuda_version(gpu.driver_version)},
                    {"runtime", cuda_version(gpu.runtime_version)}});
  }
  return list;
}

// The machine's instruction sets and dot units, and the unit of bf16 products with the reason.
nlohmann::ordered_json describe_units() {
  nlohmann::ordered_json sets = nlohmann::ordered_json::array(), bf16 = sets, int8 = sets, ways;
  for (const kernels::Isa set : kernels::isas) {
    if (kernels::is_supported(set)) sets.push_back(kernels::to_string(set));
  }
  for (const kernels::DotUnit unit : {kernels::DotUnit::avx512, kernels::DotUnit::amx}) {
    if (kernels::is_supported(unit, DType::bf16)) bf16.push_back(kernels::to_string(unit));
    if (kernels::is_supported(unit, DType::i8)) int8.push_back(kernels::to_string(unit));
  }
  for (const kernels::Product product : kernels::products) {
    const auto unit = kernels::bf16_unit(product), best = kernels::best_dot_unit(DType::bf16);
    std::string why = "no bf16 unit within " + std::string(kernels::to_string(kernels::isa()));
    if (best) {
      const kernels::UnitRate rate = kernels::unit_rate(kernels::this_processor(), *best, product);
      why = (rate.is_measured ? "measured: " : "a guess: ") + std::string(rate.origin);
    }
    if (!kernels::unit_choice(DType::bf16).is_automatic) why = "as told";
    ways[std::string(kernels::to_string(product))] = {
        {"on", unit ? std::string(kernels::to_string(*unit)) : "converted"}, {"why", why}};
  }
  return {{"isas", sets}, {"bf16_units", bf16}, {"int8_units", int8}, {"bf16", ways}};
}

nlohmann::ordered_json describe_devices() {
  const bool is_built = kernels::device_runtime_cuda != nullptr;
  const std::string why = obstacle(cuda());
  nlohmann::ordered_json gpu{{"built", is_built}, {"found", why.empty()}};
  if (!why.empty()) gpu["why"] = why;
  if (is_built && why.empty()) gpu["devices"] = describe_gpus();
  return {{"cpu",
           {{"name", field_of("/proc/cpuinfo", "model name").value_or("not known")},
            {"cores", std::thread::hardware_concurrency()},
            {"threads", thread_count()},
            {"isa", kernels::to_string(kernels::isa())},
            {"compute", kernels::describe_compute()},
            {"units", describe_units()},
            {"memory_bytes", memory_bytes()},
            {"available_bytes", process::available_bytes()},
            {"huge_pages", huge_pages()}}},
          {"cuda", gpu},
          {"dry", {to_string(dry(cpu)), to_string(dry(cuda()))}}};
}

// "a, b", or "none".
std::string list_of(const nlohmann::ordered_json& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name.get<std::string>();
  return text.empty() ? "none" : text;
}

void print_table(const nlohmann::ordered_json& json) {
  const auto& host = json["cpu"];
  const auto& gpu = json["cuda"];
  std::printf("cpu    %s\n", host["name"].get<std::string>().c_str());
  std::printf("       %d cores, %d threads in use, instruction set %s\n", host["cores"].get<int>(),
              host["threads"].get<int>(), host["isa"].get<std::string>().c_str());
  const auto& units = host["units"];
  std::printf("       has %s; bf16 units: %s; int8 units: %s\n", list_of(units["isas"]).c_str(),
              list_of(units["bf16_units"]).c_str(), list_of(units["int8_units"]).c_str());
  std::printf("       uses %s\n", host["compute"].get<std::string>().c_str());
  for (const auto& [product, way] : units["bf16"].items()) {
    std::printf("       bf16 %s: %s, %s\n", product.c_str(), way["on"].get<std::string>().c_str(),
                way["why"].get<std::string>().c_str());
  }
  std::printf("       memory %s, %s available, huge pages: %s\n",
              format_bytes(host["memory_bytes"].get<std::int64_t>()).c_str(),
              format_bytes(host["available_bytes"].get<std::int64_t>()).c_str(),
              host["huge_pages"].get<std::string>().c_str());
  std::printf("cuda   %s%s\n", gpu["built"].get<bool>() ? "built" : "not built into this program",
              gpu["found"].get<bool>() ? ", found" : ", not found");
  if (gpu.contains("why")) std::printf("       %s\n", gpu["why"].get<std::string>().c_str());
  for (const auto& one : gpu.value("devices", nlohmann::ordered_json::array())) {
    std::printf("       %s %s, capability %s, %d multiprocessors, driver for CUDA %s, built with %s\n",
                one["device"].get<std::string>().c_str(), one["name"].get<std::string>().c_str(),
                one["capability"].get<std::string>().c_str(), one["multiprocessors"].get<int>(),
                one["driver"].get<std::string>().c_str(), one["runtime"].get<std::string>().c_str());
    std::printf("       memory %s, %s free\n", format_bytes(one["memory_bytes"].get<std::int64_t>()).c_str(),
                format_bytes(one["free_bytes"].get<std::int64_t>()).c_str());
  }
  std::printf("dry    dry(cpu), dry(cuda): predictions without kernels or data, always there\n");
}

}  // namespace

void add_devices(CLI::App& program) {
  CLI::App* const command = program.add_subcommand("devices", "Show what this build can use on this machine");
  const auto is_json = std::make_shared<bool>(false);
  command->add_flag("--json", *is_json, "Print JSON");
  add_compute_flags(*command);
  command->callback([is_json] {
    const nlohmann::ordered_json json = describe_devices();
    if (*is_json) {
      std::cout << json.dump(2) << "\n";
    } else {
      print_table(json);
    }
  });
}

}  // namespace thimble::bench
