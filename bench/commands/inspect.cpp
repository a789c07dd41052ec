// thimble inspect: lists a safetensors file or checkpoint and verifies its checksums.

#include <cstdio>
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <thimble/bench/commands.h>
#include <thimble/core/files/bytes.h>
#include <thimble/memory/units.h>
#include <thimble/nn/files/safetensors.h>

namespace thimble::bench {
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + ")";
}

void print_json(const SafetensorsReader& file, std::uint64_t bytes) {
  nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
  for (const SafetensorsEntry& entry : file.header().tensors) {
    tensors.push_back(
        {{"name", entry.name}, {"dtype", to_string(entry.dtype)}, {"shape", entry.shape}, {"bytes", entry.bytes()}});
  }
  const nlohmann::ordered_json json{
      {"path", file.path()},
      {"bytes", bytes},
      {"checksums", has_sums(file.header()) ? nlohmann::ordered_json("hold") : nlohmann::ordered_json()},
      {"metadata", file.header().metadata},
      {"tensors", tensors}};
  // Names and paths may not be valid UTF-8.
  std::cout << json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << "\n";
}

void print_table(const SafetensorsReader& file, std::uint64_t bytes) {
  for (const SafetensorsEntry& entry : file.header().tensors) {
    std::printf("%-8s %-24s %16s  %s\n", std::string(to_string(entry.dtype)).c_str(), shape_text(entry.shape).c_str(),
                format_grouped(entry.bytes()).c_str(), quote(entry.name, 200).c_str());
  }
  for (const auto& [key, value] : file.header().metadata) {
    std::printf("%s = %s\n", quote(key, 200).c_str(), quote(value, 200).c_str());
  }
  std::printf("%zu tensors, %s bytes (%s); %s\n", file.header().tensors.size(), format_grouped(bytes).c_str(),
              format_bytes(bytes).c_str(), has_sums(file.header()) ? "checksums hold" : "no checksums");
}

}  // namespace

void add_inspect(CLI::App& program) {
  CLI::App* const command =
      program.add_subcommand("inspect", "Show what is in a safetensors or checkpoint file, and verify its checksums");
  const auto path = std::make_shared<std::string>();
  const auto is_json = std::make_shared<bool>(false);
  command->add_option("FILE", *path, "A safetensors or checkpoint file")->required();
  command->add_flag("--json", *is_json, "Print JSON");
  command->callback([path, is_json] {
    const SafetensorsReader file(*path);
    std::uint64_t bytes = 0;  // all tensors
    for (const SafetensorsEntry& entry : file.header().tensors) {
      bytes += entry.bytes();
      file.verify(entry);
    }
    *is_json ? print_json(file, bytes) : print_table(file, bytes);
  });
}

}  // namespace thimble::bench
