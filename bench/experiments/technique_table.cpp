// Experiment: predicted and measured peaks over models, batches, optimizers, and every technique and combination.

#include <algorithm>
#include <optional>
#include <string_view>

#include <thimble/bench/commands/flags.h>
#include <thimble/bench/experiments/experiments.h>
#include <thimble/bench/experiments/runs.h>
#include <thimble/bench/experiments/techniques.h>
#include <thimble/core/error.h>
#include <thimble/memory/offload/file_tier.h>
#include <thimble/memory/remat/known.h>
#include <thimble/nn/fit/fit.h>

namespace thimble::bench {
namespace technique_table_detail {

/// Whose plan of the tape is followed.
enum class Tape : std::uint8_t { program, square_root, halves, binomial, budget };

/// A technique as a row names it; what needs a recording or a plan is made when it is run.
struct Entry {
  std::string name;  ///< of the techniques that it combines: "checkpoint + placed"
  Technique technique;
  Tape tape = Tape::program;
  int budget_percent = 0;  ///< between the smallest plan's peak and that of keeping everything
  bool is_placed = false;
  bool has_chunked_head = false;
  bool shares_kernels = true;
};

void apply(Entry& entry, std::string_view part) {
  Technique& t = entry.technique;
  if (part == "checkpoint") t.checkpoint = Checkpoint::blocks;
  if (part == "nested checkpoint") t.checkpoint = Checkpoint::nested;
  if (part == "keep costly") t.checkpoint = Checkpoint::costly;
  if (part == "sqrt(n)") entry.tape = Tape::square_root;
  if (part == "halves") entry.tape = Tape::halves;
  if (part == "binomial") entry.tape = Tape::binomial;
  if (part.starts_with("budget ")) {
    entry.tape = Tape::budget;
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

/// Takes what comes before the separator, or the rest.
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
  setup.optimizer = optimizer;
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

/// Planners of one subject, by what of the technique changes the recording: making one takes a second or more.
class Planners {
 public:
  nn::Plan plan(Device device, const models::Setup& setup, const Entry& entry) {
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

/// Fills in what the entry's technique follows. `promised_bytes` is the peak that the planner gives its plan, where
/// there is one.
Technique complete(const ExperimentOptions& options, const models::Setup& setup, const Entry& entry, Planners& planners,
                   std::optional<std::size_t>& promised_bytes) {
  Technique technique = entry.technique;
  if (entry.tape == Tape::budget) {
    const nn::Plan plan = planners.plan(options.device, setup, entry);
    technique.tape = plan.tape;
    technique.placement = plan.placement;
    promised_bytes = plan.peak_bytes;
  } else if (entry.tape != Tape::program) {
    const auto schedule = [&](std::size_t n) {
      constexpr std::size_t slots = 3;
      return entry.tape == Tape::square_root ? remat::square_root(n)
             : entry.tape == Tape::halves    ? remat::recursive_halves(n)
                                             : remat::binomial(n, slots);
    };
    technique.tape = scheduled_tape(options.device, technique_run(setup, technique), schedule);
  }
  if (entry.is_placed) {
    technique.placement = nn::plan_steps(options.device, technique_run(setup, technique));
  }
  return technique;
}

/// Whether this machine has what a tier on a disk needs.
bool has_direct_files() {
  try {
    const FileTier tier;
    return true;
  } catch (const FileError&) {
    return false;
  }
}

report::Row row_of(const ExperimentOptions& options, const Subject& subject, const Entry& entry, Planners& planners) {
  models::Setup setup = subject.setup;
  if (entry.has_chunked_head) setup.sizes.head = models::Head::chunked;
  setup.sizes.shares_kernels = entry.shares_kernels;
  options.progress("techniques: " + setup.model + ", batch " + std::to_string(setup.batch) + ", " + entry.name);
  std::optional<std::size_t> promised_bytes;
  const Technique technique = complete(options, setup, entry, planners, promised_bytes);
  const nn::MakeRun make = technique_run(setup, technique);
  report::Row row;
  row.config = {
      {"model", setup.model}, {"batch", setup.batch}, {"optimizer", setup.optimizer}, {"technique", entry.name}};
  const auto number = [](std::size_t bytes) { return static_cast<double>(bytes); };
  try {
    const Comparison compared = compare(options.device, make, technique.placement);
    const bool is_as_promised = !promised_bytes || compared.predicted.peak_bytes == *promised_bytes;
    row.predicted_bytes = static_cast<std::int64_t>(compared.predicted.peak_bytes);
    row.measured_bytes = static_cast<std::int64_t>(compared.measured.peak_bytes);
    const auto compare_figure = [&row](const char* name, std::size_t told, std::size_t found) {
      row.compared.push_back({name, static_cast<std::int64_t>(told), static_cast<std::int64_t>(found)});
    };
    compare_figure("height", compared.predicted.peak_height_bytes, compared.measured.peak_height_bytes);
    compare_figure("live", compared.predicted.peak_live_bytes, compared.measured.peak_live_bytes);
    compare_figure("load", compared.predicted.lower_bound_bytes, compared.measured.lower_bound_bytes);
    compare_figure("tier", compared.predicted.tier_bytes, compared.measured.tier_bytes);
    if (compared.measured.rss_bytes > 0) {
      compare_figure("resident", compared.predicted.peak_bytes, compared.measured.rss_bytes);
    }
    if (promised_bytes) compare_figure("planned peak", *promised_bytes, compared.predicted.peak_bytes);
    add_process(row, compared.predicted.peak_bytes, process_bytes(compared.measured));
    row.numbers = {{"height", number(compared.predicted.peak_height_bytes)},
                   {"height_measured", number(compared.measured.peak_height_bytes)},
                   {"live", number(compared.predicted.peak_live_bytes)},
                   {"live_measured", number(compared.measured.peak_live_bytes)},
                   {"resident", number(compared.measured.rss_bytes)},
                   {"same", compared.is_equal() && is_as_promised ? 1.0 : 0.0},
                   {"ms_per_step", compared.measured.ms_per_step}};
  } catch (const FileError& error) {
    if (technique.average != Average::offloaded || has_direct_files()) throw;
    // No disk here can take the tensors: the row is a prediction alone, and the verdict says so.
    row.lacks = "a folder in which files go around the page cache";
    options.progress(std::string("techniques: not measured: ") + with_flags(error.what()));
    row.predicted_bytes = static_cast<std::int64_t>(
        nn::profile_training(dry(options.device), make, 2, false, technique.placement).peak_bytes);
  }
  return row;
}

}  // namespace technique_table_detail

std::vector<TechniqueCount> count_by_technique(const std::vector<report::Row>& rows) {
  std::vector<TechniqueCount> counts;
  for (const report::Row& row : rows) {
    std::string names = std::get<std::string>(report::find_setting(row, "technique")->second);
    if (!report::find_number(row, "same")) continue;  // not measured
    const bool is_equal = report::find_number(row, "same") == 1;
    for (std::size_t begin = 0; begin < names.size();) {
      const std::size_t end = std::min(names.find(" + ", begin), names.size());
      std::string name = names.substr(begin, end - begin);
      if (name.starts_with("budget ")) name = "budget";
      if (name.ends_with(" micro-batches")) name = "micro-batches";
      auto found = std::find_if(counts.begin(), counts.end(), [&](const auto& count) { return count.name == name; });
      if (found == counts.end()) found = counts.insert(counts.end(), {name, 0, 0});
      ++found->rows;
      found->equal += is_equal ? 1 : 0;
      begin = end + 3;
    }
  }
  return counts;
}

report::Experiment techniques_experiment(const ExperimentOptions& options) {
  using namespace technique_table_detail;
  report::Experiment experiment;
  experiment.name = "techniques";
  experiment.title = "Peaks under every technique, predicted and measured";
  experiment.question = "Does the dry run tell the peak to the byte whatever is done to need less?";
  experiment.theory =
      "predicted: a dry run of two steps; measured: the real run. Compared as integers are the bytes that the arena "
      "committed, its height, the live bytes, the load, what is offloaded, and the kernel's count of resident bytes. A "
      "budget is given as a share of the way from the smallest plan to keeping everything; every technique is what it "
      "is called in the library, and <i>average</i> a moving average of the weights that is kept, or waits during the "
      "step in a file, on a GPU in the host's pinned memory.";
  using report::Unit;
  experiment.columns = {{"height", "height, predicted", Unit::bytes},
                        {"height_measured", "height, measured", Unit::bytes},
                        {"live", "live, predicted", Unit::bytes},
                        {"live_measured", "live, measured", Unit::bytes},
                        {"resident", "resident (kernel)", Unit::bytes},
                        {"same", "all the same", Unit::plain, 0},
                        {"ms_per_step", "ms per step", Unit::milliseconds, 1}};
  for (const Subject& subject : subjects(options.is_quick)) {
    Planners planners;
    for (const Entry& entry : entries_of(subject, options.is_quick)) {
      experiment.rows.push_back(row_of(options, subject, entry, planners));
    }
  }
  std::size_t equal = 0, measured = 0;
  for (const report::Row& row : experiment.rows) {
    measured += row.measured_bytes ? 1 : 0;
    equal += report::find_number(row, "same") == 1 ? 1 : 0;
  }
  experiment.verdict = "All figures are the same integers in " + std::to_string(equal) + " of " +
                       std::to_string(measured) + " measured rows";
  if (measured < experiment.rows.size()) {
    experiment.verdict += " (" + std::to_string(experiment.rows.size() - measured) +
                          " were not measured: no folder here lets a file go around the page cache)";
  }
  experiment.verdict += ". Rows with each technique, alone or combined:";
  for (const TechniqueCount& count : count_by_technique(experiment.rows)) {
    experiment.verdict += (experiment.verdict.ends_with(":") ? " " : "; ") + count.name + " " +
                          std::to_string(count.equal) + " of " + std::to_string(count.rows);
  }
  experiment.verdict += ".";
  return experiment;
}

}  // namespace thimble::bench
