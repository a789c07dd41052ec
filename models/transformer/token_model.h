#pragma once
// Models over tokens, whose vocabulary is cut into as many parts as their blocks (Shoeybi et al. 2019,
// arXiv:1909.08053, section 3): the table of tokens (V, C) and the head (V, C), tied or not, by rows.
//
//   ids ---- rows of part p, or 0 ---- sum_shards ---- blocks ---- copy_to_group ---- logits of part p ---- ClassPartsLoss
//
// Logits of several ranks are never side by side (dist/parts/class_parts.h). Part p of a table is a module of its own,
// "wte.1"; parts differ by one token at most. A table in one part is an nn::Embedding as any other, a head an
// nn::Linear.

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <thimble/core/threads/parallel.h>
#include <thimble/models/model.h>
#include <thimble/nn/layers/layers.h>

namespace thimble::models {

class TokenModel : public Model {
 public:
  bool is_text() const noexcept override { return true; }

 protected:
  /// Throws ValueError for more parts than tokens, a sequence in parts that do not divide it, and a chunked head in
  /// parts.
  TokenModel(const ModelOptions& options, std::optional<DType> compute);

  /// The parts of a table of all tokens that this rank has, on the first stage and the last one; none in between. On
  /// the last one of several it is the first one's, and stays here where parameters are shared out.
  std::vector<nn::Embedding*> cut_table(const std::string& name, const nn::TensorOptions& on, double deviation);
  /// The parts of a head that is not the table.
  std::vector<nn::Linear*> cut_head(const std::string& name, const nn::TensorOptions& on,
                                    const nn::LinearOptions& options);

  /// The weight of part p of a head that is the table: the table's own, or where one rank has all stages of several its
  /// bytes under a leaf of their own, because the two uses are summed apart there (dist/pipeline/pipeline_stage.h).
  Tensor tied_weight(const std::vector<nn::Embedding*>& table, std::size_t p);
  SharedByStages shared_parts(const std::vector<nn::Embedding*>& table);

  /// Ids (B, T) -> (B, T, C), or in parts of the sequence (models/transformer/sequence_parts.h). Throws ShapeError
  /// where these do not divide T.
  Tensor look_up(const std::vector<nn::Embedding*>& table, const Tensor& ids);
  static constexpr auto no_bias = [](std::size_t) { return Tensor(); };
  /// x as look_up() gives it, and of part p of this rank's parts a weight (V of the part, C) and a bias (V of the
  /// part), which may be undefined -> logits (B, T, V of this rank's parts).
  Tensor score(const Tensor& x, FunctionRef<Tensor(std::size_t p)> weight_of,
               FunctionRef<Tensor(std::size_t p)> bias_of = no_bias);
  /// Mean cross-entropy of what score() gives and class numbers (B, T); those of -100 do not count.
  Tensor loss_of(const Tensor& logits, const Tensor& targets);
  /// Throws ValueError, naming the model, where the vocabulary is in parts.
  void require_whole_vocabulary(const char* name) const;

  bool is_cut() const noexcept { return options_.team.cuts_layers(); }

  std::optional<DType> compute_;

 private:
  RandomSite site_of_whole(const std::string& name) const;  // where its weight is drawn
  std::vector<Tensor> aliases_;
};

}  // namespace thimble::models
