// The report of a training run, printed from a hand-made one in which all numbers differ.

#include <string>
#include <vector>

#include <thimble/bench/commands/train_output.h>
#include <thimble/memory/units.h>

#include "program/reports_by_hand.h"
#include "support/catch.h"

using namespace reports_test;

namespace {

struct Trained {
  models::RunOptions options;
  bench::TrainExtra extra;
  models::TrainReport report;
};

// A run of two ranks on a GPU with captured steps, so that all keys occur.
Trained trained(Numbers& n) {
  Trained t;
  models::RunOptions& o = t.options;
  o.setup.model = "char-gpt";
  o.setup.precision.policy = "O2", o.setup.precision.dtype = DType::f16;
  o.budget_bytes = n.bytes(), o.setup.micro_batches = n.next(), o.setup.fuses_optimizer = true;
  o.setup.layout.tp = static_cast<int>(n.next()), o.setup.layout.cp = static_cast<int>(n.next());
  o.setup.layout.pp = static_cast<int>(n.next()), o.setup.layout.chunks = static_cast<int>(n.next());
  o.setup.layout.pipeline = "gpipe", o.setup.layout.zero = static_cast<int>(n.next());
  o.device = parse_device("cuda:0"), o.captures_steps = o.allows_tf32 = true, o.sample = 4;
  models::TrainReport& r = t.report;
  r.end = nn::TrainEnd::stopped;
  r.steps = n.next(), r.first_step = n.next();
  r.loss_first = n.real(), r.loss_last = n.real();
  r.evaluation = nn::Evaluation{n.real(), n.real()};
  r.ms_per_step = n.real(), r.items_per_s = n.real();
  r.parameters = n.next(), r.trained_parameters = n.next();
  r.clip_norm = n.real(), r.optimizer = "adamw", r.state_bytes = n.bytes();
  r.full_state = {"a.weight", "b.weight"};
  r.scaler = optim::GradScalerState{n.real(), n.next(), n.next()};
  r.predicted_peak_bytes = n.bytes(), r.measured_peak_bytes = n.bytes();
  r.offloaded_bytes = n.bytes();
  r.packing = {n.bytes(), n.bytes(), {DType::i8}};
  r.measured_tier_bytes = n.bytes(), r.predicted_tier_bytes = n.bytes();  // above measured
  r.time_overhead = n.real(), r.cost_model = "by hand", r.rss_peak_bytes = n.bytes(), r.outside = n.outside();
  r.process_peak_bytes = n.bytes(), r.process_budget_bytes = n.bytes();
  r.control_group_peak_bytes = n.bytes(), r.skipped_steps = n.next(), r.arena_rss_bytes = n.bytes();
  r.device_use = memory::DeviceUse{n.bytes(), n.bytes(), n.bytes(), n.bytes(), n.bytes()};
  r.libraries = kernels::LibraryUse{{n.bytes(), n.bytes(), "a product"}, {n.bytes(), n.bytes(), "a convolution"}};
  r.captured_launches = n.bytes();
  r.placed.emplace();
  r.placed->steps = n.bytes(), r.placed->dynamic_steps = n.bytes(), r.placed->deviations = n.bytes();
  r.placed->last_deviation = n.bytes(), r.placed->region_bytes = n.bytes(), r.placed->live_blocks = n.bytes();
  r.placed->bytes_above_plan = n.bytes();
  r.sample = "to be";
  for (int rank = 0; rank < 2; ++rank) {
    nn::RankFigures f;
    f.predicted_peak_bytes = n.bytes(), f.measured_peak_bytes = n.bytes();
    f.peak_by_category = n.categories();
    f.state_bytes = n.bytes(), f.tier_bytes = n.bytes(), f.process_peak_bytes = n.bytes();
    f.sent_bytes = n.bytes(), f.messages = n.bytes();
    r.ranks.push_back(f);
  }
  t.extra.packed = {{"gelu", DType::i8, n.bytes(), n.bytes(), n.bytes()}};
  t.extra.gradients.emplace();
  t.extra.gradients->lossy_loss = n.real(), t.extra.gradients->exact_loss = n.real();
  t.extra.gradients->all = {"", n.real(), n.real(), n.real()};
  t.extra.gradients->parameters = {{"wte", n.real(), n.real(), n.real()}};
  t.extra.committed = memory::CommittedParts{n.bytes(), n.bytes(), n.bytes()};
  t.extra.by_category = n.categories();
  return t;
}

}  // namespace

TEST_CASE("reports by hand: train", "[program]") {
  Numbers n;
  const Trained t = trained(n);
  const models::TrainReport& r = t.report;
  const models::Setup& s = t.options.setup;
  json expected{{"model", "char-gpt"},
                {"parameters", r.parameters},
                {"trained_parameters", r.trained_parameters},
                {"first_step", r.first_step},
                {"steps", r.steps},
                {"end", "stopped"},
                {"loss_first", r.loss_first},
                {"loss_last", r.loss_last},
                {"is_finite", true},
                {"validation_loss", r.evaluation->loss},
                {"validation_accuracy", *r.evaluation->accuracy},
                {"optimizer", "adamw"},
                {"optimizer_state_bytes", r.state_bytes},
                {"full_state", {"a.weight", "b.weight"}},
                {"predicted_peak_bytes", r.predicted_peak_bytes},
                {"measured_peak_bytes", r.measured_peak_bytes},
                {"budget_bytes", t.options.budget_bytes},
                {"micro_batches", s.micro_batches},
                {"fuses_optimizer", true},
                {"clip_norm", r.clip_norm},
                {"time_overhead", r.time_overhead},
                {"cost_model", "by hand"},
                {"offloaded_bytes", r.offloaded_bytes},
                {"packed_bytes", r.packing.bytes},
                {"packed_to_bytes", r.packing.packed_bytes},
                {"packed_dtypes", {"i8"}},
                {"predicted_tier_bytes", r.predicted_tier_bytes},
                {"measured_tier_bytes", r.measured_tier_bytes},
                {"outside_bytes", r.outside.total()},
                {"outside", outside_of(r.outside)},
                {"process_peak_bytes", r.process_peak_bytes},
                {"process_budget_bytes", r.process_budget_bytes},
                {"control_group_peak_bytes", r.control_group_peak_bytes},
                {"rss_peak_bytes", r.rss_peak_bytes},
                {"arena_rss_bytes", r.arena_rss_bytes},
                {"ms_per_step", r.ms_per_step},
                {"items_per_s", r.items_per_s},
                {"differences", r.differences()},
                {"packed", {packed_of(t.extra.packed[0])}},
                {"precision", "O2"},
                {"tf32", true},
                {"peak_by_category", by_category(t.extra.by_category)},
                {"hole_bytes", t.extra.committed->hole_bytes},
                {"rounding_bytes", t.extra.committed->rounding_bytes},
                {"device_total_bytes", r.device_use->total_bytes},
                {"device_used_bytes", r.device_use->used_bytes},
                {"device_outside_bytes", r.device_use->outside_bytes},
                {"context_bytes", r.device_use->context_bytes},
                {"handle_bytes", r.device_use->handle_bytes},
                {"cublaslt_calls", r.libraries->cublaslt.calls},
                {"cublaslt_refusals", r.libraries->cublaslt.refusals},
                {"cublaslt_first_refused", "a product"},
                {"cudnn_calls", r.libraries->cudnn.calls},
                {"cudnn_refusals", r.libraries->cudnn.refusals},
                {"cudnn_first_refused", "a convolution"},
                {"captured_launches", r.captured_launches},
                {"deviations", r.placed->deviations},
                {"unplaced_steps", r.placed->dynamic_steps},
                {"bytes_above_plan", r.placed->bytes_above_plan},
                {"first_deviation", nullptr},
                {"loss_scale", r.scaler->scale},
                {"skipped_steps", r.skipped_steps},
                {"sample", "to be"},
                {"tp", s.layout.tp},
                {"sequence_parallel", false},
                {"cp", s.layout.cp},
                {"pp", s.layout.pp},
                {"pipeline", "gpipe"},
                {"chunks", s.layout.chunks},
                {"zero", s.layout.zero}};
  const nn::GradientReport& g = *t.extra.gradients;
  expected["gradient_report"] = {{"loss", g.exact_loss},
                                 {"loss_packed", g.lossy_loss},
                                 {"relative_error", g.all.relative_error},
                                 {"cosine", g.all.cosine},
                                 {"parameters",
                                  {{{"name", "wte"},
                                    {"norm", g.parameters[0].norm},
                                    {"relative_error", g.parameters[0].relative_error},
                                    {"cosine", g.parameters[0].cosine}}}}};
  for (const nn::RankFigures& f : r.ranks) {
    expected["ranks"].push_back({{"predicted_peak_bytes", f.predicted_peak_bytes},
                                 {"measured_peak_bytes", f.measured_peak_bytes},
                                 {"peak_by_category", by_category(f.peak_by_category)},
                                 {"optimizer_state_bytes", f.state_bytes},
                                 {"tier_bytes", f.tier_bytes},
                                 {"process_peak_bytes", f.process_peak_bytes},
                                 {"sent_bytes", f.sent_bytes},
                                 {"messages", f.messages}});
  }
  check_same(printed([&] { print_train_json(t.options, t.extra, r); }), expected);

  models::RunOptions shown = t.options;
  shown.setup.layout.ranks = 12, shown.setup.layout.tp = 2, shown.setup.layout.cp = 1, shown.setup.layout.pp = 3,
  shown.setup.layout.chunks = 5;
  shown.setup.batch = 2 * s.micro_batches * 7;  // two groups share the batch
  const auto of_rank = [](const char* number, const nn::RankFigures& f) {
    return number + (" " + format_grouped(f.predicted_peak_bytes)) + " " + format_grouped(f.measured_peak_bytes) + " " +
           format_grouped(f.state_bytes) + " " + format_bytes(f.sent_bytes) + " " + format_bytes(f.process_peak_bytes);
  };
  std::vector<std::string> categories;
  for (const std::string& line : category_lines(t.extra.by_category)) {
    categories.push_back(line.substr(0, line.find(' ', line.find(' ') + 1)));  // drops the second unit
  }
  const memory::DeviceUse& use = *r.device_use;
  const kernels::LibraryUse& libraries = *r.libraries;
  const memory::OutsideBytes& outside = r.outside;
  const auto some = [](const char* name, std::size_t bytes) { return name + (" " + format_bytes(bytes)); };
  check_lines(
      printed([&] { print_train_table(shown, t.extra, r); }),
      joined(
          {{"char-gpt: " + format_grouped(r.parameters) + " parameters, steps " + std::to_string(r.first_step + 1) +
                " to " + std::to_string(r.steps),
            "precision O2, dynamic loss scale from 65536",
            "loss " + fixed(r.loss_first, 4) + " -> " + fixed(r.loss_last, 4) + ", validation " +
                fixed(r.evaluation->loss, 4),
            "loss scale " + fixed(r.scaler->scale, 2) + " at the end, " + std::to_string(r.skipped_steps) +
                " steps skipped",
            "accuracy " + fixed(*r.evaluation->accuracy, 4),
            "optimizer adamw, " + format_grouped(r.state_bytes) + " of state",
            "in f32 that of 2 parameters: a.weight, b.weight", "f32 products in TF32",
            "captured step " + std::to_string(r.captured_launches) + " launches in one call",
            "micro-batches " + std::to_string(s.micro_batches) + " of 7 samples",
            "fused into backward; gradients were not clipped",
            "predicted peak " + format_grouped(r.predicted_peak_bytes) + " (" + format_bytes(r.predicted_peak_bytes) +
                ")",
            some("budget", t.options.budget_bytes) + ", at " + fixed(100 * r.time_overhead, 1) +
                " % more time by the cost model 'by hand'",
            some("offloaded", r.offloaded_bytes) + " per step",
            some("packed", r.packing.bytes) + some(" to", r.packing.packed_bytes) + " of i8 per micro-batch",
            "pinned on host " + format_grouped(r.predicted_tier_bytes) + " predicted, " +
                format_grouped(r.measured_tier_bytes) + " measured",
            "measured peak " + format_grouped(r.measured_peak_bytes),
            "left its plan " + std::to_string(r.placed->deviations + r.placed->dynamic_steps) + " of " +
                std::to_string(r.placed->steps) + some(" steps, by up to", r.placed->bytes_above_plan)},
           categories,
           {"holes between blocks " + format_grouped(t.extra.committed->hole_bytes),
            "rounding to granules " + format_grouped(t.extra.committed->rounding_bytes),
            some("device used", use.used_bytes) + some(" of", use.total_bytes) +
                some(", outside of arenas", use.outside_bytes) + some(", before the first page", use.context_bytes),
            some("handles", use.handle_bytes) + " of libraries",
            "libraries cuBLASLt made " + std::to_string(libraries.cublaslt.calls) + " calls and refused " +
                std::to_string(libraries.cublaslt.refusals) + ", the first: a product; cuDNN made " +
                std::to_string(libraries.cudnn.calls) + " calls and refused " +
                std::to_string(libraries.cudnn.refusals) + ", the first: a convolution",
            some("outside of it at most", outside.total()) + some(" (code", outside.code) +
                some(", heap", outside.heap) + some(", threads", outside.threads) + some(", nodes", outside.nodes) +
                some(", staging", outside.staging) + some(", data", outside.data) + ")",
            some("process peak", r.process_peak_bytes) + some(", promised", r.predicted_peak_bytes + outside.total()),
            "ranks 2, ZeRO stage " + std::to_string(s.layout.zero) + ", blocks in 2 shards, 3 stages, gpipe, 5 chunks",
            "rank predicted peak measured peak state sent process peak", of_rank("0", r.ranks[0]),
            of_rank("1", r.ranks[1]),
            "speed " + fixed(r.ms_per_step, 2) + " ms per step, " + fixed(r.items_per_s, 0) + " items/s", "",
            "to be"}}));
}
