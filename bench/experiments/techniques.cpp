#include <thimble/bench/experiments/techniques.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/bench/experiments/experiments.h>
#include <thimble/bench/flag_names.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/transaction.h>
#include <thimble/memory/offload/file_tier.h>
#include <thimble/memory/offload/offload.h>
#include <thimble/memory/offload/tier.h>
#include <thimble/memory/remat/schedule.h>
#include <thimble/models/bert/bert.h>
#include <thimble/models/gpt/gpt.h>
#include <thimble/models/llama/llama.h>
#include <thimble/models/vit/vit.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/fit/stages.h>

namespace thimble::bench {

namespace {

constexpr double average_decay = 0.99;

/// Every block of a transformer under checkpoint(); false where the model is none.
bool recompute_blocks(models::Model& model) {
  if (auto* const gpt = dynamic_cast<models::Gpt*>(&model)) return gpt->recompute_blocks(), true;
  if (auto* const llama = dynamic_cast<models::Llama*>(&model)) return llama->recompute_blocks(), true;
  if (auto* const bert = dynamic_cast<models::Bert*>(&model)) return bert->recompute_blocks(), true;
  if (auto* const vit = dynamic_cast<models::Vit*>(&model)) return vit->recompute_blocks(), true;
  return false;
}

/// A moving average of all parameters. An offloaded one is on the device only between steps.
class WeightAverage {
 public:
  WeightAverage(const models::Model& model, memory::Device device, bool is_offloaded) : model_(model) {
    if (is_offloaded) tier_ = memory::make_tier(device);
    for (const nn::NamedTensor& p : model.parameters()) averages_.push_back(clone(p.tensor.detach()));
  }

  std::size_t tier_bytes() const { return tier_ ? tier_->statistics().committed_bytes : 0; }

  void begin_step() {
    if (!tier_) return;
    for (Tensor& t : averages_) away_.push_back(memory::offload(std::move(t), tier_));
    averages_.clear();
    for (memory::Offloaded& t : away_) t.complete();
  }

  void end_step() {
    for (memory::Offloaded& t : away_) averages_.push_back(t.fetch());
    away_.clear();
    const NoGrad off;
    std::size_t i = 0;
    for (const nn::NamedTensor& p : model_.parameters()) {
      Tensor& average = averages_[i++];
      copy_into(average, add(mul(average, average_decay), mul(p.tensor.detach(), 1 - average_decay)));
    }
  }

 private:
  const models::Model& model_;
  std::shared_ptr<memory::Tier> tier_;
  std::vector<Tensor> averages_;
  std::vector<memory::Offloaded> away_;
};

class TechniqueRun final : public nn::TrainingRun {
 public:
  TechniqueRun(const models::Setup& setup, const StepForm& technique, memory::Device device)
      : technique_(technique),
        generator_(setup.seed),
        scope_(generator_),
        model_(models::make_model(setup.model, setup.sizes, {device, setup.precision.dtype})) {
    const std::int64_t parts = technique.micro_batches;
    if (parts < 1 || setup.batch % parts != 0) {
      throw ValueError("technique: " + std::to_string(parts) + " micro-batches do not divide a batch of " +
                       std::to_string(setup.batch));
    }
    const bool wants_blocks = technique.checkpoint == Checkpoint::blocks || technique.checkpoint == Checkpoint::nested;
    const bool has_blocks = wants_blocks && recompute_blocks(*model_);
    is_whole_ = technique.checkpoint == Checkpoint::nested || technique.checkpoint == Checkpoint::costly ||
                (wants_blocks && !has_blocks);
    for (std::int64_t i = 0; i < parts; ++i) batches_.push_back(model_->empty_batch(setup.batch / parts, device));
    if (technique.is_inference) {
      model_->eval();
      return;
    }
    optimizer_ = make_optimizer(setup, *model_);
    options_.clip_norm = technique.fuses_optimizer ? 0 : clip_norm(setup, model_->is_text());
    options_.micro_batches = parts;
    options_.micro_samples = setup.batch / parts;
    options_.recording.plan = technique.tape;
    if (technique.fuses_optimizer) {
      options_.fuses_optimizer = technique.placement.empty() ? nn::FusedUpdate::unsecured : nn::FusedUpdate::secured;
    }
    if (technique.average != Average::none) {
      average_ = std::make_unique<WeightAverage>(*model_, device, technique.average == Average::offloaded);
    }
  }

  void step() override {
    if (technique_.is_inference) {
      const NoGrad off;
      for (const models::Batch& batch : batches_) model_->forward(batch.input);
      return;
    }
    if (average_) average_->begin_step();
    nn::training_step(
        *optimizer_, [this](std::int64_t i) { return loss_of(batches_[static_cast<std::size_t>(i)]); }, options_);
    if (average_) average_->end_step();
  }
  nn::StepOptions& options() override { return options_; }
  std::int64_t parameters() const override { return model_->parameter_count(); }
  std::size_t tier_bytes() const override {
    return (optimizer_ ? nn::tier_bytes(*optimizer_, options_) : 0) + (average_ ? average_->tier_bytes() : 0);
  }

  PassBytes pass(const memory::Stack& stack, const PartWatch& watch, const std::string& layers) {
    const std::size_t first_event = stack.trace->event_count();
    tape::Transaction transaction;
    PassBytes bytes;
    {
      Tape tape;
      tape.follow(technique_.tape);
      Tensor loss;
      {
        const Recording on(tape);
        loss = loss_of(batches_.front());
      }
      bytes.kept = stack.ledger->bytes(memory::Category::activation);
      bytes.kept_layers = stack.ledger->bytes(memory::Category::activation, layers);
      const std::size_t nodes = tape.node_count();
      tape.backward(loss);
      bytes.process = watch.bytes(*stack.arena, nodes);
    }
    const std::vector<memory::CategoryBytes> states = timeline(stack.trace->events());
    for (std::size_t i = first_event; i < states.size(); ++i) {
      const auto of = [&](memory::Category category) { return states[i][static_cast<std::size_t>(category)]; };
      bytes.peak = std::max(
          bytes.peak, static_cast<std::size_t>(of(memory::Category::activation) + of(memory::Category::temporary)));
    }
    return bytes;
  }

 private:
  Tensor loss_of(const models::Batch& batch) {
    if (!is_whole_) return model_->loss(batch);
    const FatePolicy policy = technique_.checkpoint == Checkpoint::costly ? keep_costly : drop_all;
    return checkpoint_with(
        policy,
        [&](const Tensor& x) {
          return model_->loss({x, batch.target});
        },
        batch.input);
  }

  StepForm technique_;
  RandomGenerator generator_;
  GeneratorScope scope_;
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::vector<models::Batch> batches_;
  std::unique_ptr<WeightAverage> average_;
  nn::StepOptions options_;
  bool is_whole_ = false;  // the whole network is one segment
};

// ---- Experiment: predicted and measured peaks over models, batches, optimizers, and every technique and combination.

/// Whose plan of the tape is followed.
enum class TapeKind : std::uint8_t { program, square_root, halves, binomial, budget };

/// A technique as a row names it. The run makes its recording or plan.
struct Entry {
  std::string name;  ///< of the techniques that it combines: "checkpoint + placed"
  StepForm technique;
  TapeKind tape = TapeKind::program;
  int budget_percent = 0;  ///< 0 is the smallest plan's peak, 100 keeps everything
  bool is_placed = false;
  bool has_chunked_head = false;
  bool shares_kernels = true;
};

void apply(Entry& entry, std::string_view part) {
  StepForm& t = entry.technique;
  if (part == "checkpoint") t.checkpoint = Checkpoint::blocks;
  if (part == "nested checkpoint") t.checkpoint = Checkpoint::nested;
  if (part == "keep costly") t.checkpoint = Checkpoint::costly;
  if (part == "sqrt(n)") entry.tape = TapeKind::square_root;
  if (part == "halves") entry.tape = TapeKind::halves;
  if (part == "binomial") entry.tape = TapeKind::binomial;
  if (part.starts_with("budget ")) {
    entry.tape = TapeKind::budget;
    entry.budget_percent = std::stoi(std::string(part.substr(7)));
  }
  if (part == "placed") entry.is_placed = true;
  if (part == "2 micro-batches") t.micro_batches = 2;
  if (part == "4 micro-batches") t.micro_batches = 4;
  if (part == "fused update") t.fuses_optimizer = true;
  if (part == "chunked head") entry.has_chunked_head = true;
  if (part == "no sharing") entry.shares_kernels = false;
  if (part == "inference") t.is_inference = true;
  if (part == "average") t.average = Average::kept;
  if (part == "offloaded average") t.average = Average::offloaded;
}

/// Takes the text before the separator, or the rest.
std::string_view take(std::string_view& text, std::string_view separator) {
  const std::string_view part = text.substr(0, text.find(separator));
  text.remove_prefix(std::min(text.size(), part.size() + separator.size()));
  return part;
}

struct Subject {
  models::Setup setup;
  bool is_text = false;
};

std::vector<Entry> entries_of(const Subject& subject, bool is_quick) {
  std::vector<Entry> entries;
  const auto add = [&](std::string_view list) {
    while (!list.empty()) {
      std::string_view name = take(list, ", ");
      Entry& entry = entries.emplace_back();
      entry.name = name;
      while (!name.empty()) apply(entry, take(name, " + "));
    }
  };
  const bool is_sharing = subject.setup.model == "sharedconv";
  add("keep everything, checkpoint, keep costly, budget 0 %, budget 50 %, placed, 2 micro-batches");
  add("fused update + placed, inference, offloaded average");
  if (subject.is_text) add("chunked head + checkpoint");
  if (is_sharing) add("no sharing");
  if (is_quick) return entries;
  add("budget 10 %, budget 100 %, sqrt(n), halves, binomial, nested checkpoint, budget 25 %, budget 75 %");
  add("4 micro-batches, fused update, average, inference + placed, checkpoint + placed, checkpoint + 2 micro-batches");
  add("checkpoint + fused update, checkpoint + fused update + placed, keep costly + fused update + placed");
  add("2 micro-batches + placed, sqrt(n) + 4 micro-batches + placed, budget 0 % + 2 micro-batches");
  add("budget 25 % + fused update, offloaded average + checkpoint + 2 micro-batches");
  if (subject.is_text) {
    add("chunked head, chunked head + fused update + placed, chunked head + budget 25 %");
    add("chunked head + checkpoint + 4 micro-batches + placed");
  }
  if (is_sharing) add("no sharing + checkpoint + placed, no sharing + budget 25 %, no sharing + fused update + placed");
  return entries;
}

Subject subject_of(const char* model, std::int64_t batch, const char* optimizer, bool is_quick) {
  Subject subject;
  models::Setup& setup = subject.setup;
  setup.model = model;
  setup.batch = batch;
  setup.optimizer.name = optimizer;
  models::ModelOptions& sizes = setup.sizes;
  subject.is_text = setup.model == "char-gpt" || setup.model == "gpt2" || setup.model == "bert-base";
  if (subject.is_text || setup.model == "vit-b16") {
    sizes.layers = 4, sizes.width = is_quick ? 64 : 128, sizes.heads = 4, sizes.dropout = 0.1;
    if (setup.model == "vit-b16") {
      sizes.image = 96, sizes.classes = 10;
    } else {
      sizes.sequence = 64;
      if (setup.model != "char-gpt") sizes.vocabulary = 2000;
    }
  } else if (setup.model != "mlp") {
    sizes.image = 32, sizes.classes = 10;
    if (setup.model != "googlenet") sizes.width = is_quick ? 16 : 32;
  }
  return subject;
}

std::vector<Subject> subjects(bool is_quick) {
  if (is_quick) {
    return {subject_of("mlp", 64, "momentum", true), subject_of("resnet18", 4, "momentum", true),
            subject_of("sharedconv", 4, "adam", true), subject_of("char-gpt", 4, "adamw", true)};
  }
  std::vector<Subject> list;
  for (const char* model : {"mlp", "resnet18", "sharedconv", "char-gpt", "gpt2", "bert-base", "vit-b16"}) {
    const bool is_mlp = std::string(model) == "mlp";
    list.push_back(subject_of(model, is_mlp ? 64 : 4, "adamw", false));
    list.push_back(subject_of(model, is_mlp ? 1024 : 8, "momentum", false));
  }
  list.push_back(subject_of("googlenet", 4, "sgd", false));
  return list;
}

/// Planners of one subject, one per recording that its techniques make: making one takes a second or more.
class EntryPlanners {
 public:
  nn::Plan plan(memory::Device device, const models::Setup& setup, const Entry& entry) {
    const std::string key = std::to_string(entry.technique.micro_batches) +
                            (entry.technique.fuses_optimizer ? "f" : "") + (entry.has_chunked_head ? "c" : "") +
                            (entry.shares_kernels ? "" : "n");
    auto found = std::find_if(list_.begin(), list_.end(), [&](const auto& named) { return named.first == key; });
    if (found == list_.end()) {
      list_.emplace_back(
          key, std::make_unique<nn::Planner>(technique_run(setup, entry.technique), device, nn::hardware("cpu")));
      found = list_.end() - 1;
    }
    nn::Planner& planner = *found->second;
    const std::size_t least = planner.smallest().peak_bytes;
    const std::size_t most = std::max(least, planner.keep_everything().peak_bytes);
    return planner.fit(least + (most - least) * static_cast<std::size_t>(entry.budget_percent) / 100);
  }

 private:
  std::vector<std::pair<std::string, std::unique_ptr<nn::Planner>>> list_;
};

/// Fills in the plans that the entry's technique follows. `promised_bytes` is the peak of the planner's plan, if any.
StepForm complete(memory::Device device, const models::Setup& setup, const Entry& entry, EntryPlanners& planners,
                  std::optional<std::size_t>& promised_bytes) {
  StepForm technique = entry.technique;
  if (entry.tape == TapeKind::budget) {
    const nn::Plan plan = planners.plan(device, setup, entry);
    technique.tape = plan.tape;
    technique.placement = plan.placement;
    promised_bytes = plan.peak_bytes;
  } else if (entry.tape != TapeKind::program) {
    const auto schedule = [&](std::size_t n) {
      constexpr std::size_t slots = 3;
      return entry.tape == TapeKind::square_root ? remat::square_root(n)
             : entry.tape == TapeKind::halves    ? remat::recursive_halves(n)
                                                 : remat::binomial(n, slots);
    };
    technique.tape = scheduled_tape(device, technique_run(setup, technique), schedule);
  }
  if (entry.is_placed) {
    technique.placement = nn::plan_steps(device, technique_run(setup, technique));
  }
  return technique;
}

/// Whether this machine can hold a tier on a disk.
bool has_direct_files() {
  try {
    const memory::FileTier tier;
    return true;
  } catch (const FileError&) {
    return false;
  }
}

Figures figures_of(const Rows& rows, models::Setup setup, const Entry& entry, EntryPlanners& planners) {
  const memory::Device device = rows.options.device;
  if (entry.has_chunked_head) setup.sizes.head = models::Head::chunked;
  setup.sizes.shares_kernels = entry.shares_kernels;
  std::optional<std::size_t> promised_bytes;
  const StepForm technique = complete(device, setup, entry, planners, promised_bytes);
  const nn::MakeRun make = technique_run(setup, technique);
  try {
    const Comparison compared = compare(device, make, technique.placement);
    const nn::MemoryProfile &predicted = compared.predicted, &measured = compared.measured;
    const bool is_as_promised = !promised_bytes || predicted.peak_bytes == *promised_bytes;
    Figures figures{.predicted = predicted.peak_bytes,
                    .measured = measured.peak_bytes,
                    .numbers = {{"height", predicted.peak_height_bytes},
                                {"height_measured", measured.peak_height_bytes},
                                {"live", predicted.peak_live_bytes},
                                {"live_measured", measured.peak_live_bytes},
                                {"resident", measured.rss_bytes},
                                {"same", compared.is_equal() && is_as_promised ? 1 : 0},
                                {"ms_per_step", measured.ms_per_step}},
                    .compared = {{"height", predicted.peak_height_bytes, measured.peak_height_bytes},
                                 {"live", predicted.peak_live_bytes, measured.peak_live_bytes},
                                 {"load", predicted.lower_bound_bytes, measured.lower_bound_bytes},
                                 {"tier", predicted.tier_bytes, measured.tier_bytes}},
                    .processes = {{predicted.peak_bytes, process_bytes(measured)}}};
    if (measured.rss_bytes > 0) figures.compared.push_back({"resident", predicted.peak_bytes, measured.rss_bytes});
    if (promised_bytes) figures.compared.push_back({"planned peak", *promised_bytes, predicted.peak_bytes});
    return figures;
  } catch (const FileError& error) {
    if (technique.average != Average::offloaded || has_direct_files()) throw;
    // No disk here can take the tensors: the row is only a prediction, and the verdict reports it.
    rows.say(std::string("not measured: ") + with_flags(error.what()));
    return {.predicted = nn::profile_training(dry(device), make, 2, false, technique.placement).peak_bytes,
            .lacks = "a folder in which files go around the page cache"};
  }
}

}  // namespace

nn::MakeRun technique_run(const models::Setup& setup, const StepForm& technique) {
  return [setup, technique](memory::Device device) { return std::make_unique<TechniqueRun>(setup, technique, device); };
}

TapePlan tape_plan_of(const TapeGraph& graph, std::span<const std::uint32_t> cuts,
                      const remat::ScheduleTree& schedule) {
  TapePlan plan;
  for (const TapeGraph::Node& node : graph.nodes) plan.types.push_back(node.type);
  plan.fates.assign(graph.nodes.size(), Fate::drop);
  struct Open {
    std::size_t last_item;
    std::int32_t segment;
  };
  std::vector<Open> around;
  for (std::size_t i = 0; i < schedule.items.size(); ++i) {
    while (!around.empty() && around.back().last_item < i) around.pop_back();
    const remat::ScheduleTree::Item& item = schedule.items[i];
    if (!item.is_dropped()) continue;
    const std::int32_t parent = around.empty() ? TapePlan::none : around.back().segment;
    around.push_back({i + item.size, static_cast<std::int32_t>(plan.segments.size())});
    plan.segments.push_back({cuts[item.begin], cuts[item.end], parent});
  }
  return plan;
}

std::shared_ptr<const TapePlan> scheduled_tape(memory::Device device, const nn::MakeRun& make,
                                               const std::function<remat::ScheduleTree(std::size_t n)>& schedule) {
  const TapeGraph graph = nn::record_step(device, make);
  const std::vector<std::uint32_t> cuts = nn::cut_points(graph);
  return std::make_shared<TapePlan>(tape_plan_of(graph, cuts, schedule(cuts.size() - 1)));
}

std::vector<std::uint32_t> block_cuts(const TapeGraph& graph, const std::string& prefix) {
  std::vector<std::uint32_t> cuts;
  std::string block;
  std::uint32_t end = 0;
  for (std::uint32_t n = 0; n < graph.nodes.size(); ++n) {
    const std::string_view path = path_name(graph.nodes[n].path);
    if (!path.starts_with(prefix)) continue;
    const std::string_view name = path.substr(0, std::min(path.find('.', prefix.size()), path.size()));
    if (name != block) cuts.push_back(n);
    block = name;
    end = n + 1;
  }
  if (cuts.empty()) throw ValueError("block_cuts: no operator runs under a path that begins with '" + prefix + "'");
  cuts.push_back(end);
  return cuts;
}

PassBytes pass_bytes(memory::Device device, const models::Setup& setup, const StepForm& technique,
                     const std::string& layers) {
  memory::Options options = nn::profile_options(device);
  options.trace = true;
  const memory::Stack stack = memory::make_resource(device, std::move(options));
  const ResourceScope scope(stack.top);
  const PartWatch watch(device);
  TechniqueRun run(setup, technique, device);
  return run.pass(stack, watch, layers);
}

bool Comparison::is_equal() const noexcept {
  const bool is_resident = measured.rss_bytes == 0 || measured.rss_bytes == measured.peak_bytes;
  return predicted.peak_bytes == measured.peak_bytes && predicted.peak_height_bytes == measured.peak_height_bytes &&
         predicted.peak_live_bytes == measured.peak_live_bytes &&
         predicted.lower_bound_bytes == measured.lower_bound_bytes && predicted.tier_bytes == measured.tier_bytes &&
         is_resident;
}

Comparison compare(memory::Device device, const nn::MakeRun& make,
                   const std::vector<memory::StepPlacement>& placement) {
  constexpr std::size_t steps = 2;
  return {nn::profile_training(dry(device), make, steps, false, placement),
          nn::profile_training(device, make, steps, false, placement)};
}

std::vector<TechniqueCount> count_by_technique(const std::vector<report::Row>& rows) {
  std::vector<TechniqueCount> counts;
  for (const report::Row& row : rows) {
    const std::string names = setting(row, "technique");
    if (!value(row, "same")) continue;  // not measured
    const bool is_same = value(row, "same") == 1;
    for (std::size_t begin = 0; begin < names.size();) {
      const std::size_t end = std::min(names.find(" + ", begin), names.size());
      std::string name = names.substr(begin, end - begin);
      if (name.starts_with("budget ")) name = "budget";
      if (name.ends_with(" micro-batches")) name = "micro-batches";
      auto found = std::find_if(counts.begin(), counts.end(), [&](const auto& count) { return count.name == name; });
      if (found == counts.end()) found = counts.insert(counts.end(), {name, 0, 0});
      ++found->rows;
      found->equal += is_same ? 1 : 0;
      begin = end + 3;
    }
  }
  return counts;
}

std::string run_techniques(Rows& rows) {
  for (const Subject& subject : subjects(rows.options.is_quick)) {
    const models::Setup& setup = subject.setup;
    EntryPlanners planners;
    for (const Entry& entry : entries_of(subject, rows.options.is_quick)) {
      rows.add({{"model", setup.model},
                {"batch", setup.batch},
                {"optimizer", setup.optimizer.name},
                {"technique", entry.name}},
               [&] { return figures_of(rows, setup, entry, planners); });
    }
  }
  const std::vector<report::Row>& all = rows.experiment.rows;
  std::vector<report::Row> measured;
  std::copy_if(all.begin(), all.end(), std::back_inserter(measured), [](const auto& row) { return row.lacks.empty(); });
  std::string text = "All figures are the same integers in " +
                     count_rows(measured, [](const report::Row& row) { return value(row, "same") == 1; }) +
                     " measured rows";
  if (measured.size() < all.size()) {
    text += " (" + std::to_string(all.size() - measured.size()) +
            " were not measured: no folder here lets a file go around the page cache)";
  }
  text += ". Rows with each technique, alone or combined:";
  for (const TechniqueCount& count : count_by_technique(all)) {
    text += (text.ends_with(":") ? " " : "; ") + count.name + " " + std::to_string(count.equal) + " of " +
            std::to_string(count.rows);
  }
  return text + ".";
}

}  // namespace thimble::bench
