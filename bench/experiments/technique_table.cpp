// Experiment: predicted and measured peaks over models, batches, optimizers, and every technique and combination.

#include <algorithm>
#include <optional>
#include <string_view>

#include <thimble/bench/experiments/runs.h>
#include <thimble/bench/experiments/techniques.h>
#include <thimble/bench/flag_names.h>
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
  StepForm technique;
  Tape tape = Tape::program;
  int budget_percent = 0;  ///< between the smallest plan's peak and that of keeping everything
  bool is_placed = false;
  bool has_chunked_head = false;
  bool shares_kernels = true;
};

void apply(Entry& entry, std::string_view part) {
  StepForm& t = entry.technique;
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

/// Fills in what the entry's technique follows. `promised_bytes` is the peak that the planner gives its plan, where
/// there is one.
StepForm complete(memory::Device device, const models::Setup& setup, const Entry& entry, Planners& planners,
                  std::optional<std::size_t>& promised_bytes) {
  StepForm technique = entry.technique;
  if (entry.tape == Tape::budget) {
    const nn::Plan plan = planners.plan(device, setup, entry);
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
    technique.tape = scheduled_tape(device, technique_run(setup, technique), schedule);
  }
  if (entry.is_placed) {
    technique.placement = nn::plan_steps(device, technique_run(setup, technique));
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

Figures figures_of(const Rows& rows, models::Setup setup, const Entry& entry, Planners& planners) {
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
    // No disk here can take the tensors: the row is only a prediction, and the verdict says so.
    rows.say(std::string("not measured: ") + with_flags(error.what()));
    return {.predicted = nn::profile_training(dry(device), make, 2, false, technique.placement).peak_bytes,
            .lacks = "a folder in which files go around the page cache"};
  }
}

}  // namespace technique_table_detail

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
  using namespace technique_table_detail;
  for (const Subject& subject : subjects(rows.options.is_quick)) {
    const models::Setup& setup = subject.setup;
    Planners planners;
    for (const Entry& entry : entries_of(subject, rows.options.is_quick)) {
      rows.add(
          {{"model", setup.model}, {"batch", setup.batch}, {"optimizer", setup.optimizer}, {"technique", entry.name}},
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
