#pragma once
// BERT (Devlin et al. 2018, arXiv:1810.04805): a post-norm encoder that sees the whole sequence, with the head that
// predicts hidden tokens, tied to the token table. Parameters have the names and layouts of its public files:
// `bert.embeddings.word_embeddings.weight` (V, C), `bert.encoder.layer.0.attention.self.query.weight` (C, C) [out, in],
// ..., `cls.predictions.transform.dense.weight`, `cls.predictions.bias`. Older files name norms gamma and beta. Parts
// for other tasks (`bert.pooler`, `cls.seq_relationship`) are not built.
//
// Samples of different lengths are padded. A mask marks the real tokens; padding does not affect them. All tokens have
// segment 0.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/models/theory.h>
#include <thimble/models/transformer/token_model.h>
#include <thimble/nn/files/public_names.h>
#include <thimble/nn/layers/layers.h>

namespace thimble::models {

/// A batch's input hides some tokens; its target has them, and -100 at all other positions (nn/data/masking.h). The
/// loss is the mean over hidden tokens. A mask is (B, 1, 1, T) boolean, false for padding.
class Bert final : public TokenModel, public nn::PublicNames {
 public:
  Bert(const ModelOptions& sizes, const nn::TensorOptions& on);

  std::string_view hidden_layers() const noexcept override { return "bert.encoder.layer."; }
  bool is_masked() const noexcept override { return true; }
  bool is_tied() const noexcept override { return true; }
  /// Norms as gamma and beta, from TensorFlow; the head's table and bias under `cls.predictions.decoder`; names without
  /// the prefix `bert`. Pooler and sentence head are skipped.
  std::vector<std::vector<std::string>> names_in_files(const std::string& name) const override;
  std::vector<std::string> passed_over() const override;

 private:
  Tensor embed(const Tensor& ids, std::int64_t first) override;
  Tensor finish(Tensor x) override;
  void find_head(HeadShards& shards) override;

  nn::Embedding *positions_ = nullptr, *types_ = nullptr;
  nn::LayerNorm* norm_ = nullptr;
  nn::Dropout* dropout_ = nullptr;
  nn::Linear* transform_ = nullptr;
  nn::LayerNorm* transform_norm_ = nullptr;
  std::vector<nn::Parameter*> head_bias_;
};

/// The complete sizes of a named model of the family (see make_bert), with `options` replacing some. Throws ValueError:
/// another name, heads that do not divide the width, dropout outside [0, 1), an option of images.
ModelOptions bert_options(std::string_view name, const ModelOptions& options = {});

/// `bert-base` (12 layers, width 768, 12 heads) or `bert-large` (24, 1024, 16), T 512, 30,522 word pieces, dropout 0.1,
/// with `options` replacing sizes; null for another name. Throws ValueError as bert_options does.
std::unique_ptr<Model> make_bert(std::string_view name, const ModelOptions& options, const nn::TensorOptions& on);

/// Its memory in closed form (models/theory.h) for (N, options.sequence) ids, in both builds and under every policy.
/// Parameters: (V + s + 2) h + 2 h + L (12 h^2 + 13 h) + h^2 + 3 h + V: tables and their norm, layers, the head's
/// transform with its norm, and its bias (its matrix is the token table). Layers are post-norm
/// (models/transformer/theory.h). Outside: "ids" and "targets" (input), "embedding sum", "embedding norm statistics",
/// "embedding output" (under FP8 instead the last layer's "encoder output"), the head's "gelu input", "gelu output",
/// "head norm statistics", "head input"; textbook: with dropout "embedding mask", and "log-probabilities"; fused:
/// "logits" and "logsumexp". If products have a separate dtype, "embedding sum" has the parameters', "encoder output"
/// replaces "embedding output", and "weight casts" have V h + h^2 elements. Unknown with a chunked head. Throws
/// ValueError as bert_options does.
Theory bert_theory(std::string_view name, const ModelOptions& options, const nn::Precision& precision);

/// The id of [MASK]: 103 in the public vocabulary of 30,522 word pieces, the last one in any other.
constexpr std::int64_t bert_mask_token(std::int64_t vocabulary) noexcept {
  return vocabulary == 30522 ? 103 : vocabulary - 1;
}

}  // namespace thimble::models
