#include <thimble/bench/flag_names.h>

#include <algorithm>
#include <utility>

#include <thimble/models/techniques/technique.h>

namespace thimble::bench {
namespace {

/// The flag of an option: its technique's, a renamed one, or the option's name with dashes.
std::string flag_of(std::string option) {
  for (const models::Technique& technique : models::techniques()) {
    if (option == technique.flag.option) return std::string(technique.flag.name());
  }
  constexpr std::pair<std::string_view, std::string_view> of_other_name[] = {{"allows_tf32", "tf32"},
                                                                             {"budget_bytes", "budget"},
                                                                             {"finds_batch", "max-batch"},
                                                                             {"finds_sequence", "max-seq"},
                                                                             {"hidden", "mlp"},
                                                                             {"is_inference", "inference"},
                                                                             {"is_int8", "int8"},
                                                                             {"is_strict", "strict"},
                                                                             {"key_heads", "kv-heads"},
                                                                             {"measures", "profile"},
                                                                             {"min_rate", "min-lr"},
                                                                             {"overwrites", "overwrite"},
                                                                             {"prices_techniques", "techniques"},
                                                                             {"process_budget_bytes", "process-budget"},
                                                                             {"rate", "lr"},
                                                                             {"captures_steps", "cuda-graph"},
                                                                             {"sequence", "seq"},
                                                                             {"shares_kernels", "shared-kernels"},
                                                                             {"times", "profile-file"}};
  for (const auto& [name, flag] : of_other_name) {
    if (option == name) return "--" + std::string(flag);
  }
  std::replace(option.begin(), option.end(), '_', '-');
  return "--" + option;
}

}  // namespace

std::string with_flags(std::string_view text) {
  constexpr std::string_view of_names = "abcdefghijklmnopqrstuvwxyz0123456789_";
  std::string said;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text[at] == '`' ? text.find_first_not_of(of_names, at + 1) : std::string_view::npos;
    if (end == std::string_view::npos || text[end] != '`' || end == at + 1) {
      said += text[at++];
      continue;
    }
    said += flag_of(std::string(text.substr(at + 1, end - at - 1)));
    at = end + 1;
  }
  return said;
}

}  // namespace thimble::bench
