#pragma once
// BERT (Devlin et al. 2018, arXiv:1810.04805): a post-norm encoder that sees the whole sequence, with the head that
// predicts hidden tokens, tied to the table of words. Parameter names and layouts are those of its public files:
// `bert.embeddings.word_embeddings.weight` (V, C), `bert.encoder.layer.0.attention.self.query.weight` (C, C) [out, in],
// ..., `cls.predictions.transform.dense.weight`, `cls.predictions.bias`. Older files name norms gamma and beta. What
// files hold besides for other tasks (`bert.pooler`, `cls.seq_relationship`) is not built.
//
// Samples of several lengths are padded: a mask says which tokens count, and those of padding change nothing of the
// others. All tokens are of segment 0.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/models/theory.h>
#include <thimble/models/transformer/cut_block.h>
#include <thimble/models/transformer/token_model.h>
#include <thimble/nn/files/public_names.h>
#include <thimble/nn/layers/layers.h>

namespace thimble::models {

/// norm(x + proj(attention(q, k, v))), then norm(x + mlp(x)).
class BertLayer final : public CutBlock {
 public:
  BertLayer(const ModelOptions& sizes, const nn::TensorOptions& on);
  /// With what attention takes besides (AttentionOptions::mask).
  Tensor masked(const Tensor& x, const Tensor& mask);

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  Tensor add_parts(const Tensor& x, const Tensor& mask);
  Tensor attend(const Tensor& in, const Tensor& mask);
  Tensor feed_forward(const Tensor& x);

  ModelOptions sizes_;
  CutLinear query_, key_, value_, attention_out_;
  nn::Dropout& attention_dropout_;
  nn::LayerNorm& norm1_;
  CutLinear up_, down_;
  nn::Dropout& mlp_dropout_;
  nn::LayerNorm& norm2_;
};

/// Batches have hidden tokens in the input and their true ones in the target, -100 at all other positions
/// (nn/data/masking.h makes them). The loss is the mean over hidden tokens.
class Bert final : public TokenModel, public nn::PublicNames {
 public:
  Bert(const ModelOptions& sizes, const nn::TensorOptions& on);

  /// Ids (B, T) i64, T at most options().sequence -> logits (B, T, V). Throws ShapeError, ValueError in parts.
  Tensor forward(const Tensor& ids) override;
  /// The same where `mask` says what each token sees (AttentionOptions::mask): (B, 1, 1, T) boolean, false for padding.
  Tensor forward(const Tensor& ids, const Tensor& mask);
  Tensor loss(const Batch& batch) override;
  Batch empty_batch(std::int64_t samples, Device device) const override;
  std::string_view hidden_layers() const noexcept override { return "bert.encoder.layer."; }
  bool is_masked() const noexcept override { return true; }
  bool has_stages() const noexcept override { return true; }
  bool can_cut_sequence() const noexcept override { return true; }
  SharedByStages shared_by_stages() override;
  bool is_tied() const noexcept override { return true; }
  void recompute_blocks(bool is_on = true) override { recomputes_blocks_ = is_on; }
  /// Norms as gamma and beta, as TensorFlow's had them; the head's table and bias as those of its decoder; names
  /// without the prefix `bert`. Pooler and sentence head are passed over.
  std::vector<std::vector<std::string>> names_in_files(const std::string& name) const override;
  std::vector<std::string> passed_over() const override;

 private:
  /// What the head adds to its scores.
  struct HeadBias final : nn::Module {
    HeadBias(const nn::init::PartOf& part, const nn::TensorOptions& on);
    std::optional<nn::PlaceInWhole> place_in_whole(const Tensor&) const override;
    nn::init::PartOf part;
    nn::Parameter bias;  // (V of a part)
  };

  Tensor embed(const Tensor& ids);
  Tensor features(const Tensor& in, const Tensor& mask);
  Tensor logits(const Tensor& x);

  // Of the first stage; the last one has the words, too: this rank's parts.
  std::vector<nn::Embedding*> words_;
  nn::Embedding *positions_ = nullptr, *types_ = nullptr;
  nn::LayerNorm* norm_ = nullptr;
  nn::Dropout* dropout_ = nullptr;
  std::vector<BertLayer*> layers_;
  // Of the last stage.
  nn::Linear* transform_ = nullptr;
  nn::LayerNorm* transform_norm_ = nullptr;
  std::vector<HeadBias*> head_;  // of this rank's parts
  bool recomputes_blocks_ = false;
};

/// The sizes of a named model of the family (see make_bert) with `options` replacing some; none is left open. Throws
/// ValueError: another name, heads that do not divide the width, dropout outside of [0, 1), an option of images.
ModelOptions bert_options(std::string_view name, const ModelOptions& options = {});

/// `bert-base` (12 layers, width 768, 12 heads) or `bert-large` (24, 1024, 16), T 512, 30,522 word pieces, dropout 0.1,
/// with `options` replacing sizes; null for another name. Throws ValueError as bert_options does.
std::unique_ptr<Model> make_bert(std::string_view name, const ModelOptions& options, const nn::TensorOptions& on);

/// Its memory in closed form (models/theory.h) for (N, options.sequence) ids, in both builds and under every policy.
/// Parameters: (V + s + 2) h + 2 h + L (12 h^2 + 13 h) + h^2 + 3 h + V: tables and their norm, layers, the head's
/// transform with its norm, and its bias (its matrix is the table of words). Layers are a transformer's with their
/// norms behind the additions (models/transformer/theory.h). Outside: "ids" and "targets" (input), "embedding sum",
/// "embedding norm statistics", "embedding output" (under FP8 the last layer's "encoder output" in its place), the
/// head's "gelu input", "gelu output", "head norm statistics", "head input"; textbook: with dropout "embedding mask",
/// and "log-probabilities"; fused: "logits" and "logsumexp". Where products compute in a dtype of their own, "embedding
/// sum" is of the parameters' dtype, "encoder output" stands for "embedding output", and "weight casts" are V h + h^2
/// numbers. What is kept with a chunked head is unknown. Throws ValueError as bert_options does.
Theory bert_theory(std::string_view name, const ModelOptions& options, const nn::Precision& precision);

/// The id of [MASK]: 103 in the public vocabulary of 30,522 word pieces, the last one in any other.
constexpr std::int64_t bert_mask_token(std::int64_t vocabulary) noexcept {
  return vocabulary == 30522 ? 103 : vocabulary - 1;
}

}  // namespace thimble::models
