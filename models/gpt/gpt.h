#pragma once
// GPT-2 (Radford et al. 2019): a pre-norm decoder with learned positions and a head tied to the token table. Parameter
// names and layouts are those of its public files: `wte.weight` (V, C), `wpe.weight` (T, C), `h.0.attn.c_attn.weight`
// (C, 3C) [in, out], ...

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/models/theory.h>
#include <thimble/models/transformer/cut_block.h>
#include <thimble/models/transformer/decoder.h>
#include <thimble/models/transformer/transformer.h>
#include <thimble/nn/files/public_names.h>
#include <thimble/nn/layers/layers.h>

namespace thimble::models {

/// x + proj(attention(qkv(norm(x)))), then x + mlp(norm(x)).
class GptBlock final : public CutBlock {
 public:
  GptBlock(const ModelOptions& sizes, const nn::TensorOptions& on);
  /// The block of the positions behind those in the cache, which gets their keys and values.
  Tensor extend(const Tensor& x, nn::CachedLayer past);
  /// With what attention takes besides (AttentionOptions::mask).
  Tensor masked(const Tensor& x, const Tensor& mask);

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  Tensor add_parts(const Tensor& x, const Tensor& mask, const nn::CachedLayer* past);
  Tensor attend(const Tensor& x, const Tensor& mask, const nn::CachedLayer* past);
  Tensor feed_forward(const Tensor& x);

  ModelOptions sizes_;
  nn::LayerNorm& norm1_;
  CutLinear qkv_, attention_out_;
  nn::LayerNorm& norm2_;
  CutLinear up_, down_;
  nn::Dropout &attention_dropout_, &mlp_dropout_;
};

class Gpt final : public Decoder, public nn::PublicNames {
 public:
  Gpt(const ModelOptions& sizes, const nn::TensorOptions& on);

  /// Ids (B, T) i64, T at most options().sequence -> logits (B, T, V). Throws ShapeError, ValueError in parts.
  Tensor forward(const Tensor& ids) override;
  /// The same where `mask` says what each token sees besides (AttentionOptions::mask). Positions count through.
  Tensor forward(const Tensor& ids, const Tensor& mask);
  Tensor loss(const Batch& batch) override;
  Batch empty_batch(std::int64_t samples, Device device) const override;
  std::string_view hidden_layers() const noexcept override { return "h."; }
  bool has_stages() const noexcept override { return true; }
  bool can_cut_sequence() const noexcept override { return true; }
  SharedByStages shared_by_stages() override;
  bool is_tied() const noexcept override { return true; }
  nn::KvCacheSizes cache_sizes() const override;
  std::int64_t most_positions() const noexcept override { return options_.sequence; }
  Tensor extend(const Tensor& ids, nn::KvCache& cache) override;
  void recompute_blocks(bool is_on = true) override { recomputes_blocks_ = is_on; }
  /// The table may be there as the head, or as both.
  std::vector<std::vector<std::string>> names_in_files(const std::string& name) const override;

 private:
  Tensor embed(const Tensor& ids);
  Tensor features(const Tensor& in, const Tensor& mask);
  Tensor logits(const Tensor& x);

  std::vector<nn::Embedding*> tokens_;  // of the first and the last stage: this rank's parts
  nn::Embedding* positions_ = nullptr;  // of the first stage
  nn::Dropout* dropout_ = nullptr;
  std::vector<GptBlock*> blocks_;
  nn::LayerNorm* norm_ = nullptr;  // of the last stage
  bool recomputes_blocks_ = false;
};

/// The sizes of a named model of the family (see make_gpt) with `options` replacing some; none is left open. Throws
/// ValueError: another name, heads that do not divide the width, dropout of 1 or more.
ModelOptions gpt_options(std::string_view name, const ModelOptions& options = {});

/// `gpt2` (124M), `gpt2-medium`, `gpt2-large`, `gpt2-xl`, `char-gpt` (6 layers, width 384, 6 heads, T 256, 65
/// characters), and `gpt-22b`, `gpt-175b`, `gpt-530b`, `gpt-1t` (T 2048, 51,200 tokens: Korthikanti et al. 2022,
/// arXiv:2205.05198, table 3), with `options` replacing its sizes; null for another name. Throws ValueError as
/// gpt_options does.
std::unique_ptr<Model> make_gpt(std::string_view name, const ModelOptions& options, const nn::TensorOptions& on);

/// Its memory in closed form (models/theory.h) for (N, options.sequence) ids, in both builds and under every policy.
/// Parameters: V h + s h + L (12 h^2 + 13 h) + 2 h; the head is the token table. Of V a rank has its parts', in
/// parameters and logits. Layers are a transformer's with their norms before attention and mlp
/// (models/transformer/theory.h). Outside: "ids" and "targets" (input), "embedding output", "final norm statistics",
/// "head input"; textbook: with dropout "embedding mask", and "log-probabilities"; fused: "logits" and "logsumexp".
/// Where products compute in a dtype of their own, "embedding output" is of the parameters' dtype, and "token table
/// cast" are V h numbers. What is kept with a chunked head is unknown. Throws ValueError as gpt_options does.
Theory gpt_theory(std::string_view name, const ModelOptions& options, const nn::Precision& precision);

}  // namespace thimble::models
