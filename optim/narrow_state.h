#pragma once
// Moments of optimizers in fewer bits: which parameters have them so, and their tensors.

#include <cstddef>
#include <string>
#include <vector>

#include <thimble/optim/optimizer.h>

namespace thimble::optim {

/// How moments are kept.
struct NarrowState {
  /// u8: dynamic codes, blocks of 256 values with their largest magnitude in f32 (Dettmers et al. 2022,
  /// arXiv:2110.02861): 1 + 4 / 256 bytes per value. bf16: 2 bytes.
  DType dtype = DType::u8;
  /// Parameters of fewer elements keep their moments in f32, and so do those that are named, f64 ones in f64: "wte", or
  /// "gpt.h0" for all that begin with "gpt.h0.". The paper has embeddings among them.
  std::int64_t smallest = 4096;
  std::vector<std::string> full = {};
};

/// A moment of one parameter. Codes and scales are tensors side by side, so that files and tiers take them as any.
struct Moment {
  Tensor values;  ///< u8, bf16, f32 or f64, of the parameter's shape
  Tensor scales;  ///< of u8: f32, one per 256 values; else undefined
};

/// Throws ValueError for a dtype that is neither u8 nor bf16, a negative size, or a name that no parameter has.
void check_narrow_state(const char* optimizer, const NarrowState& state, const std::vector<Named>& parameters);

/// Whether a parameter's moments are kept in full.
bool is_kept_full(const Named& parameter, const NarrowState& state);

/// Zeros, counted as optimizer state under the parameter's path. Unsigned codes are for what is never negative.
Moment make_moment(const Named& parameter, const NarrowState& state, bool is_signed);

/// What make_moment takes.
std::size_t moment_bytes(const Named& parameter, const NarrowState& state);

}  // namespace thimble::optim
