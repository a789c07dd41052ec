#pragma once
// A named model that writes: the bytes that this needs, told by a dry run before the first token, and the run.
//
//   models::GenerateOptions options;
//   options.setup.model = "char-gpt", options.setup.batch = 1;
//   options.checkpoint = "char.ckpt";
//   options.prompt = "ROMEO:";
//   options.tokens = 200;
//   const models::GenerateReport report = models::generate(models::prepare_generation(options));
//   std::puts(report.texts[0].c_str());

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <thimble/memory/summary.h>
#include <thimble/models/datasets/dataset_text.h>
#include <thimble/models/generation/generate.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/nn/step/profile.h>

namespace thimble::models {

/// What decides about the bytes of a generation.
struct GenerationShape {
  Setup setup;                     ///< model, sizes, dtype and policy; `batch`: sequences
  bool has_q8_weights = false;     ///< linear layers' weights are Q8_0 blocks (nn/quant/weight_only.h)
  std::int64_t context = 0;        ///< positions of the cache; 0: the model's sequence
  std::optional<DType> cache;      ///< its dtype; none: that of the model's products
  std::int64_t prompt_tokens = 0;  ///< that are read at once; 0: all of the context but one
  std::int64_t tokens = 0;         ///< that are written; 0: as many as the context has room for
};

struct GenerationPlan {
  GenerationShape shape;  ///< with nothing left open
  std::int64_t parameters = 0;
  nn::KvCacheSizes cache;
  std::size_t peak_bytes = 0;  ///< that the arena commits
  CategoryBytes peak_by_category{};
  memory::CommittedParts committed;
};

/// The model of a shape, without a file's weights. Throws what make_model throws; ValueError for a model that does not
/// write and for FP8, whose recipes are for training.
std::unique_ptr<Decoder> make_decoder(const GenerationShape& shape, memory::Device device);

/// `shape` with sizes filled in. Throws as make_decoder, and ValueError where prompt and tokens are more than the
/// context, or this more than the model has positions.
GenerationShape complete_shape(const GenerationShape& shape);

/// By a dry run of the prompt and of every token. (Tokens whose attention takes as much workspace as that of the one
/// before are not run: nothing else of a step depends on how many positions there are.) Throws as complete_shape.
GenerationPlan plan_generation(const GenerationShape& shape, memory::Device device);

/// The error where a plan does not fit: what it needs, and what would fit of a shorter context, a narrower cache and
/// fewer sequences.
nn::BudgetError refuse_generation(const GenerationPlan& plan, memory::Device device, std::size_t budget_bytes);

struct GenerateOptions {
  GenerationShape shape;  ///< prompt_tokens follows from the prompt; sizes that are open from the file
  memory::Device device = cpu;
  std::string weights;     ///< a safetensors file, an index or a folder: see nn::load_weights
  std::string checkpoint;  ///< or a checkpoint of a training run
  std::string tokenizer;   ///< a tokenizer.json; empty: the characters that the file names
  std::string prompt;
  nn::SamplingOptions sampling;
  bool ignores_end = false;      ///< write all tokens, past one that ends a text
  std::size_t budget_bytes = 0;  ///< that the arena may commit; 0: as much as it takes
};

struct PreparedGeneration {
  GenerateOptions options;  ///< nothing left open
  TokenText text;
  std::vector<std::int64_t> prompt;
  std::vector<std::int64_t> end_tokens;  ///< that end a sequence (models/generation/generate.h); none with ignores_end
  GenerationPlan plan;
};

/// Reads what the file says of the model, the prompt's tokens, and plans. Throws FileError; ValueError as
/// plan_generation and where there is not one file, no text in it or of another tokenizer; BudgetError. No weight has
/// been read then.
PreparedGeneration prepare_generation(const GenerateOptions& options);

struct GenerateReport {
  std::int64_t parameters = 0;
  std::vector<std::string> texts;                     ///< that were written, without the prompt
  std::vector<std::vector<std::int64_t>> tokens;      ///< of each, without the one that ended it
  std::vector<std::optional<std::int64_t>> ended_by;  ///< of each; none: it has all tokens
  bool is_shorter = false;  ///< all ended before the last step, so less than the predicted bytes may be committed
  std::size_t predicted_peak_bytes = 0, measured_peak_bytes = 0;  ///< committed by the arena
  memory::CommittedParts measured;                                ///< what the latter consists of
  std::size_t cache_bytes = 0;                                    ///< live in the ledger for the cache
  double prompt_seconds = 0;                                      ///< of the wall: reading the prompt
  double seconds = 0;            ///< of all tokens but the first, which comes with the prompt
  double tokens_per_second = 0;  ///< of all sequences, without the first tokens; 0: there was one alone
};

/// Called with the tokens of a step, one for each sequence, as text; empty for a sequence that has ended.
using TokenObserver = std::function<void(const std::vector<std::string>& pieces)>;

/// Writes in an arena of its own, which refuses to grow beyond the budget. Throws what nn::load_weights throws,
/// OutOfMemory where the machine has no room for what the plan says.
GenerateReport generate(const PreparedGeneration& prepared, const TokenObserver& observer = {});

}  // namespace thimble::models
