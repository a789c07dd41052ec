#pragma once
// Generates text with a named model. A dry run tells the bytes before the first token.
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

/// Determines the bytes of a generation.
struct GenerationShape {
  Setup setup;                     ///< model, sizes, dtype and policy; `batch` is the number of sequences
  bool has_q8_weights = false;     ///< linear layers' weights are Q8_0 blocks (nn/quant/weight_only.h)
  std::int64_t context = 0;        ///< positions of the cache; if 0, the model's sequence
  std::optional<DType> cache;      ///< dtype of the cache; defaults to the dtype of the model's products
  std::int64_t prompt_tokens = 0;  ///< read at once; 0 leaves room for `tokens`, at least 1, in the context
  std::int64_t tokens = 0;         ///< to write; 0 fills the context
};

struct GenerationPlan {
  GenerationShape shape;  ///< completed
  std::int64_t parameters = 0;
  nn::KvCacheSizes cache;
  std::size_t peak_bytes = 0;  ///< committed by the arena
  memory::CategoryBytes peak_by_category{};
  memory::CommittedParts committed;
};

/// The model of a shape, without a file's weights. Throws as make_model does; ValueError for a model that cannot write
/// and for FP8, whose recipes are for training.
std::unique_ptr<Decoder> make_decoder(const GenerationShape& shape, memory::Device device);

/// `shape` with sizes filled in. Throws as make_decoder does, and ValueError if prompt and tokens exceed the context,
/// or the context exceeds the model's positions.
GenerationShape complete_shape(const GenerationShape& shape);

/// Runs the prompt and every token dry. It skips tokens whose attention takes the workspace of the token before,
/// because nothing else in a step depends on the number of positions. Throws as complete_shape does.
GenerationPlan plan_generation(const GenerationShape& shape, memory::Device device);

/// The error for a plan that does not fit, with its bytes and every shorter context, narrower cache or smaller batch
/// that fits.
nn::BudgetError refuse_generation(const GenerationPlan& plan, memory::Device device, std::size_t budget_bytes);

struct GenerateOptions {
  GenerationShape shape;  ///< the prompt sets prompt_tokens, the file sets sizes left open
  memory::Device device = cpu;
  std::string weights;     ///< a safetensors file, an index or a folder (nn::load_weights)
  std::string checkpoint;  ///< or a checkpoint of a training run
  std::string tokenizer;   ///< a tokenizer.json; if empty, the file must name characters
  std::string prompt;
  nn::SamplingOptions sampling;
  bool ignores_end = false;      ///< writes all tokens, past one that ends a text
  std::size_t budget_bytes = 0;  ///< that the arena may commit; 0 sets no limit
};

struct PreparedGeneration {
  GenerateOptions options;  ///< completed
  TokenText text;
  std::vector<std::int64_t> prompt;
  std::vector<std::int64_t> end_tokens;  ///< that end a text (find_end_tokens); empty with ignores_end
  GenerationPlan plan;
};

/// Reads the file's facts and the prompt's tokens, and plans, without reading weights. Throws FileError; ValueError as
/// plan_generation does, without exactly one of `weights` and `checkpoint`, or without the file's tokenizer;
/// BudgetError.
PreparedGeneration prepare_generation(const GenerateOptions& options);

struct GenerateReport {
  std::int64_t parameters = 0;
  std::vector<std::string> texts;                     ///< without the prompt
  std::vector<std::vector<std::int64_t>> tokens;      ///< of each text, without its end token
  std::vector<std::optional<std::int64_t>> ended_by;  ///< each text's end token, if it has one
  bool is_shorter = false;  ///< all ended before the last step: may commit less than predicted
  std::size_t predicted_peak_bytes = 0, measured_peak_bytes = 0;  ///< committed by the arena
  memory::CommittedParts measured;                                ///< the parts of measured_peak_bytes
  std::size_t cache_bytes = 0;                                    ///< live bytes of the cache, by the ledger
  double prompt_seconds = 0;                                      ///< wall time of reading the prompt
  double seconds = 0;            ///< wall time of all tokens but the first, which comes with the prompt
  double tokens_per_second = 0;  ///< of all sequences, first tokens excluded; 0 if there are no others
};

/// Called with each step's tokens as text, one per sequence; empty for a sequence that has ended.
using TokenObserver = std::function<void(const std::vector<std::string>& pieces)>;

/// Writes in a separate arena, which refuses to grow beyond the budget. Throws as nn::load_weights does, and
/// OutOfMemory if the plan does not fit the machine.
GenerateReport generate(const PreparedGeneration& prepared, const TokenObserver& observer = {});

}  // namespace thimble::models
