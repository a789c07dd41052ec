#pragma once
// GPT-2 (Radford et al. 2019): a pre-norm decoder with learned positions and a head tied to the token table. Parameters
// have the names and layouts of its public files: `wte.weight` (V, C), `wpe.weight` (T, C), `h.0.attn.c_attn.weight`
// (C, 3C) [in, out], ...

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/models/theory.h>
#include <thimble/models/transformer/token_model.h>
#include <thimble/nn/files/public_names.h>
#include <thimble/nn/layers/layers.h>

namespace thimble::models {

/// Ids (B, T) i64 -> logits (B, T, V). models/gpt/gpt.cpp has it from top to bottom.
class Gpt final : public Decoder, public nn::PublicNames {
 public:
  Gpt(const ModelOptions& sizes, const nn::TensorOptions& on);

  std::string_view hidden_layers() const noexcept override { return "h."; }
  bool is_tied() const noexcept override { return true; }
  /// A file may have the table as the head, or as both.
  std::vector<std::vector<std::string>> names_in_files(const std::string& name) const override;

 private:
  Tensor embed(const Tensor& ids, std::int64_t first) override;
  Tensor finish(Tensor x) override;

  nn::Embedding* wpe_ = nullptr;  // (T, C)
  nn::Dropout* drop_ = nullptr;
  nn::LayerNorm* ln_f_ = nullptr;
};

/// The complete sizes of a named model of the family (see make_gpt), with `options` replacing some. Throws ValueError
/// as token_options does: another name, heads that do not divide the width, dropout of 1 or more.
ModelOptions gpt_options(std::string_view name, const ModelOptions& options = {});

/// `gpt2` (124M), `gpt2-medium`, `gpt2-large`, `gpt2-xl`, `char-gpt` (6 layers, width 384, 6 heads, T 256, 65
/// characters), and `gpt-22b`, `gpt-175b`, `gpt-530b`, `gpt-1t` (T 2048, 51,200 tokens: Korthikanti et al. 2022,
/// arXiv:2205.05198, table 3), with `options` replacing its sizes; null for another name. Throws ValueError as
/// gpt_options does.
std::unique_ptr<Model> make_gpt(std::string_view name, const ModelOptions& options, const nn::TensorOptions& on);

/// Its memory in closed form (models/theory.h) for (N, options.sequence) ids, in both builds and under every policy.
/// Parameters: V h + s h + L (12 h^2 + 13 h) + 2 h; the head is the token table. A rank of a group has its shard of V,
/// in parameters and logits. Layers are pre-norm (models/transformer/theory.h). Outside: "ids" and "targets" (input),
/// "embedding output", "final norm statistics", "head input"; textbook: with dropout "embedding mask", and
/// "log-probabilities"; fused: "logits" and "logsumexp". If products have a separate dtype, "embedding output" has the
/// parameters', and "token table cast" has V h elements. Unknown with a chunked head. Throws ValueError as gpt_options
/// does.
Theory gpt_theory(std::string_view name, const ModelOptions& options, const nn::Precision& precision);

}  // namespace thimble::models
