#include <thimble/models/generation/generating.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/memory/process/host_limits.h>
#include <thimble/memory/process/process.h>
#include <thimble/memory/stack.h>
#include <thimble/memory/units.h>
#include <thimble/models/weights/follow_weights.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/quant/weight_only.h>
#include <thimble/nn/tokens/tokenizer_file.h>

namespace thimble::models {
namespace {

/// Reads a prompt and writes tokens, for real or dry.
class Writer {
 public:
  Writer(const GenerationShape& shape, memory::Device device, const nn::SamplingOptions& sampling)
      : model_(make_decoder(shape, device)) {
    if (shape.has_q8_weights) nn::quant::quantize_linear_weights(*model_);
    model_->eval();
    generation_.emplace(*model_, cache_of(shape, *model_), sampling, shape.setup.seed);
  }

  static nn::KvCacheSizes cache_of(const GenerationShape& shape, const Decoder& model) {
    nn::KvCacheSizes sizes = model.cache_sizes();
    sizes.batch = shape.setup.batch, sizes.context = shape.context;
    sizes.dtype = shape.cache.value_or(sizes.dtype);
    return sizes;
  }

  Decoder& model() noexcept { return *model_; }
  nn::KvCache& cache() noexcept { return generation_->cache(); }

  /// Reads the prompt, and draws the first token.
  std::vector<std::int64_t> begin(const std::vector<std::int64_t>& prompt) {
    generation_->read_all(prompt);
    return generation_->draw();
  }
  std::vector<std::int64_t> go_on(const std::vector<std::int64_t>& tokens) {
    generation_->read(tokens);
    return generation_->draw();
  }

 private:
  std::unique_ptr<Decoder> model_;
  std::optional<Generation> generation_;
};

/// The whole generation as one step of a dry run.
class DryGeneration final : public nn::TrainingRun {
 public:
  DryGeneration(const GenerationShape& shape, memory::Device device) : shape_(shape), writer_(shape, device, {}) {}

  void step() override {
    std::vector<std::int64_t> tokens =
        writer_.begin(std::vector<std::int64_t>(static_cast<std::size_t>(shape_.prompt_tokens)));
    std::size_t before = 0;
    for (std::int64_t i = 1; i < shape_.tokens; ++i) {
      const std::size_t bytes = workspace_bytes();
      if (i > 2 && bytes == before) {
        writer_.cache().advance(1);
        continue;
      }
      before = bytes;
      tokens = writer_.go_on(tokens);
    }
  }
  nn::StepOptions& options() override { return options_; }
  std::int64_t parameters() const override { return writer_.model().parameter_count(); }
  const nn::KvCacheSizes& cache() const { return writer_.cache().sizes(); }

 private:
  std::size_t workspace_bytes() const {
    const Decoder& model = writer_.model();
    return writer_.cache().step_workspace_bytes(model.options().heads, model.cache_sizes().dtype);
  }

  const GenerationShape& shape_;
  mutable Writer writer_;
  nn::StepOptions options_;
};

std::string dtype_text(const GenerationPlan& plan) { return std::string(to_string(plan.cache.dtype)); }

/// The bytes of the shape's plan; nullopt if there is no such plan.
std::optional<std::size_t> bytes_in(const GenerationShape& shape, memory::Device device) {
  try {
    return plan_generation(shape, device).peak_bytes;
  } catch (const ValueError&) {
    return std::nullopt;
  } catch (const DeviceError&) {  // a cache that the device's kernels cannot read
    return std::nullopt;
  }
}

/// The largest value in [least, most] whose plan fits the budget, or 0. Bytes do not fall as the value grows.
template <class Set>
std::int64_t largest(const GenerationShape& shape, memory::Device device, std::size_t budget, std::int64_t least,
                     std::int64_t most, Set&& set) {
  std::int64_t fits = least - 1, fails = most + 1;
  while (fails - fits > 1) {
    const std::int64_t middle = fits + (fails - fits) / 2;
    GenerationShape other = shape;
    set(other, middle);
    const auto bytes = bytes_in(other, device);
    (bytes && *bytes <= budget ? fits : fails) = middle;
  }
  return fits < least ? 0 : fits;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void load(const PreparedGeneration& prepared, Decoder& model) {
  const GenerateOptions& o = prepared.options;
  nn::LoadOptions load;
  if (!o.checkpoint.empty()) load.prefix = checkpoint_prefix;
  nn::load_weights(model, o.checkpoint.empty() ? o.weights : o.checkpoint, load);
}

/// Takes the shape's sizes and function from the file.
void follow_model(GenerationShape& shape, const WeightFacts& facts) {
  Setup& setup = shape.setup;
  if (const std::string name = facts.text("model"); !name.empty() && name != setup.model) {
    throw ValueError(facts.path + ": it is of the model " + quote(name) + ", not of " + quote(setup.model));
  }
  follow_weights(setup.model, setup.sizes, facts, WeightUse::writing);
  shape.has_q8_weights = facts.text("format") == "thimble-q8_0-1";
}

TokenText text_of(const GenerateOptions& options, const WeightFacts& facts) {
  const std::string held = facts.text("tokenizer"), characters = facts.text("characters");
  if (options.tokenizer.empty()) {
    if (!characters.empty()) return TokenText(data::CharVocabulary(from_hexadecimal(characters)));
    throw ValueError("`tokenizer`: " + facts.path +
                     " names no characters, so its tokens are those of a tokenizer.json, which is to be given");
  }
  if (!characters.empty()) {
    throw ValueError("`tokenizer`: " + facts.path + " has characters as tokens; expected none");
  }
  TokenText text(std::make_shared<const data::Tokenizer>(data::read_tokenizer(options.tokenizer)));
  if (!held.empty() && held != text.tokenizer_sum()) {
    throw ValueError("`tokenizer`: " + options.tokenizer + " has " + text.tokenizer_sum() + "; " + facts.path +
                     " was trained with " + held + "; expected the same");
  }
  return text;
}

}  // namespace

std::unique_ptr<Decoder> make_decoder(const GenerationShape& shape, memory::Device device) {
  const nn::TensorOptions on = tensor_options(shape.setup, device);
  if (on.fp8) {
    throw ValueError("`precision`: " + shape.setup.precision.policy +
                     "; its scales are those of training; expected a policy without FP8");
  }
  std::unique_ptr<Model> model = make_model(shape.setup.model, shape.setup.sizes, on);
  require_decoder(*model, shape.setup.model.c_str());
  return std::unique_ptr<Decoder>(static_cast<Decoder*>(model.release()));
}

GenerationShape complete_shape(const GenerationShape& given) {
  GenerationShape shape = given;
  const std::unique_ptr<Decoder> model = make_decoder(shape, dry(cpu));
  const auto text = [](std::int64_t n) { return std::to_string(n); };
  if (shape.context == 0) shape.context = model->options().sequence;
  if (shape.context > model->most_positions()) {
    throw ValueError("`context`: " + text(shape.context) + "; " + shape.setup.model + " has learned " +
                     text(model->most_positions()) + " positions; expected at most as many");
  }
  if (shape.prompt_tokens == 0) {
    shape.prompt_tokens = std::max<std::int64_t>(1, shape.context - std::max<std::int64_t>(1, shape.tokens));
  }
  if (shape.tokens == 0) shape.tokens = std::max<std::int64_t>(1, shape.context - shape.prompt_tokens);
  if (shape.prompt_tokens + shape.tokens > shape.context) {
    throw ValueError("`context`: " + text(shape.context) + " positions for a prompt of " + text(shape.prompt_tokens) +
                     " tokens and " + text(shape.tokens) + " more; at least " +
                     text(shape.prompt_tokens + shape.tokens) + " are needed");
  }
  if (!shape.cache) shape.cache = model->cache_sizes().dtype;
  return shape;
}

GenerationPlan plan_generation(const GenerationShape& given, memory::Device device) {
  GenerationPlan plan;
  plan.shape = complete_shape(given);
  const nn::MemoryProfile profile = nn::profile_training(
      dry(device),
      [&](memory::Device on) {
        auto run = std::make_unique<DryGeneration>(plan.shape, on);
        plan.cache = run->cache();
        return run;
      },
      1);
  plan.parameters = profile.parameters;
  plan.peak_bytes = profile.peak_bytes;
  plan.peak_by_category = profile.peak_by_category;
  plan.committed = memory::committed_parts(profile.peak_live_bytes, profile.peak_height_bytes, profile.peak_bytes);
  return plan;
}

nn::BudgetError refuse_generation(const GenerationPlan& plan, memory::Device device, std::size_t budget_bytes) {
  const GenerationShape& shape = plan.shape;
  std::size_t minimum = plan.peak_bytes;
  std::string fits;
  const auto offer = [&](const std::string& what) { fits += (fits.empty() ? "" : "; ") + what; };
  const std::int64_t needed = shape.prompt_tokens + shape.tokens;
  const std::int64_t context = largest(shape, device, budget_bytes, needed, shape.context - 1,
                                       [](GenerationShape& s, std::int64_t value) { s.context = value; });
  if (context > 0) offer("`context` " + std::to_string(context));
  for (const DType dtype : {DType::bf16, DType::i8}) {
    if (size_of(dtype) >= size_of(plan.cache.dtype)) continue;
    GenerationShape other = shape;
    other.cache = dtype;
    const auto bytes = bytes_in(other, device);
    if (!bytes) continue;
    minimum = std::min(minimum, *bytes);
    if (*bytes <= budget_bytes) offer("`cache` " + std::string(to_string(dtype)));
  }
  const std::int64_t batch = largest(shape, device, budget_bytes, 1, shape.setup.batch - 1,
                                     [](GenerationShape& s, std::int64_t value) { s.setup.batch = value; });
  if (batch > 0) offer("`batch` " + std::to_string(batch));
  GenerationShape least = shape;
  least.context = needed, least.setup.batch = 1;
  if (const auto bytes = bytes_in(least, device)) minimum = std::min(minimum, *bytes);
  const std::string whole = "`budget_bytes`: " + memory::exact_bytes(budget_bytes) + "; " + shape.setup.model +
                            " with " + std::to_string(shape.setup.batch) + " sequences, `context` " +
                            std::to_string(shape.context) + " and `cache` " + dtype_text(plan) + " needs " +
                            memory::exact_bytes(plan.peak_bytes) + ", of which the cache is " +
                            memory::exact_bytes(plan.cache.bytes());
  return {
      whole + (fits.empty() ? "; no shorter context, narrower cache or smaller batch fits" : "; what fits: " + fits),
      budget_bytes, minimum};
}

PreparedGeneration prepare_generation(const GenerateOptions& options) {
  PreparedGeneration prepared{options, {}, {}, {}, {}};
  GenerateOptions& o = prepared.options;
  o.sampling.check();
  if (o.weights.empty() == o.checkpoint.empty()) {
    throw ValueError("`weights`, `checkpoint`: expected one of them, got " +
                     std::string(o.weights.empty() ? "neither" : "both"));
  }
  const WeightFacts facts = read_weight_facts(o.checkpoint.empty() ? o.weights : o.checkpoint, !o.checkpoint.empty());
  follow_model(o.shape, facts);
  prepared.text = text_of(o, facts);
  const auto& characters = prepared.text.characters();
  if (const std::int64_t tokens = o.shape.setup.sizes.vocabulary;
      characters && tokens > 0 && characters->size() != tokens) {
    throw ValueError(facts.path + ": `characters` names " + std::to_string(characters->size()) +
                     ", expected as many as the model has tokens, " + std::to_string(tokens));
  }
  if (!o.ignores_end) prepared.end_tokens = find_end_tokens(o.weights, prepared.text);
  prepared.prompt = prepared.text.encode(o.prompt);
  if (prepared.prompt.empty()) throw ValueError("`prompt`: it has no tokens; at least one is needed");
  o.shape.prompt_tokens = static_cast<std::int64_t>(prepared.prompt.size());
  if (o.shape.context == 0) o.shape.context = o.shape.prompt_tokens + o.shape.tokens;
  prepared.plan = plan_generation(o.shape, o.device);
  o.shape = prepared.plan.shape;
  const std::unique_ptr<Decoder> model = make_decoder(o.shape, dry(cpu));
  for (const std::int64_t token : prepared.prompt) {
    if (token < model->options().vocabulary) continue;
    throw ValueError("`prompt`: token " + std::to_string(token) + "; the model has those below " +
                     std::to_string(model->options().vocabulary));
  }
  if (o.budget_bytes > 0 && prepared.plan.peak_bytes > o.budget_bytes) {
    throw refuse_generation(prepared.plan, o.device, o.budget_bytes);
  }
  return prepared;
}

GenerateReport generate(const PreparedGeneration& prepared, const TokenObserver& observer) {
  const GenerateOptions& o = prepared.options;
  GenerateReport report;
  report.parameters = prepared.plan.parameters;
  report.predicted_peak_bytes = prepared.plan.peak_bytes;
  std::optional<memory::ProcessWatch> watch;
  if (o.device == cpu) {
    watch.emplace();
    memory::require_room(
        {prepared.plan.peak_bytes,
         memory::outside_bytes(watch->base(), {.threads = thread_count(), .staging = nn::file_staging_bytes})});
  }
  memory::Options stack_options;
  stack_options.arena.capacity_bytes = o.budget_bytes;
  if (memory::has_address_limit()) stack_options.arena.reserve_bytes = prepared.plan.peak_bytes;
  const memory::Stack stack = memory::make_resource(o.device, std::move(stack_options));
  const ResourceScope scope(stack.top);
  {
    Writer writer(o.shape, o.device, o.sampling);
    load(prepared, writer.model());
    report.cache_bytes = stack.ledger->bytes_by_category()[static_cast<std::size_t>(memory::Category::activation)];
    const auto batch = static_cast<std::size_t>(o.shape.setup.batch);
    report.tokens.resize(batch), report.ended_by.resize(batch);
    const auto add = [&](const std::vector<std::int64_t>& tokens) {
      std::vector<std::string> pieces(batch);
      for (std::size_t b = 0; b < batch; ++b) {
        if (report.ended_by[b]) continue;
        if (std::binary_search(prepared.end_tokens.begin(), prepared.end_tokens.end(), tokens[b])) {
          report.ended_by[b] = tokens[b];
          continue;
        }
        report.tokens[b].push_back(tokens[b]);
        pieces[b] = prepared.text.decode({tokens[b]});
      }
      if (observer) observer(pieces);
    };
    const auto have_all_ended = [&] {
      return std::all_of(report.ended_by.begin(), report.ended_by.end(), [](const auto& by) { return by.has_value(); });
    };
    auto start = std::chrono::steady_clock::now();
    std::vector<std::int64_t> tokens = writer.begin(prepared.prompt);
    report.prompt_seconds = seconds_since(start);
    add(tokens);
    start = std::chrono::steady_clock::now();
    std::int64_t steps = 1;
    for (; steps < o.shape.tokens && !have_all_ended(); ++steps) {
      tokens = writer.go_on(tokens);
      add(tokens);
    }
    report.seconds = seconds_since(start);
    report.is_shorter = steps < o.shape.tokens;
    std::size_t written = 0;  // after the first of each
    for (const auto& each : report.tokens) written += each.empty() ? 0 : each.size() - 1;
    if (written > 0) report.tokens_per_second = static_cast<double>(written) / report.seconds;
  }
  for (const std::vector<std::int64_t>& tokens : report.tokens) report.texts.push_back(prepared.text.decode(tokens));
  report.measured = memory::committed_at_peak(stack);
  report.measured_peak_bytes = stack.arena->statistics().peak_committed_bytes;
  return report;
}

}  // namespace thimble::models
