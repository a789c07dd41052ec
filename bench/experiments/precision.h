#pragma once
// Shared by the experiments on precision: the cases they compare, and the bytes of a step by category.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <thimble/bench/experiments/experiments.h>
#include <thimble/nn/precision/precision.h>

namespace thimble::bench {

/// How numbers are stored in a run.
struct PrecisionCase {
  std::string policy;     ///< nn/precision/precision.h; if empty, all is bf16 and updates are rounded
  std::string optimizer;  ///< adamw, adamw8
  std::string saved;      ///< dtype that saved tensors are packed to; if empty, they are kept

  std::string name() const { return policy.empty() ? "bf16 throughout" : policy; }
  nn::Precision precision() const;
  void apply(models::Setup& setup) const;
};

/// Every policy with AdamW, O0 first; then 8-bit state with f32 and with bf16 (with rounded updates, since the policy
/// bf16 needs f32 state), and f32 with its saved tensors in 8 bits.
std::vector<PrecisionCase> precision_cases();

/// Live bytes of two training steps.
struct StepBytes {
  report::CategoryBytes most{};     ///< peak of each category
  report::CategoryBytes at_peak{};  ///< bytes of each at the peak of their sum
  ProcessBytes process;             ///< includes its arena's committed bytes
  std::int64_t parameters = 0;      ///< elements

  /// Bytes alive while the optimizer runs: parameters, gradients and the optimizer's own.
  std::int64_t state() const noexcept;
};
StepBytes step_bytes(memory::Device device, const nn::MakeRun& make);

/// Rows of the most bytes of each category, measured where `numbers` are of both runs.
void add_categories(Rows& rows, const Config& config, const Both<StepBytes>& bytes, bool has_peak_columns,
                    const std::function<std::optional<std::int64_t>(memory::Category)>& theory);

/// Savings of a policy over O0 for an encoder's size.
struct EncoderSaving {
  std::string size;
  double share = 0;   ///< of activations and temporaries in the peak under O0
  double saving = 0;  ///< of the peak
};
/// The sizes that save `least` (a share of the peak, as in 0.4), and the others.
std::string saving_verdict(const std::string& policy, double least, const std::vector<EncoderSaving>& sizes);

}  // namespace thimble::bench
