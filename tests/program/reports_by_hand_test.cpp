// Reports of plan, generate, certify and quantize, printed from hand-made ones in which all numbers differ, so that a
// swapped number shows.

#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include <thimble/bench/commands/plan_output.h>
#include <thimble/bench/commands/train_output.h>
#include <thimble/memory/units.h>
#include <thimble/models/generation/generating.h>
#include <thimble/models/planning/layouts.h>
#include <thimble/models/training/quantizing.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/certify/certify.h>

#include "program/reports_by_hand.h"
#include "support/catch.h"

using namespace reports_test;

TEST_CASE("reports by hand: plan", "[program]") {
  Numbers n;
  models::RunOptions options;
  options.setup.fuses_optimizer = true;
  options.setup.precision.policy = "O2", options.setup.precision.dtype = DType::f16;
  models::PlanReport r;
  r.setup.sizes.window = n.next();
  r.parameters = n.next(), r.batch = n.next(), r.sequence = n.next(), r.micro_batches = n.next();
  r.clip_norm = n.real();
  r.plan.peak_bytes = n.bytes(), r.plan.lower_bound_bytes = n.bytes(), r.plan.tier_bytes = n.bytes();
  r.plan.peak_by_category = n.categories();
  r.plan.step_s = n.real(), r.plan.time_overhead = n.real();
  r.plan.offloaded_bytes = n.bytes(), r.plan.packed_bytes = n.bytes();
  r.plan.packed = {{"gelu", DType::i8, n.bytes(), n.bytes(), n.bytes()}};
  r.committed = {n.bytes(), n.bytes(), n.bytes()};
  r.packing = {n.bytes(), n.bytes(), {DType::i8, DType::bf16}};
  r.budget_bytes = n.bytes(), r.process_budget_bytes = n.bytes();
  r.outside = n.outside();
  r.minimum_bytes = n.bytes(), r.keep_everything_bytes = n.bytes();
  r.cost_model = "by hand";
  r.segments = {{static_cast<std::uint32_t>(n.next()), static_cast<std::uint32_t>(n.next()), static_cast<int>(n.next()),
                 "h.0", n.bytes(), n.bytes()}};
  r.plain_step_s = n.real();
  r.techniques = {{"`head` chunked", n.bytes(), n.real(), n.real(), "a note"}};
  r.ms = n.real();
  r.setup.layout.tp = static_cast<int>(n.next()), r.setup.layout.cp = static_cast<int>(n.next());
  r.setup.layout.pp = static_cast<int>(n.next()), r.setup.layout.chunks = static_cast<int>(n.next());
  r.setup.model = "a model", r.setup.layout.pipeline = "gpipe";
  r.setup.layout.zero = static_cast<int>(n.next());
  const std::vector<models::RankPlan> ranks{rank_plan(n, {0, 2}), rank_plan(n, {1})};
  json expected{{"model", "a model"},
                {"parameters", r.parameters},
                {"device", "dry(cpu)"},
                {"batch", r.batch},
                {"sequence", r.sequence},
                {"micro_batches", r.micro_batches},
                {"fuses_optimizer", true},
                {"chunked_head", false},
                {"window", r.setup.sizes.window},
                {"tiled_feed_forward", false},
                {"clip_norm", r.clip_norm},
                {"peak_bytes", r.plan.peak_bytes},
                {"peak_by_category", by_category(r.plan.peak_by_category)},
                {"hole_bytes", r.committed.hole_bytes},
                {"rounding_bytes", r.committed.rounding_bytes},
                {"lower_bound_bytes", r.plan.lower_bound_bytes},
                {"precision", "O2"},
                {"loss_scale", 65536},
                {"loss_scale_is_dynamic", true},
                {"budget_bytes", r.budget_bytes},
                {"feasible", true},
                {"process_budget_bytes", r.process_budget_bytes},
                {"outside_bytes", r.outside.total()},
                {"outside", outside_of(r.outside)},
                {"process_bytes", r.plan.peak_bytes + r.outside.total()},
                {"minimum_feasible_bytes", r.minimum_bytes},
                {"keep_everything_bytes", r.keep_everything_bytes},
                {"offloaded_bytes", r.plan.offloaded_bytes},
                {"packed_bytes", r.packing.bytes},
                {"packed_to_bytes", r.packing.packed_bytes},
                {"packed_dtypes", {"i8", "bf16"}},
                {"packed", {packed_of(r.plan.packed[0])}},
                {"tier_bytes", r.plan.tier_bytes},
                {"time_overhead", r.plan.time_overhead},
                {"step_seconds", r.plan.step_s},
                {"cost_model", "by hand"},
                {"segments",
                 {{{"first_node", r.segments[0].first},
                   {"end_node", r.segments[0].end},
                   {"depth", r.segments[0].depth},
                   {"path", "h.0"},
                   {"kept_bytes", r.segments[0].kept_bytes},
                   {"nodes_dropped", r.segments[0].dropped}}}},
                {"techniques",
                 {{{"flags", "--head chunked"},
                   {"minimum_feasible_bytes", r.techniques[0].minimum_bytes},
                   {"time_overhead", r.techniques[0].time_overhead},
                   {"time_overhead_in_budget", *r.techniques[0].time_overhead_in_budget},
                   {"note", "a note"}}}},
                {"plan_ms", r.ms},
                {"tp", r.setup.layout.tp},
                {"sequence_parallel", false},
                {"cp", r.setup.layout.cp},
                {"pp", r.setup.layout.pp},
                {"pipeline", "gpipe"},
                {"chunks", r.setup.layout.chunks},
                {"zero", r.setup.layout.zero}};
  for (const models::RankPlan& plan : ranks) {
    expected["ranks"].push_back({{"ranks", plan.ranks},
                                 {"peak_bytes", plan.report.plan.peak_bytes},
                                 {"peak_by_category", by_category(plan.report.plan.peak_by_category)},
                                 {"hole_bytes", plan.report.committed.hole_bytes},
                                 {"rounding_bytes", plan.report.committed.rounding_bytes},
                                 {"keep_everything_bytes", plan.report.keep_everything_bytes},
                                 {"feasible", true}});
  }
  check_same(printed([&] { bench::print_plan_json(options, r, ranks); }), expected);

  r.setup.model = "char-gpt", r.setup.fuses_optimizer = true;
  const nn::PlannedSegment& segment = r.segments[0];
  const std::vector<std::string> begin{
      "char-gpt, batch " + std::to_string(r.batch) + " in " + std::to_string(r.micro_batches) +
          " micro-batches, optimizer fused into backward, a window of " + std::to_string(r.setup.sizes.window) +
          ", blocks in " + std::to_string(r.setup.layout.tp) + " shards, the sequence in " +
          std::to_string(r.setup.layout.cp) + " shards, in attention heads: " + format_grouped(r.parameters) +
          " parameters",
      "gradients are not clipped: --fuse-optimizer",
      bytes_line("budget", r.budget_bytes),
      bytes_line("peak (committed)", r.plan.peak_bytes),
      bytes_line("outside of the arena", r.outside.total()),
      bytes_line("code", r.outside.code),
      bytes_line("heap", r.outside.heap),
      bytes_line("threads", r.outside.threads),
      bytes_line("nodes", r.outside.nodes),
      bytes_line("staging", r.outside.staging),
      bytes_line("data", r.outside.data),
      bytes_line("the process", r.plan.peak_bytes + r.outside.total()),
      bytes_line("its budget", r.process_budget_bytes),
      bytes_line("lower bound (load)", r.plan.lower_bound_bytes),
      bytes_line("keeping everything", r.keep_everything_bytes),
      bytes_line("smallest possible", r.minimum_bytes),
      "live bytes at the peak, by category"};
  const std::vector<std::string> rest{
      bytes_line("+ holes between blocks", r.committed.hole_bytes),
      bytes_line("+ rounding to granules", r.committed.rounding_bytes),
      bytes_line("= peak (committed)", r.committed.total()),
      "segments that backward runs again, in part or whole",
      "nodes from kept bytes dropped",
      std::to_string(segment.first) + "-" + std::to_string(segment.end - 1) + " h.0 " +
          format_grouped(segment.kept_bytes) + " " + std::to_string(segment.dropped) + " of " +
          std::to_string(segment.end - segment.first) + " nodes",
      bytes_line("offloaded per step", r.plan.offloaded_bytes),
      bytes_line("packed per micro-batch", r.packing.bytes),
      bytes_line("to i8, bf16", r.packing.packed_bytes),
      bytes_line("gelu to i8", r.plan.packed[0].bytes),
      bytes_line("in files", r.plan.tier_bytes),
      "what one more technique would allow (time over a step that keeps everything, without any of them)",
      "with smallest bytes at time in budget",
      "--head chunked " + format_grouped(r.techniques[0].minimum_bytes) + " " +
          format_bytes(r.techniques[0].minimum_bytes) + " " + percent(r.techniques[0].time_overhead) + " " +
          percent(*r.techniques[0].time_overhead_in_budget) + " a note",
      "time: " + percent(r.plan.time_overhead) + " over keeping everything, by the cost model 'by hand'",
      "planned in " + fixed(r.ms, 1) + " ms"};
  check_lines(printed([&] { bench::print_plan_table(options, r); }),
              joined({begin, category_lines(r.plan.peak_by_category), rest}));
  const auto rank_line = [&](const char* names, const models::RankPlan& rank, const char* end) {
    const memory::CategoryBytes& c = rank.report.plan.peak_by_category;
    std::string line = names;
    for (const std::size_t bytes : {rank.report.plan.peak_bytes, c[0], c[1], c[2], c[7], c[3] + c[4] + c[5] + c[6]}) {
      line += " " + format_grouped(bytes);
    }
    return line + end;
  };
  std::vector<models::RankPlan> shown = ranks;
  shown[1].report.is_feasible = false;
  check_lines(printed([&] { bench::print_plan_ranks(shown); }),
              {"ranks, by their shares", "rank peak (committed) parameter gradient optimizer communication the rest",
               rank_line("0, 2", ranks[0], ""), rank_line("1", ranks[1], " does not fit")});
}

TEST_CASE("reports by hand: techniques that do not fit, or were not tried", "[program]") {
  const std::string tries = " were not tried, for want of time or memory; --techniques tries them all\n";
  using Row = std::tuple<std::size_t, std::size_t, std::size_t, std::string>;
  for (const auto& [fitting, known, untried, says] : {Row{2, 2, 0, ""},
                                                      {1, 5, 0, "  4 of 5 techniques do not fit\n"},
                                                      {1, 2, 0, "  1 of 2 techniques does not fit\n"},
                                                      {1, 4, 3, "  3 of 4" + tries},
                                                      {1, 6, 2, "  3 of 6 techniques do not fit\n  2 of 6" + tries}}) {
    models::PlanReport r;
    r.is_feasible = false, r.known_techniques = known, r.untried_techniques = untried;
    r.techniques.resize(1 + fitting);
    const std::string all = printed([&] { bench::print_techniques(r, true); });
    CHECK(printed([&] { bench::print_techniques(r, false); }) == all + says);
    r.is_feasible = true;
    CHECK(printed([&] { bench::print_techniques(r, false); }) == all);
  }
}

TEST_CASE("reports by hand: layouts", "[program]") {
  Numbers n;
  models::RunOptions options;
  options.setup.model = "gpt2";
  options.setup.batch = n.next();
  models::Cluster cluster;
  cluster.ranks = static_cast<int>(n.next()), cluster.per_node = static_cast<int>(n.next());
  cluster.memory_bytes = n.bytes();
  const auto judged = [&](bool fits) {
    models::JudgedLayout j;
    j.layout = {static_cast<int>(n.next()),
                static_cast<int>(n.next()),
                static_cast<int>(n.next()),
                static_cast<int>(n.next()),
                n.next(),
                fits,
                n.bytes(),
                !fits,
                static_cast<int>(n.next())};
    j.time = {3 * n.real(), n.real(), n.real(), n.real(), n.real()};  // the first includes idle time and parts
    j.peak_bytes = n.bytes();
    j.fits = fits;
    return j;
  };
  const auto of = [](const models::JudgedLayout& j) {
    const models::Layout& l = j.layout;
    return json{{"dp", l.dp},
                {"tp", l.tp},
                {"sequence_parallel", l.cuts_sequence},
                {"pp", l.pp},
                {"zero", l.zero},
                {"micro_batches", l.micro_batches},
                {"recompute_blocks", l.recomputes_blocks},
                {"bucket_bytes", l.bucket_bytes},
                {"read_ahead", l.read_ahead},
                {"step_seconds", j.time.pipeline_s + j.time.shares_s + j.time.update_s},
                {"pipeline_seconds", j.time.pipeline_s},
                {"idle_seconds", j.time.idle_s},
                {"parts_seconds", j.time.parts_s},
                {"shares_seconds", j.time.shares_s},
                {"update_seconds", j.time.update_s},
                {"peak_bytes", j.peak_bytes},
                {"fits", j.fits}};
  };
  models::LayoutReport r;
  r.best = judged(true);
  r.ranks = {rank_plan(n, {0, 3}), rank_plan(n, {1, 2})};
  r.neighbours = {judged(false), judged(true)};
  r.examined = n.bytes(), r.run = n.bytes();
  r.search_s = n.real(), r.proof_s = n.real();
  check_same(printed([&] { bench::print_layouts_json(options, cluster, "by hand", r); }),
             {{"model", "gpt2"},
              {"batch", options.setup.batch},
              {"ranks", cluster.ranks},
              {"per_node", cluster.per_node},
              {"inside", "nvlink-4"},
              {"between", "infiniband-400"},
              {"memory_bytes", cluster.memory_bytes},
              {"cost_model", "by hand"},
              {"examined", r.examined},
              {"run_dry", r.run},
              {"search_seconds", r.search_s},
              {"proof_seconds", r.proof_s},
              {"best", of(r.best)},
              {"ranks_bytes",
               {{{"ranks", {0, 3}}, {"peak_bytes", r.ranks[0].report.plan.peak_bytes}},
                {{"ranks", {1, 2}}, {"peak_bytes", r.ranks[1].report.plan.peak_bytes}}}},
              {"neighbours", {of(r.neighbours[0]), of(r.neighbours[1])}}});

  const models::LayoutTime& time = r.best.time;
  const double step_s = time.pipeline_s + time.shares_s + time.update_s;
  const auto time_line = [&](const std::string& name, double seconds) {
    return name + " " + fixed(seconds, 2) + " s " + fixed(100 * seconds / step_s, 1) + " %";
  };
  r.neighbours[0].peak_bytes = cluster.memory_bytes + 1, r.neighbours[1].peak_bytes = cluster.memory_bytes;
  const auto more_time = [&](const models::JudgedLayout& j) {
    const double seconds = j.time.pipeline_s + j.time.shares_s + j.time.update_s;
    return "+" + fixed(100 * (seconds / step_s - 1), 1) + " % time";
  };
  const std::string memory = format_bytes(cluster.memory_bytes);
  check_lines(
      printed([&] { bench::print_layouts_table(options, cluster, "by hand", r); }),
      {"gpt2, batch " + std::to_string(options.setup.batch) + ", on " + std::to_string(cluster.ranks) + " ranks of " +
           memory + ", " + std::to_string(cluster.per_node) + " a node (nvlink-4 inside, infiniband-400 between)",
       "the fastest layout that fits " + to_string(r.best.layout),
       "the rank that needs most " + memory::exact_bytes(r.best.peak_bytes) + " of " + memory,
       "time of a step, by the cost model 'by hand'",
       time_line("operators, of a stage on average", time.pipeline_s - time.idle_s - time.parts_s),
       time_line("exchange within groups", time.parts_s), time_line("idle stages", time.idle_s),
       time_line("traffic that is not hidden", time.shares_s), time_line("update", time.update_s),
       time_line("= step", step_s), "ranks, each run dry", "0, 3 " + format_grouped(r.ranks[0].report.plan.peak_bytes),
       "1-2 " + format_grouped(r.ranks[1].report.plan.peak_bytes), "neighbours",
       to_string(r.neighbours[0].layout) + " needs " + format_bytes(cluster.memory_bytes + 1) + ", " +
           more_time(r.neighbours[0]),
       to_string(r.neighbours[1].layout) + " " + more_time(r.neighbours[1]),
       std::to_string(r.examined) + " layouts counted and " + std::to_string(r.run) + " run dry in " +
           fixed(r.search_s, 1) + " s, every distinct rank of the best one in " + fixed(r.proof_s, 1) + " s"});
}

TEST_CASE("reports by hand: generation, planned and done", "[program]") {
  Numbers n;
  models::PreparedGeneration prepared;
  models::GenerationPlan& plan = prepared.plan;
  plan.shape.setup.model = "char-gpt";
  plan.shape.setup.batch = n.next();
  plan.shape.context = n.next(), plan.shape.prompt_tokens = n.next(), plan.shape.tokens = n.next();
  plan.parameters = n.next();
  plan.cache = {3, 5, 7, 11, 13, DType::bf16};
  plan.peak_bytes = n.bytes();
  plan.peak_by_category = n.categories();
  plan.committed = {n.bytes(), n.bytes(), n.bytes()};
  json expected{{"model", "char-gpt"},
                {"device", "dry(cpu)"},
                {"parameters", plan.parameters},
                {"batch", plan.shape.setup.batch},
                {"context", plan.shape.context},
                {"prompt_tokens", plan.shape.prompt_tokens},
                {"tokens", plan.shape.tokens},
                {"cache", "bf16"},
                {"cache_bytes_per_token", 2 * 3 * 7 * 11 * 2},  // keys and values, layers, heads, width, bytes
                {"peak_by_category", by_category(plan.peak_by_category)}};
  json planned = expected;
  planned.update(json{{"cache_bytes", 5 * 13 * 2 * 3 * 7 * 11 * 2},
                      {"peak_bytes", plan.peak_bytes},
                      {"hole_bytes", plan.committed.hole_bytes},
                      {"rounding_bytes", plan.committed.rounding_bytes},
                      {"budget_bytes", plan.peak_bytes - 1},
                      {"feasible", false}});
  check_same(printed([&] { bench::print_generation_json(plan, cpu, plan.peak_bytes - 1); }), planned);
  for (const std::size_t more : {0, 1}) {  // exactly the peak is enough
    planned.update(json{{"budget_bytes", plan.peak_bytes + more}, {"feasible", true}});
    check_same(printed([&] { bench::print_generation_json(plan, cpu, plan.peak_bytes + more); }), planned);
  }
  check_lines(
      printed([&] { bench::print_generation_table(plan, plan.peak_bytes - 1); }),
      joined({{"char-gpt: " + format_grouped(plan.parameters) + " parameters; " +
                   std::to_string(plan.shape.setup.batch) + " sequences of " + std::to_string(plan.shape.context) +
                   " positions, the first " + std::to_string(plan.shape.prompt_tokens) + " of them read at once",
               bytes_line("budget", plan.peak_bytes - 1), bytes_line("peak (committed)", plan.peak_bytes),
               bytes_line("cache, bf16", planned["cache_bytes"]),
               bytes_line("of a token", planned["cache_bytes_per_token"]), "live bytes at the peak, by category"},
              category_lines(plan.peak_by_category),
              {bytes_line("+ holes between blocks", plan.committed.hole_bytes),
               bytes_line("+ rounding to granules", plan.committed.rounding_bytes),
               bytes_line("= peak (committed)", plan.committed.total())}}));

  prepared.options.prompt = "to be";
  models::GenerateReport r;
  r.parameters = n.next();
  r.texts = {"one", "two"};
  prepared.end_tokens = {17, 19};
  r.tokens = {{1, 2, 3}, {4, 5}};
  r.ended_by = {std::nullopt, 19};
  r.predicted_peak_bytes = n.bytes(), r.measured_peak_bytes = n.bytes();
  r.cache_bytes = n.bytes();
  r.prompt_seconds = n.real(), r.seconds = n.real(), r.tokens_per_second = n.real();
  expected.update(json{{"device", "cpu"},
                       {"parameters", r.parameters},
                       {"cache_bytes", r.cache_bytes},
                       {"predicted_peak_bytes", r.predicted_peak_bytes},
                       {"measured_peak_bytes", r.measured_peak_bytes},
                       {"prompt_seconds", r.prompt_seconds},
                       {"tokens_per_second", r.tokens_per_second},
                       {"end_tokens", {17, 19}},
                       {"written", {3, 2}},
                       {"ended", {"length", "end token 19"}},
                       {"prompt", "to be"},
                       {"texts", {"one", "two"}}});
  check_same(printed([&] { bench::print_generate_json(prepared, r); }), expected);
}

TEST_CASE("reports by hand: certify and quantize", "[program]") {
  Numbers n;
  models::RunOptions certified;
  certified.setup.model = "mlp";
  certified.setup.batch = n.next();
  certified.budget_bytes = n.bytes();
  const double time_overhead = n.real();
  nn::Certificate c;
  c.steps = n.next();
  std::size_t tensors = 0;
  for (std::size_t& each : c.tensors) tensors += each = n.bytes();
  c.bytes = n.bytes();
  c.predicted_peak_bytes = n.bytes();
  c.plain.peak_bytes = n.bytes(), c.planned.peak_bytes = n.bytes();
  c.plain.ms = n.real(), c.planned.ms = n.real();
  c.plain.placed.deviations = n.bytes(), c.planned.placed.deviations = n.bytes();
  c.differences = {{n.next(), nn::Compared::statistics, "bn.mean", true}, {n.next(), nn::Compared::loss, "", false}};
  check_same(printed([&] { bench::print_certify_json(certified, time_overhead, c); }),
             {{"model", "mlp"},
              {"batch", certified.setup.batch},
              {"steps", c.steps},
              {"holds", false},
              {"compared_bytes", c.bytes},
              {"compared",
               {{"loss", c.tensors[0]},
                {"gradient", c.tensors[1]},
                {"parameter", c.tensors[2]},
                {"optimizer state", c.tensors[3]},
                {"statistics", c.tensors[4]},
                {"generator", c.tensors[5]}}},
              {"compared_tensors", tensors},
              {"different_tensors", 2},
              {"first_difference",
               {{"step", c.differences[0].step}, {"what", "statistics"}, {"name", "bn.mean"}, {"is_missing", true}}},
              {"budget_bytes", certified.budget_bytes},
              {"plain_peak_bytes", c.plain.peak_bytes},
              {"planned_peak_bytes", c.planned.peak_bytes},
              {"predicted_peak_bytes", c.predicted_peak_bytes},
              {"time_overhead", time_overhead},
              {"plain_ms", c.plain.ms},
              {"planned_ms", c.planned.ms},
              {"deviations", c.planned.placed.deviations}});

  models::QuantizeOptions options;
  options.setup.model = "mlp";
  options.save = "file";
  options.calibration.calibrator = nn::quant::Calibrator::entropy;
  options.calibration.activations = nn::quant::Activations::symmetric;
  options.calibration.weights = nn::quant::WeightScales::per_tensor;
  models::QuantizeReport q;
  q.scheme = "int8";
  q.parameters = n.next();
  q.f32_file_bytes = 3 * n.bytes(), q.int8_file_bytes = n.bytes();
  q.f32_weight_bytes = n.bytes(), q.int8_weight_bytes = n.bytes();
  q.loss_f32 = n.real(), q.loss_int8 = n.real();
  q.accuracy_f32 = n.real(), q.accuracy_int8 = n.real();
  q.predicted_peak_bytes = n.bytes(), q.measured_peak_bytes = n.bytes();
  q.ms_f32 = 3 * n.real(), q.ms_int8 = n.real();
  q.layers = {{"fc1", n.real(), n.real()}, {"fc2", std::numeric_limits<double>::infinity(), n.real()}};
  check_same(
      printed([&] { bench::print_quantize_json(options, q); }),
      {{"model", "mlp"},
       {"device", "cpu"},
       {"scheme", "int8"},
       {"parameters", q.parameters},
       {"calibrator", "entropy"},
       {"activations", nn::quant::to_string(nn::quant::Activations::symmetric)},
       {"weights", nn::quant::to_string(nn::quant::WeightScales::per_tensor)},
       {"f32_file_bytes", q.f32_file_bytes},
       {"int8_file_bytes", q.int8_file_bytes},
       {"f32_weight_bytes", q.f32_weight_bytes},
       {"int8_weight_bytes", q.int8_weight_bytes},
       {"loss_f32", q.loss_f32},
       {"loss_int8", q.loss_int8},
       {"accuracy_f32", *q.accuracy_f32},
       {"accuracy_int8", *q.accuracy_int8},
       {"ms_f32", q.ms_f32},
       {"ms_int8", q.ms_int8},
       {"predicted_peak_bytes", q.predicted_peak_bytes},
       {"measured_peak_bytes", q.measured_peak_bytes},
       {"layers",
        {{{"name", "fc1"}, {"cosine", q.layers[0].cosine}, {"signal_to_noise_db", q.layers[0].signal_to_noise_db}},
         {{"name", "fc2"}, {"cosine", q.layers[1].cosine}}}}});

  options.setup.batch = n.next();
  const auto both = [](const char* name, const std::string& before, const std::string& after) {
    return std::string(name) + " " + before + " -> " + after;
  };
  const std::string int8_file = format_grouped(q.int8_file_bytes), int8_weights = format_grouped(q.int8_weight_bytes);
  check_lines(
      printed([&] { bench::print_quantize_table(options, q); }),
      {"mlp in int8: " + format_grouped(q.parameters) + " parameters",
       both("file", format_grouped(q.f32_file_bytes), int8_file) + " bytes, " +
           fixed(static_cast<double>(q.f32_file_bytes) / static_cast<double>(q.int8_file_bytes), 3) + " times smaller",
       both("weights", format_grouped(q.f32_weight_bytes), int8_weights) + " bytes in memory",
       both("loss", fixed(q.loss_f32, 4), fixed(q.loss_int8, 4)),
       both("accuracy", fixed(*q.accuracy_f32, 4), fixed(*q.accuracy_int8, 4)),
       both("time", fixed(q.ms_f32, 2), fixed(q.ms_int8, 2)) + " ms of the processor for " +
           std::to_string(options.setup.batch) + " samples, " + fixed(q.ms_f32 / q.ms_int8, 2) + " times as fast",
       "predicted peak " + format_grouped(q.predicted_peak_bytes),
       "measured peak " + format_grouped(q.measured_peak_bytes), "error up to each step signal to noise cosine",
       "fc1 " + fixed(q.layers[0].signal_to_noise_db, 1) + " dB " + fixed(q.layers[0].cosine, 6),
       "fc2 inf dB " + fixed(q.layers[1].cosine, 6)});
}
