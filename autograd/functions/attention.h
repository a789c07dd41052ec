#pragma once
// Scaled dot-product attention: tiled, which keeps O(T) bytes, and the textbook's composition, which keeps O(T^2).
//
// Bytes kept for backward, with e bytes per element, from qkv (B, T, 3 C) with H heads:
//   tiled      qkv 3 B T C e, result B T C e, logarithms 4 B H T (8 B H T in f64)
//   textbook   qkv 3 B T C e, probabilities B H T^2 e; with dropout also their mask B H T^2 and dropped copy B H T^2 e
// (If the next layer keeps its input, it also keeps the textbook's result, counted there. Korthikanti et al. 2022,
// arXiv:2205.05198, section 4.1.)

#include <optional>

#include <thimble/core/ops/elementwise/rotary.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble {

struct AttentionOptions {
  bool causal = true;                ///< query t sees only the keys s <= t
  double dropout = 0;                ///< probability in [0, 1) of dropping a softmax output; 0 in evaluation
  std::optional<double> scale = {};  ///< factor of the scores; defaults to 1 / sqrt(C / H)
  std::int64_t window = 0;           ///< query t sees only the keys with |t - s| < window; 0 disables it
  /// Hides keys from queries: boolean or floating that broadcasts to (B, H, T, S), or numbers of documents, i32 (B, S).
  /// core/ops/attention.h has the rules. Undefined hides nothing.
  Tensor mask = {};
};

struct RotaryOptions {
  double theta = 10000;             ///< base of the frequencies
  std::int64_t first_position = 0;  ///< position of token 0: the number of earlier tokens
  std::optional<RotaryScaling> scaling = {};
};

/// Rotary position embedding of queries or keys, (B, T, H, D) -> the same: core/ops/elementwise/rotary.h. Keeps
/// nothing.
Tensor rotary(const Tensor& x, const RotaryOptions& options = {});

/// out = dropout(softmax(scale q k^T)) v for every head: qkv (B, T, 3 C) -> (B, T, C). The last axis of qkv holds q, k
/// and v, each (H, C / H). Tiled: core/ops/attention.h has formulas and errors. Takes one random site of the current
/// module path even without dropout.
Tensor attention(const Tensor& qkv, std::int64_t heads, const AttentionOptions& options = {});

/// attention with q (B, T, H, D), k and v (B, S, G, D) -> (B, T, H, D), where G divides H: grouped queries. Head h
/// reads the keys and values h / (H / G), which are not copied.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options = {});

/// attention's values up to rounding, with the same dropout for the same site, composed of matmul, softmax,
/// dropout_textbook and matmul. Throws as they do, ShapeError or ValueError for qkv and heads that do not fit, and
/// ValueError for a window or a mask, which only the tiled form supports.
Tensor attention_textbook(const Tensor& qkv, std::int64_t heads, const AttentionOptions& options = {});

/// attention_textbook with q (B, T, H, D), k and v (B, S, G, D) -> (B, T, H, D), a view of (B, H, T, D). Repeats keys
/// and values for the heads of a group, and keeps the copies. Throws ShapeError.
Tensor attention_textbook(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options = {});

}  // namespace thimble
