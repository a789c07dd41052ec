#pragma once
// The Llama family (Touvron et al. 2023, arXiv:2302.13971 and arXiv:2307.09288; Grattafiori et al. 2024,
// arXiv:2407.21783), and Qwen 2.5 (Yang et al. 2024, arXiv:2412.15115), which adds biases to queries, keys and values:
// a decoder with RMS norms, rotary positions, queries in groups that share keys and values, gated feed-forward layers,
// and no dropout. Parameters have the names and layouts of its public files: `model.embed_tokens.weight` (V, h),
// `model.layers.0.self_attn.q_proj.weight` (h, h) [out, in], ..., `lm_head.weight` (V, h) unless it is the token table.
// models/llama/llama_files.h reads and writes their folders.

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/core/ops/elementwise/rotary.h>
#include <thimble/models/theory.h>
#include <thimble/models/transformer/token_model.h>
#include <thimble/models/transformer/transformer.h>
#include <thimble/nn/files/public_names.h>
#include <thimble/nn/layers/layers.h>

namespace thimble::models {

/// A model of the family. Below, h = width, a = heads, g = key_heads, f = hidden, V = vocabulary, L = layers, D = h /
/// a.
struct LlamaConfig {
  ModelOptions sizes;  ///< complete
  double theta = 10000;
  double epsilon = 1e-5;  ///< of norms
  std::optional<RotaryScaling> scaling = {};
  bool is_tied = false;        ///< the head is the token table
  bool has_bias = false;       ///< of queries, keys and values
  std::int64_t positions = 0;  ///< that the public model was trained on; sequences may be longer
};

class Llama final : public Decoder, public nn::PublicNames {
 public:
  /// Throws ValueError as llama_config does.
  Llama(const LlamaConfig& config, const nn::TensorOptions& on);

  const LlamaConfig& config() const noexcept { return config_; }
  std::string_view hidden_layers() const noexcept override { return "model.layers."; }
  bool is_tied() const noexcept override { return config_.is_tied; }
  /// Unlimited, because positions are rotated, not learned. With dynamic scaling, its original length: beyond that,
  /// each further token would change the rotation of all earlier ones.
  std::int64_t most_positions() const noexcept override {
    const bool is_dynamic = config_.scaling && config_.scaling->kind == RotaryKind::dynamic;
    return is_dynamic ? config_.scaling->original_length : std::numeric_limits<std::int64_t>::max();
  }
  /// A file may have a tied table as the head, or as both.
  std::vector<std::vector<std::string>> names_in_files(const std::string& name) const override;
  std::vector<std::string> passed_over() const override { return {"rotary_emb.inv_freq"}; }  // in older files

 private:
  Tensor embed(const Tensor& ids, std::int64_t) override { return look_up(ids); }
  Tensor finish(Tensor x) override { return (*norm_)(x); }
  void find_head(HeadShards& shards) override;
  nn::Linear* quantized_head() override;

  LlamaConfig config_;
  nn::RmsNorm* norm_ = nullptr;
  nn::Linear* lm_head_ = nullptr;  // null if tied
};

/// A named model of the family (see make_llama) with `options` replacing some of its sizes. By default key_heads scale
/// with heads, and hidden with width. Throws ValueError as token_options does (models/transformer/transformer.h), for a
/// head of odd width or wider than 512, and for dropout.
LlamaConfig llama_config(std::string_view name, const ModelOptions& options = {});
/// From complete options (a model's options()), function included.
LlamaConfig llama_config(const ModelOptions& complete);
/// Throws ValueError, naming `name`, for sizes that do not fit, as llama_config does.
void require_llama_sizes(std::string_view name, const ModelOptions& sizes);

/// `llama-3.2-1b`, `llama-3.2-3b`, `llama-3-8b`, `llama-3-70b`, `llama-2-7b`, `qwen2.5-0.5b`, `qwen2.5-7b` (sequences
/// of 2,048 by default), and `tiny-llama` (6 layers, width 384, 6 heads on 2, T 256, 65 characters), with `options`
/// replacing their sizes; null for another name. Throws ValueError as llama_config does.
std::unique_ptr<Model> make_llama(std::string_view name, const ModelOptions& options, const nn::TensorOptions& on);

/// Its memory in closed form (models/theory.h) for (N, options.sequence) ids, in both builds and under every policy.
/// Parameters: V h (twice unless tied) + h + L (2 h^2 + 2 g D h + 3 f h + 2 h), and L (h + 2 g D) with biases.
///
/// Each layer keeps, with s the sequence, b samples and e bytes per element, by term:
///   norm statistics     8 s b, one f32 per position and norm (16 s b in f64)
///   norm 1 output, attention output, residual (norm 2's input), norm 2 output, layer output     e s b h each
///   queries             e s b h, rotated; the rotation keeps no input
///   keys, values        e s b g D each; textbook: e s b h each, repeated per head
///   attention logsumexp fused: 4 a s b (8 in f64); textbook: probabilities, e a s^2 b
///   gate, up            e s b f each; textbook: silu of the gate, too
///   gated               e s b f, the last product's input
/// Tiled feed-forward layers keep neither of the last two. In sum e s b (6 h + 2 g D + 3 f) + 4 a s b + 8 s b fused.
/// Outside: "ids" and "targets" (input), "embedding output", "final norm statistics", "head input", and
/// "log-probabilities" (textbook) or "logits" and "logsumexp" (fused). If products have a separate dtype, and in FP8,
/// terms change as a pre-norm layer's do (models/transformer/theory.h): "weight casts", "head cast"; codes and "scales
/// of codes" of each of the seven products whose sizes 16 divides. Unknown with a chunked head. Throws ValueError as
/// llama_config does.
Theory llama_theory(std::string_view name, const ModelOptions& options, const nn::Precision& precision);

}  // namespace thimble::models
